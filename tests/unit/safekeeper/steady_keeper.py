"""The state and answers of a timeline, to compare the steady path with the general one."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy, deepcopy
from hashlib import sha256
from pathlib import Path
from typing import Any

from msgspec import structs
from wal_log import START_LSN

from quorum_wal.consensus.codec import decode_proposer_message, encode
from quorum_wal.consensus.messages import NO_FEEDBACK, Append, HotStandbyFeedback
from quorum_wal.safekeeper.acceptor import Acceptor
from quorum_wal.safekeeper.named_ends import NamedEnds
from quorum_wal.safekeeper.steady_path import SteadyPath
from quorum_wal.safekeeper.timeline import Timeline


class NoSteadyPath(SteadyPath):
    """In place of `SteadyPath`, the general path takes everything."""

    @classmethod
    def of(cls, timeline: Timeline, acceptor: Acceptor | None) -> SteadyPath | None:
        return None


class Standby:
    """A replica that sends feedback and reads nothing."""

    suffix = None
    sent_lsn = 0

    def __init__(self, timeline: Timeline) -> None:
        self.feedback = NO_FEEDBACK
        self._replicas = timeline.replicas
        self._replicas.add(self)

    def describe(self) -> dict[str, Any]:
        return {}

    def send_feedback(self, number: int) -> None:
        self.feedback = HotStandbyFeedback(1, 2, 3, 4, number)
        self._replicas.combine_feedback()


def find_hole(timeline: Timeline) -> None:
    """Below the log, where no file is moved; or it is repaired, if it was found before."""
    if timeline.holes:
        timeline.holes.close(timeline.store, 0)
    else:
        timeline.holes.add(timeline.store, 0, "it is missing")
    timeline.holes_changed()


def changed(payload: bytes, **deltas: int) -> bytes:
    """An Append with other positions."""
    message = decode_proposer_message(payload)
    assert isinstance(message, Append)
    fields = {name: max(0, getattr(message, name) + delta) for name, delta in deltas.items()}
    return encode(structs.replace(message, **fields))


def ballot(payload: bytes, term: int) -> bytes:
    """A message of another ballot."""
    return payload[:5] + term.to_bytes(8, "big") + payload[13:]


#: Reasons why an Append is not just the next bytes of the log.
ODDITIES: dict[str, Callable[[bytes], bytes]] = {
    "of a lower ballot": lambda payload: ballot(payload, 0),
    "of a greater ballot": lambda payload: ballot(payload, 9),
    "of another generation": lambda payload: payload[:1] + b"\0\0\0\7" + payload[5:],
    "no message": lambda payload: b"?" + payload[1:],
    "cut off": lambda payload: payload[:40],
    "of no bytes": lambda _: b"",
    "begins later": lambda payload: changed(payload, begin_lsn=8, end_lsn=8),
    "boundary behind its end": lambda payload: changed(payload, record_end_lsn=1 << 40),
    "commits": lambda payload: changed(payload, commit_lsn=START_LSN + 5000),
    "commits all": lambda payload: changed(payload, commit_lsn=1 << 40),
    "truncates": lambda payload: changed(payload, truncate_lsn=START_LSN + 100),
}


def state_of(timeline: Timeline) -> dict[str, Any]:
    """Of the acceptor after it has received the steady path's result."""
    acceptor, end_lsn = copy(timeline.acceptor), timeline.store.end_lsn
    streaming = timeline.streaming
    steady = timeline.steady_path(streaming.number) if streaming is not None else None
    if steady is not None:
        end_lsn = steady.written_lsn
        if steady.has_taken and acceptor is not None:
            steady.hand_over(acceptor)
    return {
        **({name: plain(value) for name, value in vars(acceptor).items()} if acceptor else {}),
        "positions": timeline.positions,
        "state": timeline.state,
        "end_lsn": end_lsn,
    }


def plain(value: object) -> object:
    """A value that can be compared, and does not change later."""
    return deepcopy(vars(value)) if isinstance(value, NamedEnds) else value


def files_of(timeline: Timeline, folder: Path) -> dict[str, str]:
    """The checksum of each file: pytest would print megabytes for minutes."""
    timeline.close("the test goes on")
    return {
        str(path.relative_to(folder)): sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }
