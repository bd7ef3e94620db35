"""A proposer core that uses the steady path where it can, as its process does.

WalReceived   -> frames 'w' -> SteadyLeader.take_wal     -> the Append for each follower
PeerMessage   -> a frame    -> SteadyLeader.take_answers -> ReportFlushed
"""

from __future__ import annotations

from collections.abc import Callable

from quorum_wal.consensus.codec import decode_proposer_message, encode
from quorum_wal.consensus.messages import Append, AppendResponse
from quorum_wal.pgwire.replication import XLogData
from quorum_wal.walproposer.primary.primary import Primary
from quorum_wal.walproposer.stream.candidacy import Candidacy
from quorum_wal.walproposer.stream.events import (
    Action,
    Event,
    PeerMessage,
    ReportFlushed,
    Send,
    SteadyEnded,
    WalReceived,
)
from quorum_wal.walproposer.stream.proposer import Proposer
from quorum_wal.walproposer.stream.steady_leader import CHAINED, SteadyLeader
from tests.steady_batch import HEADER_BYTES, framed


class SteadyProposer(Proposer):
    """The leader is informed after each event (`is_patient` False) or when something is unusual."""

    def __init__(
        self,
        candidacy: Candidacy,
        primary: Primary | None,
        steady_class: type[SteadyLeader] = SteadyLeader,
        taken: Callable[[], None] = lambda: None,
        *,
        is_patient: bool = False,
    ) -> None:
        super().__init__(candidacy, primary)
        self._steady_class = steady_class
        self._steady: SteadyLeader | None = None
        self._taken = taken
        self._is_patient = is_patient

    def step(self, event: Event) -> list[Action]:
        actions: list[Action] | None = None
        if type(event) is WalReceived:
            actions = self._take_wal(event.begin_lsn, event.wal)
        elif type(event) is PeerMessage and type(event.message) is AppendResponse:
            actions = self._take_answer(event.peer, event.message)
        if actions is None or not self._is_patient:
            self.end_steady()
        if actions is None:
            return super().step(event)
        self._taken()
        return actions

    def end_steady(self) -> None:
        steady, self._steady = self._steady, None
        if steady is not None:
            assert super().step(SteadyEnded(steady)) == []

    def _begin_steady(self) -> SteadyLeader | None:
        if self._steady is None and self.streams:
            self._steady = self._steady_class.of(self.leader)
        return self._steady

    def _take_wal(self, begin_lsn: int, wal: bytes) -> list[Action] | None:
        steady = self._begin_steady()
        if steady is None:
            return None
        assert steady.next_lsn == begin_lsn
        frame = framed([XLogData(begin_lsn, begin_lsn + len(wal), 0, wal).encode()])
        if steady.take_wal(memoryview(frame), 0, len(frame)) < 0:
            return None
        append = _append_in(steady.frame[HEADER_BYTES : steady.frame_bytes])
        news = _append_in(steady.end_frame[HEADER_BYTES:]) if steady.has_chained else append
        return [
            Send(peer, news if follows == CHAINED else append)
            for peer, follows in enumerate(steady.follows)
            if follows
        ]

    def _take_answer(self, peer: int, response: AppendResponse) -> list[Action] | None:
        steady = self._begin_steady()
        if steady is None or not steady.follows[peer]:
            return None
        commit_lsn, frame = steady.commit_lsn, framed([encode(response)])
        if steady.take_answers(peer, memoryview(frame), 0, len(frame)) < 0:
            return None
        return [ReportFlushed(steady.commit_lsn)] if steady.commit_lsn > commit_lsn else []


def _append_in(payload: memoryview) -> Append:
    append = decode_proposer_message(bytes(payload))
    assert isinstance(append, Append)
    return append
