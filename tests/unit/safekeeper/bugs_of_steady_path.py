"""Planted bugs of the steady path, and of the timeline that ends it."""

from __future__ import annotations

from typing import Any

import pytest

from quorum_wal.consensus.codec import APPEND_POSITIONS
from quorum_wal.pgwire.copy_stream import CopyStream
from quorum_wal.safekeeper import steady_path
from quorum_wal.safekeeper.steady_path import SteadyPath
from quorum_wal.safekeeper.timeline import Timeline


def without_a_flush(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SteadyPath, "_flush", lambda self: None)


def an_answer_before_the_flush(monkeypatch: pytest.MonkeyPatch) -> None:
    due: list[SteadyPath] = []
    flush, send = SteadyPath._flush, CopyStream.send_framed

    def answered(self: CopyStream, frame: bytes) -> bool:
        is_sent = send(self, frame)
        while due:
            flush(due.pop())
        return is_sent

    monkeypatch.setattr(SteadyPath, "_flush", lambda self: due.append(self))
    monkeypatch.setattr(CopyStream, "send_framed", answered)


def any_ballot_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steady_path, "is_at", lambda *_: True)


def a_stale_ballot_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only tag and generation of an Append's head are compared."""
    monkeypatch.setattr(
        steady_path, "is_at", lambda memory, at, head: memory[at : at + 5] == head[:5]
    )


def another_event_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """It continues with the acceptor's old state: a vote, another leader, a membership."""
    run = Timeline._run

    def kept(self: Timeline, events: Any) -> Any:
        before = self._steady
        try:
            return run(self, events)
        finally:
            if before is not None and self._steady is None and self.acceptor is not None:
                before.is_over, self._steady = False, before

    monkeypatch.setattr(Timeline, "_run", kept)


def commit_not_advanced(monkeypatch: pytest.MonkeyPatch) -> None:
    at = steady_path.positions_at
    monkeypatch.setattr(
        steady_path, "positions_at", lambda memory, lsn: (*at(memory, lsn)[:3], 0, 0)
    )


def record_boundary_taken_from_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    def at_the_end(memory: memoryview, at: int) -> tuple[int, ...]:
        begin_lsn, end_lsn, _, *rest = APPEND_POSITIONS.unpack_from(memory, at)
        return begin_lsn, end_lsn, end_lsn, *rest

    monkeypatch.setattr(steady_path, "positions_at", at_the_end)


def the_next_segment_in_the_open_file(monkeypatch: pytest.MonkeyPatch) -> None:
    of = SteadyPath.of.__func__  # type: ignore[attr-defined]

    def endless(cls: type[SteadyPath], timeline: Timeline, acceptor: Any) -> SteadyPath | None:
        made = of(cls, timeline, acceptor)
        if made is not None:
            made._file_end_lsn = 1 << 60
        return made

    monkeypatch.setattr(SteadyPath, "of", classmethod(endless))
