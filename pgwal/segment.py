"""WAL segments: the files that hold the log, their numbers and their names.

    00000002 0000000A 000000FE          24 hex digits, upper case
    TLI      log      seg               segno = log * (4 GiB / wal_seg_size) + seg


A name does not contain the segment size, so every conversion takes it as a parameter. `.partial`
marks the last, unfinished segment of a timeline that ended. Source: Postgres
`access/xlog_internal.h`.
"""

from __future__ import annotations

from dataclasses import dataclass

from quorum_wal.pgwal.errors import SegmentNameError
from quorum_wal.pgwal.lsn import Lsn

WAL_SEG_SIZE_MIN = 1024 * 1024
WAL_SEG_SIZE_MAX = 1024 * 1024 * 1024

_BYTES_PER_LOG = 1 << 32
_NAME_DIGITS = frozenset("0123456789ABCDEF")
_PARTIAL_SUFFIX = ".partial"


@dataclass(frozen=True, slots=True)
class SegmentName:
    """The parts of a file name; `partial` is its suffix."""

    tli: int
    segno: int
    partial: bool = False


def check_wal_seg_size(wal_seg_size: int) -> None:
    """Raises SegmentNameError unless initdb accepts the size."""
    is_power_of_two = wal_seg_size > 0 and wal_seg_size & (wal_seg_size - 1) == 0
    if not is_power_of_two or not WAL_SEG_SIZE_MIN <= wal_seg_size <= WAL_SEG_SIZE_MAX:
        raise SegmentNameError(
            f"invalid WAL segment size {wal_seg_size}: "
            "expected a power of two between 1 MiB and 1 GiB, in bytes"
        )


def segno_of(lsn: int, wal_seg_size: int) -> int:
    """The number of the segment that holds the byte at `lsn`."""
    return lsn // wal_seg_size


def segment_start_lsn(segno: int, wal_seg_size: int) -> Lsn:
    """The position of a segment's first byte."""
    return Lsn(segno * wal_seg_size)


def format_segment_name(tli: int, segno: int, wal_seg_size: int, *, partial: bool = False) -> str:
    """`format_segment_name(1, 0xAFE, 16 MiB) == "000000010000000A000000FE"`."""
    check_wal_seg_size(wal_seg_size)
    log, seg = divmod(segno, _BYTES_PER_LOG // wal_seg_size)
    return f"{tli:08X}{log:08X}{seg:08X}{_PARTIAL_SUFFIX if partial else ''}"


def parse_segment_name(name: str, wal_seg_size: int) -> SegmentName:
    """The inverse of format_segment_name. Raises SegmentNameError."""
    check_wal_seg_size(wal_seg_size)
    digits = name.removesuffix(_PARTIAL_SUFFIX)
    if len(digits) != 24 or not _NAME_DIGITS.issuperset(digits):
        raise SegmentNameError(
            f'invalid WAL segment name "{name}": expected 24 upper-case hex digits'
        )
    tli, log, seg = (int(digits[at : at + 8], 16) for at in (0, 8, 16))
    segments_per_log = _BYTES_PER_LOG // wal_seg_size
    if seg >= segments_per_log:
        raise SegmentNameError(
            f'invalid WAL segment name "{name}": with segments of {wal_seg_size} bytes '
            f"the last 8 digits are at most {segments_per_log - 1:08X}"
        )
    return SegmentName(tli, log * segments_per_log + seg, partial=digits != name)
