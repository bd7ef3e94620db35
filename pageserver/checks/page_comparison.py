"""One page of a server against the same page out of the WAL. Pure.

    server's page   LSN L ------+
    the WAL's page, as of X ----+--> same | damaged | moving | newer | unknown

Laws. A wrong checksum is damage, whatever the WAL says; so is an LSN behind the end of the WAL.
What differs otherwise is damage only if the WAL has said all that happened to the page when it was
read: no record of it lies between the beginning of the reading and X, and its LSN is not behind X.
(What changes a page without its LSN is masked, or takes bits from the visibility map, which is
legal.)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from pageserver.checks.page_mask import is_blank, masked
from pageserver.checks.visibility_bits import extra_bits
from pageserver.layers.fork import PAGE_BYTES, ForkKind
from pageserver.layers.page_header import PageHeader, page_checksum
from pageserver.layers.page_stack import ZERO_PAGE
from pgwal.lsn import format_lsn


class Verdict(Enum):
    """`MOVING`: read it again. `NEWER`: the WAL up to X does not have it yet."""

    SAME = "same"
    DAMAGED = "damaged"
    MOVING = "moving"
    NEWER = "newer"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Finding:
    """`reason` says what is damaged."""

    verdict: Verdict
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Expectation:
    """`content` None: there is no such page at `at_lsn`; `is_known`: but there is such a file.
    `is_moving`: a record of it begins between the reading and `at_lsn`. `end_lsn`: where the WAL of
    the server ends, if that is known. `are_right`: whether the server's heap page of that number
    allows these bits in the visibility map."""

    content: bytes | None
    at_lsn: int
    is_known: bool = True
    is_moving: bool = False
    end_lsn: int | None = None
    are_right: Callable[[int, int], bool] = lambda _, __: False


def damage_of_itself(page: bytes, block: int, *, has_checksum: bool) -> str:
    """What is wrong with it whatever the WAL says; "" when nothing is. Source: Postgres
    `PageIsVerified` in `bufpage.c`."""
    header = PageHeader.parse(page)
    if header.is_new:
        return "" if page == ZERO_PAGE else "it has no header, and is not empty"
    if has_checksum:
        expected = page_checksum(page, block)
        if header.checksum != expected:
            return f"its checksum is {header.checksum:04X}, expected {expected:04X}"
    return ""


def compare(
    kind: ForkKind, block: int, page: bytes, expected: Expectation, *, has_checksum: bool
) -> Finding:
    """`has_checksum`: it was read from a file of a cluster with checksums; in memory they are not
    kept."""
    if page == expected.content:
        return Finding(Verdict.SAME)
    if wrong := damage_of_itself(page, block, has_checksum=has_checksum):
        return Finding(Verdict.DAMAGED, wrong)
    lsn = PageHeader.parse(page).lsn
    if expected.end_lsn is not None and lsn > expected.end_lsn:
        return Finding(
            Verdict.DAMAGED,
            f"its LSN {format_lsn(lsn)} lies behind the end of the WAL, "
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
        return _judge_bits(block, page, expected)
    return Finding(Verdict.DAMAGED, _difference(block, page, expected))


def _judge_bits(block: int, page: bytes, expected: Expectation) -> Finding:
    """Of what the WAL has not set."""
    extra = extra_bits(block, page, expected.content or ZERO_PAGE)
    wrong = [heap_block for heap_block, bits in extra if not expected.are_right(heap_block, bits)]
    if not wrong:
        return Finding(Verdict.SAME)
    return Finding(
        Verdict.DAMAGED,
        f"it has bits of {len(wrong)} heap pages, the first is {wrong[0]}, that neither the WAL "
        "nor the heap page says",
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
        return f"the WAL up to {at} has no such page"
    count, first = differing(masked(page, block), masked(expected.content, block))
    return f"{count} bytes, from byte {first} on, are not what the WAL up to {at} says"


def differing(one: bytes, other: bytes) -> tuple[int, int]:
    """How many bytes of two pages differ, and the first of them; PAGE_BYTES when none does."""
    places = [at for at, (a, b) in enumerate(zip(one, other, strict=True)) if a != b]
    return len(places), places[0] if places else PAGE_BYTES
