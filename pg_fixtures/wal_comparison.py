"""`compare_wal`: compares copies of the WAL byte by byte, up to a position.

After the position they may differ: a primary has recycled segments there, a safekeeper has zeros.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from quorum_wal.pg_fixtures.errors import FixtureError, WalDiffers
from quorum_wal.pgwal.errors import SegmentNameError
from quorum_wal.pgwal.lsn import Lsn
from quorum_wal.pgwal.segment import SegmentName, parse_segment_name, segment_start_lsn

CHUNK_BYTES = 64 << 10  # of larger ones, each read would take new memory from the kernel


@dataclass(frozen=True, slots=True)
class ComparedSegment:
    """The bytes `[begin_lsn, end_lsn)` of one segment are equal for all `holders`."""

    name: str
    begin_lsn: Lsn
    end_lsn: Lsn
    holders: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class WalComparison:
    """The compared and equal segments, in order. Segments with only one holder are not included."""

    segments: tuple[ComparedSegment, ...]

    def range_of(self, holder: str) -> tuple[Lsn, Lsn]:
        """The range before the end, without a gap, in which that copy equals another; or empty."""
        end_lsn = self.segments[-1].end_lsn
        begin_lsn = end_lsn
        for segment in reversed(self.segments):
            if holder not in segment.holders or segment.end_lsn != begin_lsn:
                break
            begin_lsn = segment.begin_lsn
        return begin_lsn, end_lsn


def compare_wal(copies: Mapping[str, Path], up_to: Lsn, wal_seg_size: int) -> WalComparison:
    """Compares the segments below the folders `copies` (by the holder's name), up to `up_to`.

    If several segments have one number, as after a change of the Postgres timeline, the newest
    timeline's is used. Raises WalDiffers; FixtureError if there is nothing to compare.
    """
    held = {holder: find_segments(folder, wal_seg_size) for holder, folder in copies.items()}
    newest: dict[int, SegmentName] = {}
    for name in sorted({n for segments in held.values() for n in segments}, key=lambda n: n.tli):
        newest[name.segno] = name
    compared: list[ComparedSegment] = []
    for segno, name in sorted(newest.items()):
        begin_lsn = segment_start_lsn(segno, wal_seg_size)
        end_lsn = min(begin_lsn + wal_seg_size, up_to)
        paths = {holder: held[holder][name] for holder in held if name in held[holder]}
        if begin_lsn < end_lsn and len(paths) > 1:
            compare_files(paths, begin_lsn, end_lsn - begin_lsn)
            file_name = next(iter(paths.values())).name
            compared.append(ComparedSegment(file_name, begin_lsn, end_lsn, tuple(paths)))
    if not compared:
        raise FixtureError(f"no WAL to compare up to {up_to} in {', '.join(copies)}")
    return WalComparison(tuple(compared))


def find_segments(folder: Path, wal_seg_size: int) -> dict[SegmentName, Path]:
    """The complete segments below `folder`. Raises FixtureError if one is there twice."""
    found: dict[SegmentName, Path] = {}
    for path in folder.rglob("*"):
        try:
            name = parse_segment_name(path.name, wal_seg_size)
        except SegmentNameError:
            continue  # a folder, a history file, or a spare segment
        if name.partial:
            continue
        if name in found:
            raise FixtureError(f"{path} is also {found[name]}: name the folder of one timeline")
        found[name] = path
    return found


def compare_files(paths: Mapping[str, Path], begin_lsn: Lsn, length: int) -> None:
    """Compares the first `length` bytes of all files with those of the first. Raises WalDiffers."""
    with ExitStack() as stack:
        files = [(holder, stack.enter_context(open(path, "rb"))) for holder, path in paths.items()]
        (reference, reference_file), *others = files
        for at in range(0, length, CHUNK_BYTES):
            wanted = min(CHUNK_BYTES, length - at)
            expected = reference_file.read(wanted)
            for holder, file in others:
                found = file.read(wanted)
                if found != expected or len(found) < wanted:
                    lsn = begin_lsn + at + first_difference(expected, found)
                    segment = Path(file.name).name
                    raise WalDiffers(
                        lsn, f"{holder} differs from {reference} at {lsn}, in segment {segment}"
                    )


def first_difference(left: bytes, right: bytes) -> int:
    """The index of the first different byte, or the shorter length if there is none."""
    for index, (a, b) in enumerate(zip(left, right, strict=False)):
        if a != b:
            return index
    return min(len(left), len(right))
