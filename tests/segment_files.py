"""`timeline_with_segments`: quickly creates a timeline whose whole segments are on disk, of any
size.

Each segment is a file with a hole: different bytes at its start and at its end, zeros between;
beside it are its checksums, as a safekeeper saves them.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

from timeline_on_disk import create_timeline
from wal_log import PG_VERSION, SYSTEM_ID

from quorum_wal.consensus.messages import ServerFacts
from quorum_wal.pgwal.segment import format_segment_name
from quorum_wal.safekeeper.block_sums import BlockSums, encode_block_sums
from quorum_wal.safekeeper.timeline import Timeline

EDGE_BYTES = 64 * 1024
PIECE_BYTES = 256 * 1024
ZEROS = bytes(PIECE_BYTES)
TLI = 1


def edge(segno: int, wal_seg_size: int, offset: int) -> bytes:
    """The bytes at the start of a segment (`offset` 0), and at its end."""
    return random.Random(f"{segno} {wal_seg_size} {offset}").randbytes(EDGE_BYTES)


def segment_pieces(segno: int, wal_seg_size: int) -> Iterator[bytes]:
    tail = wal_seg_size - EDGE_BYTES
    yield edge(segno, wal_seg_size, 0)
    for offset in range(EDGE_BYTES, tail, PIECE_BYTES):
        yield ZEROS[: tail - offset]
    yield edge(segno, wal_seg_size, tail)


def timeline_with_segments(folder: Path, wal_seg_size: int, count: int) -> Timeline:
    """Its log is `count` segments, from the second one on; everything is committed."""
    for name in ("wal", "checksums"):
        (folder / name).mkdir(parents=True)
    for segno in range(1, count + 1):
        _write_segment(folder, segno, wal_seg_size)
    end_lsn = (count + 1) * wal_seg_size
    return create_timeline(
        folder,
        server=ServerFacts(SYSTEM_ID, PG_VERSION, wal_seg_size),
        timeline_start_lsn=wal_seg_size,
        local_start_lsn=wal_seg_size,
        commit_lsn=end_lsn,
        flush_lsn=end_lsn,
    )


def _write_segment(folder: Path, segno: int, wal_seg_size: int) -> None:
    tail = wal_seg_size - EDGE_BYTES
    sums = BlockSums(segno * wal_seg_size)
    with (folder / "wal" / format_segment_name(TLI, segno, wal_seg_size)).open("wb") as file:
        for offset in (0, tail):
            file.seek(offset)
            file.write(edge(segno, wal_seg_size, offset))
    for piece in segment_pieces(segno, wal_seg_size):
        sums.extend(piece)
    name = format_segment_name(0, segno, wal_seg_size)[8:]
    (folder / "checksums" / name).write_bytes(encode_block_sums(sums))
