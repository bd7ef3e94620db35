"""The WAL that pageservers have made durable as pages, and which pageserver counts. Pure.

    suffix          identifies the pageserver: the greater number is the newer one (pageserver.md)
    horizon_lsn     it needs the WAL from there on; 0: not reported, so it may need all WAL

Laws. Only the greatest suffix ever seen counts: an older pageserver is refused and its reports are
ignored. The horizon of a suffix only moves up. A newer pageserver begins with the horizon of the
one before, which its index has reached, until it reports its own. That may be lower, but WAL that
was removed meanwhile is lost. A pageserver can only hold WAL; no rule removes WAL earlier for it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from quorum_wal.safekeeper.errors import SafekeeperError

OBJECT_IN_USE = "55006"
INVALID_PARAMETER = "22023"

_SUFFIX = re.compile("[0-9A-F]{16}")


@dataclass(frozen=True, slots=True)
class Trim:
    """`is_inherited`: the horizon is the one of the pageserver before."""

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


def registered(known: Trim | None, suffix: int) -> Trim:
    """After a pageserver has sent its suffix. Raises SafekeeperError (55006) for an older one."""
    check_newest(known, suffix)
    if known is None:
        return Trim(suffix)
    if suffix == known.suffix:
        return known
    return Trim(suffix, known.horizon_lsn, is_inherited=True)


def reported(known: Trim, suffix: int, apply_lsn: int) -> Trim:
    """After the `apply` of a status update, at most the WAL sent; 0 means not reported. Raises
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
            hint="If the newer one was registered by mistake, or the generation service has gone "
            "back, run sk generations advance or sk timeline forget-pageserver.",
            sqlstate=OBJECT_IN_USE,
        )
