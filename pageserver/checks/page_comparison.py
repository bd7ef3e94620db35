"""Compares one page of a server with the same page built from the WAL. Pure.

    server's page   LSN L ------+
    the WAL's page, as of X ----+--> same | damaged | moving | newer | unknown

Laws. A wrong checksum is damage, whatever the WAL contains. So is an LSN after the end of the WAL.
Any other difference is damage only if the WAL contains all changes of the page as read: no record
of the page lies between the start of the reading and X, and its LSN is not after X. Some
changes set no LSN: they are masked, or clear bits of the visibility map, which is valid.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from quorum_wal.pageserver.checks.page_mask import is_blank, masked
from quorum_wal.pageserver.checks.visibility_bits import extra_bits
from quorum_wal.pageserver.layers.fork import PAGE_BYTES, ForkKind
from quorum_wal.pageserver.layers.page_header import PageHeader, page_checksum
from quorum_wal.pageserver.layers.page_stack import ZERO_PAGE
from quorum_wal.pgwal.lsn import format_lsn


class Verdict(Enum):
    """`MOVING`: read the page again. `NEWER`: the change is after X."""

    SAME = "same"
    DAMAGED = "damaged"
    MOVING = "moving"
    NEWER = "newer"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Finding:
    """`reason` describes the damage."""

    verdict: Verdict
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Expectation:
    """`content` is None if the page does not exist at `at_lsn`; `is_known` says whether its file
    does. `is_moving`: a record of the page begins between the reading and `at_lsn`. `end_lsn`: the
    end of the server's WAL, if known. `are_bits_valid(heap_block, bits)` says whether the server's
    heap page allows these bits in the visibility map."""

    content: bytes | None
    at_lsn: int
    is_known: bool = True
    is_moving: bool = False
    end_lsn: int | None = None
    are_bits_valid: Callable[[int, int], bool] = lambda _, __: False


def page_damage(page: bytes, block: int, *, has_checksum: bool) -> str:
    """The damage of a page that is visible without the WAL, or "" if there is none. Source:
    Postgres `PageIsVerified` in `bufpage.c`."""
    header = PageHeader.parse(page)
    if header.is_new:
        return "" if page == ZERO_PAGE else "it has no page header, but is not all zeros"
    if has_checksum:
        expected = page_checksum(page, block)
        if header.checksum != expected:
            return f"its checksum is {header.checksum:04X}, expected {expected:04X}"
    return ""


def compare(
    kind: ForkKind, block: int, page: bytes, expected: Expectation, *, has_checksum: bool
) -> Finding:
    """`has_checksum`: the page was read from a file of a cluster with checksums. Pages in shared
    buffers have no valid checksum."""
    if page == expected.content:
        return Finding(Verdict.SAME)
    if wrong := page_damage(page, block, has_checksum=has_checksum):
        return Finding(Verdict.DAMAGED, wrong)
    lsn = PageHeader.parse(page).lsn
    if expected.end_lsn is not None and lsn > expected.end_lsn:
        return Finding(
            Verdict.DAMAGED,
            f"its LSN {format_lsn(lsn)} is after the end of the WAL, "
            f"{format_lsn(expected.end_lsn)}",
        )
    if _is_same(kind, block, page, expected.content):
        return Finding(Verdict.SAME)
    if expected.is_moving:
        return Finding(Verdict.MOVING)
    if lsn > expected.at_lsn:
        return Finding(Verdict.NEWER)
    if not expected.is_known:
        return Finding(Verdict.UNKNOWN)
    if kind is ForkKind.VM:
        return _compare_bits(block, page, expected)
    return Finding(Verdict.DAMAGED, _difference(block, page, expected))


def _compare_bits(block: int, page: bytes, expected: Expectation) -> Finding:
    """Judges visibility map bits that the WAL has not set."""
    extra = extra_bits(block, page, expected.content or ZERO_PAGE)
    wrong = [
        heap_block for heap_block, bits in extra if not expected.are_bits_valid(heap_block, bits)
    ]
    if not wrong:
        return Finding(Verdict.SAME)
    return Finding(
        Verdict.DAMAGED,
        f"it has visibility bits for {len(wrong)} heap pages, the first is block {wrong[0]}, "
        "that neither the WAL nor the heap page confirms",
    )


def _is_same(kind: ForkKind, block: int, page: bytes, expected: bytes | None) -> bool:
    if expected is None:
        expected = ZERO_PAGE
    if kind is ForkKind.VM:
        return not any(extra_bits(block, page, expected))
    if is_blank(page) and is_blank(expected):
        return True
    return masked(page, block) == masked(expected, block)


def _difference(block: int, page: bytes, expected: Expectation) -> str:
    at = format_lsn(expected.at_lsn)
    if expected.content is None:
        return f"the page does not exist in the WAL up to {at}"
    count, first = differing(masked(page, block), masked(expected.content, block))
    return f"{count} bytes, the first at byte {first}, differ from the WAL up to {at}"


def differing(one: bytes, other: bytes) -> tuple[int, int]:
    """The number of bytes that differ, and the first of them, or PAGE_BYTES if none differs."""
    places = [at for at, (a, b) in enumerate(zip(one, other, strict=True)) if a != b]
    return len(places), places[0] if places else PAGE_BYTES
