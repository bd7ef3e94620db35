"""Rounds: how a leader shows that no other one had been elected when a round began. Pure.

    wanted -> a heartbeat to each that follows -> answers of a quorum, all made later -> answered

Answers do not say which message they are to, so two things show that one was made after a moment:

- its place: safekeepers answer each batch of messages once, so the n-th answer on a connection was
  made after the n-th message since Elected was taken, that one included. Where messages shared an
  answer the count is behind, until one shows that all WAL which was sent is there;
- its durable_lsn: WAL that nobody had been sent before can only have been taken since.

Law: whoever answers so had promised nobody more than us when he took the message, and a greater
NodeId must win a member of every quorum; so until then nobody had. Before the round, that is: what
came after it began proves nothing of now. Sources: Ongaro's thesis, 6.4 (ReadIndex).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from consensus.quorum import has_quorum
from walproposer.stream.events import Action, RoundAnswered
from walproposer.stream.progress import PeerState, Progress

if TYPE_CHECKING:
    from walproposer.stream.leader import Leader


@dataclass(frozen=True, slots=True)
class Mark:
    """Of a peer when it was asked: the number of its heartbeat, and the end of all WAL."""

    count: int
    end_lsn: int

    def is_passed_by(self, progress: Progress, durable_lsn: int) -> bool:
        return progress.taken_count >= self.count or durable_lsn > self.end_lsn


class Rounds:
    """One at a time: a round that were replaced by the next one would never be answered."""

    def __init__(self) -> None:
        #: Of the newest that has begun, from 1 on. Other threads may read it.
        self.number = 0
        self._is_wanted_again = False
        self._marks: dict[int, Mark] = {}
        self._proven: set[int] = set()
        self._is_open = False

    @property
    def is_open(self) -> bool:
        return self._is_open

    def want(self, leader: Leader) -> list[Action]:
        """One that begins from now on."""
        if self._is_open:
            self._is_wanted_again = True
            return []
        self.number += 1  # before anything is sent: who reads it meanwhile waits for the next one
        self._is_open, self._is_wanted_again = True, False
        self._marks, self._proven = {}, set()
        return self._ask(leader)

    def _ask(self, leader: Leader) -> list[Action]:
        """Those who follow and were not asked, on this connection, yet."""
        actions: list[Action] = []
        for p in leader.peers:
            mark = self._marks.get(p.peer)
            is_asked = mark is not None and mark.count <= p.sent_count
            if p.is_member and p.is_following and p.peer not in self._proven and not is_asked:
                self._marks[p.peer] = Mark(p.sent_count + 1, leader.window.end_lsn)
                actions.append(leader.heartbeat(p))
        return actions

    def heard(self, leader: Leader, progress: Progress, durable_lsn: int) -> list[Action]:
        """An answer to one of ours, which `progress` has counted."""
        mark = self._marks.get(progress.peer)
        if not self._is_open or mark is None or progress.peer in self._proven:
            return []
        if not mark.is_passed_by(progress, durable_lsn):
            if progress.state is PeerState.CHAINED:
                return []  # only WAL can show it
            return [leader.heartbeat(progress)]  # its answer brings the count one further
        self._proven.add(progress.peer)
        if not has_quorum(leader.membership, leader.ids_of(leader.peers[p] for p in self._proven)):
            return []
        self._is_open = False
        answered: list[Action] = [RoundAnswered(self.number)]
        return answered + self.want(leader) if self._is_wanted_again else answered

    def tick(self, leader: Leader) -> list[Action]:
        """Who came back since is asked, too."""
        return self._ask(leader) if self._is_open else []


def count_answer(progress: Progress, durable_lsn: int) -> None:
    """A follower's answer. One that is chained also answers for WAL that others sent him."""
    if progress.state is not PeerState.CHAINED:
        progress.taken_count += 1
        if durable_lsn >= progress.next_lsn:
            progress.taken_count = max(progress.taken_count, progress.wal_count)
