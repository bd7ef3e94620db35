"""What pageservers have made durable as pages, and which of them is believed. Pure.

    suffix          whose word it is: the greater number is the newer pageserver (pageserver.md)
    horizon_lsn     it needs the WAL from there on; 0: it has not said, so it may need all

Laws. The greatest suffix ever seen is the one that counts: an older pageserver is refused, and what
it says is passed over. Within a suffix the horizon only moves up. A newer one begins with the
horizon of the one before, which its index is not behind, until it says its own; that may be lower,
but WAL that went meanwhile is gone. Being known only ever keeps WAL, no rule lets it go earlier.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from safekeeper.errors import SafekeeperError

OBJECT_IN_USE = "55006"
INVALID_PARAMETER = "22023"

_SUFFIX = re.compile("[0-9A-F]{16}")


@dataclass(frozen=True, slots=True)
class Trim:
    """`is_inherited`: the horizon is that of a pageserver before."""

    suffix: int
    horizon_lsn: int = 0
    is_inherited: bool = False

    @property
    def suffix_text(self) -> str:
        return format_suffix(self.suffix)


def parse_suffix(text: str) -> int:
    """16 hex digits in upper case. Raises SafekeeperError (22023)."""
    if _SUFFIX.fullmatch(text) is None:
        raise SafekeeperError(
            f'option "pageserver" is "{text[:40]}", expected a suffix of 16 hex digits',
            sqlstate=INVALID_PARAMETER,
        )
    return int(text, 16)


def format_suffix(suffix: int) -> str:
    return f"{suffix:016X}"


def introduced(known: Trim | None, suffix: int) -> Trim:
    """After a pageserver has said who it is. Raises SafekeeperError (55006) for an older one."""
    check_newest(known, suffix)
    if known is None:
        return Trim(suffix)
    if suffix == known.suffix:
        return known
    return Trim(suffix, known.horizon_lsn, is_inherited=True)


def reported(known: Trim, suffix: int, apply_lsn: int) -> Trim:
    """After the `apply` of a status update, below what was sent; 0 says nothing. Raises
    SafekeeperError (55006) for an older one."""
    check_newest(known, suffix)
    if not apply_lsn or (apply_lsn <= known.horizon_lsn and not known.is_inherited):
        return known
    return Trim(suffix, apply_lsn)


def check_newest(known: Trim | None, suffix: int) -> None:
    """Raises SafekeeperError (55006)."""
    if known is not None and suffix < known.suffix:
        raise SafekeeperError(
            f"pageserver {format_suffix(suffix)} is stale: {known.suffix_text} has the timeline",
            hint="A newer pageserver has the timeline. If the newer one is known by mistake, or "
            "the generation service has gone back: sk generations advance, or "
            "sk timeline forget-pageserver.",
            sqlstate=OBJECT_IN_USE,
        )
