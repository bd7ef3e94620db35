"""Timeline histories: which timeline wrote which part of the log; the text of `%08X.history` files.

    1<TAB>0/3000110<TAB>no recovery target specified

    2<TAB>0/50001A8<TAB>before 2026-11-21 10:00:00+00


Each line is one switch, with a blank line between two lines: the timeline that ended, the position
where it ended, and a reason, as free text. The timeline that the history belongs to has no line;
the file is named after it. Lines that begin with `#` are comments. Source: Postgres `timeline.c`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from quorum_wal.pgwal.errors import TimelineHistoryError
from quorum_wal.pgwal.lsn import Lsn, format_lsn

_LINE = re.compile(
    r"\s*(?P<tli>[0-9]{1,10})(?:\s+(?P<high>[0-9A-Fa-f]{1,8})/(?P<low>[0-9A-Fa-f]{1,8}))?"
)
_FILE_NAME = re.compile(r"(?P<tli>[0-9A-F]{8})\.history")

TLI_MAX = (1 << 32) - 1

_HINT_RANGE = f"Timelines are numbered from 1 to {TLI_MAX}."
_HINT_TLI = "Expected a numeric timeline ID."
_HINT_LSN = "Expected a write-ahead log switchpoint location."
_HINT_ORDER = "Timeline IDs must be in increasing sequence."
_HINT_CHILD = "Timeline IDs must be less than child timeline's ID."
_HINT_LSN_ORDER = "Switchpoint locations must not go back."


@dataclass(frozen=True, slots=True)
class TimelineSwitch:
    """Timeline `tli` ended at `switch_lsn`; it wrote the WAL below, from the switch before on."""

    tli: int
    switch_lsn: Lsn
    reason: str = ""


@dataclass(frozen=True, slots=True)
class TimelineHistory:
    """The ancestors of timeline `tli`, oldest first; timeline 1 has none.


    Invariant: ids increase and stay below `tli`, which has 32 bits; switch positions never
    decrease.
    """

    tli: int
    entries: tuple[TimelineSwitch, ...] = ()

    def __post_init__(self) -> None:
        if not 1 <= self.tli <= TLI_MAX:
            raise TimelineHistoryError(f"timeline {self.tli} does not exist", hint=_HINT_RANGE)
        for before, entry in zip(self.entries, self.entries[1:], strict=False):
            if entry.tli <= before.tli:
                raise _invalid(entry, _HINT_ORDER)
            if entry.switch_lsn < before.switch_lsn:
                raise _invalid(entry, _HINT_LSN_ORDER)
        if self.entries and self.entries[-1].tli >= self.tli:
            raise _invalid(self.entries[-1], _HINT_CHILD)

    @classmethod
    def parse(cls, tli: int, text: str) -> TimelineHistory:
        """The history of `tli` from the text of its file. Raises TimelineHistoryError."""
        lines = (line for line in text.split("\n") if line.strip())
        return cls(tli, tuple(_parse_line(line) for line in lines if line.lstrip()[0] != "#"))

    def format(self) -> str:
        """The text as Postgres writes it; empty for a timeline without ancestors."""
        return "\n".join(
            f"{entry.tli}\t{format_lsn(entry.switch_lsn)}\t{entry.reason}\n"
            for entry in self.entries
        )

    def tli_at(self, lsn: int) -> int:
        """The timeline that wrote the byte at `lsn`; a switch position belongs to the new one."""
        for entry in self.entries:
            if lsn < entry.switch_lsn:
                return entry.tli
        return self.tli

    def switch_lsn_of(self, tli: int) -> Lsn | None:
        """Where timeline `tli` ended; None for the history's own timeline, which has not ended.

        Raises TimelineHistoryError if `tli` is not part of the history.
        """
        if tli == self.tli:
            return None
        for entry in self.entries:
            if entry.tli == tli:
                return entry.switch_lsn
        raise TimelineHistoryError(
            f"requested timeline {tli} is not in the history of timeline {self.tli}",
            hint="It belongs to another branch, or does not exist.",
        )


def history_file_name(tli: int) -> str:
    """`history_file_name(2) == "00000002.history"`."""
    return f"{tli:08X}.history"


def parse_history_file_name(name: str) -> int:
    """The timeline of a history file name. Raises TimelineHistoryError."""
    match = _FILE_NAME.fullmatch(name)
    if match is None:
        raise TimelineHistoryError(
            f'invalid timeline history file name "{name}"',
            hint="Expected 8 upper-case hex digits and .history.",
        )
    return int(match["tli"], 16)


def _parse_line(line: str) -> TimelineSwitch:
    match = _LINE.match(line)
    if match is None:
        raise TimelineHistoryError(f"syntax error in history file: {line}", hint=_HINT_TLI)
    if match["high"] is None:
        raise TimelineHistoryError(f"syntax error in history file: {line}", hint=_HINT_LSN)
    switch_lsn = Lsn(int(match["high"], 16) << 32 | int(match["low"], 16))
    return TimelineSwitch(int(match["tli"]), switch_lsn, line[match.end() :].strip())


def _invalid(entry: TimelineSwitch, hint: str) -> TimelineHistoryError:
    return TimelineHistoryError(
        f"invalid data in history file: {entry.tli}\t{format_lsn(entry.switch_lsn)}", hint=hint
    )
