"""`Trace`: one line per event, for people; no work without a reader."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Sequence

from .clock import Clock

#: Fields without use for a reader: bytes, and what never changes in a run.
_NOISE = re.compile(
    r"(?:, )?(?:wal|timeline|server|feedback|hint|remote_consistent_lsn|instance"
    r"|generation|protocol_version|timeline_start_lsn|archived_lsn|local_start_lsn|active)="
    r"(?:b?'(?:[^'\\]|\\.)*'|b?\"(?:[^\"\\]|\\.)*\"|<memory[^>]*>|\w+\((?:[^()]|\([^()]*\))*\)|\w+)"
)
_BALLOT = re.compile(
    r"NodeId\(term=(\d+), proposer_uuid=(b'(?:[^'\\]|\\.)*'|b\"(?:[^\"\\]|\\.)*\")\)"
)
_STAMP = re.compile(r"Stamp\(author=([^,]+), generation=(\d+)\)")
_MEMBERSHIP = re.compile(
    r"Membership\(stamp=([^,]+), members=\(([\d, ]*)\), new_members=\(([\d, ]*)\)"
    r", roster=\((?:Member\([^)]*\)(?:, )?,?)*\)\)"
)
_LSN = re.compile(r"(\w*_?lsn|start_streaming_at)=(\d+)")


class Trace:
    """Calling it writes a line to `write`, unless that is None."""

    def __init__(self, write: Callable[[str], object] | None) -> None:
        self.clock = Clock()
        self._write = write

    def __call__(self, who: str, event: object, actions: Sequence[object], remark: str) -> None:
        if self._write is None:
            return
        ordered = "; ".join(map(short, actions))
        line = f"{self.clock.now_us / 1e6:9.6f}  {who:5} {short(event)}"
        line += f" -> {ordered}" if ordered else ""
        self._write(line + (f"  ({remark})" if remark else ""))


def short(value: object) -> str:
    """The value's repr, shortened: LSNs in hexadecimal, ballots as `term/first bytes`."""
    if isinstance(value, str) or type(value).__str__ is not object.__str__:
        return str(value)
    text = _STAMP.sub(r"\1/\2", _BALLOT.sub(_ballot, repr(value)))
    text = _NOISE.sub("", _MEMBERSHIP.sub(_membership, text))
    text = _LSN.sub(lambda m: f"{m[1]}={int(m[2]):X}", text).replace("(, ", "(")
    return text if len(text) < 400 else text[:400] + " .."


def _membership(match: re.Match[str]) -> str:
    members, new = (text.replace(",", "") for text in (match[2], match[3]))
    return f"[{match[1]} {members}{' + ' if new else ''}{new}]"


def _ballot(match: re.Match[str]) -> str:
    uuid = ast.literal_eval(match[2])
    return f"{match[1]}/{uuid[:4].hex()}"
