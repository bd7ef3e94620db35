"""`WalFolder`: the pg_wal of a stopped server as one sequence of bytes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from quorum_wal.pg_fixtures.postgres import Postgres
from quorum_wal.pg_server.binaries import PostgresBinaries
from quorum_wal.pgwal.errors import SegmentNameError
from quorum_wal.pgwal.segment import parse_segment_name, segment_start_lsn


def segment_files(path: Path, wal_seg_size: int) -> dict[int, Path]:
    """The segments in a pg_wal, by their numbers, in order."""
    files = {}
    for file in sorted(path.iterdir()):
        try:
            files[parse_segment_name(file.name, wal_seg_size).segno] = file
        except SegmentNameError:
            assert file.is_dir(), f"unexpected file {file.name}"
    return files


@dataclass(frozen=True, slots=True)
class WalFolder:
    """Segments without a gap; `read` is the function that find_end_of_wal() calls."""

    path: Path
    binaries: PostgresBinaries
    wal_seg_size: int
    start_lsn: int
    #: the first and the last
    segment_names: tuple[str, str]
    wal: bytes

    @classmethod
    def load(cls, postgres: Postgres, wal_seg_size: int) -> WalFolder:
        """Read the present pg_wal of the stopped server."""
        path, binaries = postgres.pg_wal, postgres.binaries
        segments = segment_files(path, wal_seg_size)
        first = min(segments)
        assert list(segments) == list(range(first, first + len(segments))), "a segment is missing"
        return cls(
            path,
            binaries,
            wal_seg_size,
            int(segment_start_lsn(first, wal_seg_size)),
            (segments[first].name, segments[max(segments)].name),
            b"".join(file.read_bytes() for file in segments.values()),
        )

    @property
    def major(self) -> int:
        return self.binaries.major

    def read(self, lsn: int, length: int) -> bytes:
        return self.slice(lsn, lsn + length)

    def slice(self, begin_lsn: int, end_lsn: int) -> bytes:
        return self.wal[begin_lsn - self.start_lsn : end_lsn - self.start_lsn]
