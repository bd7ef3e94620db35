"""Rounds: how a leader proves that no other leader had been elected when a round began. Pure.

    wanted -> a heartbeat to each follower -> later answers of a quorum -> answered

An answer does not name its message. Two things prove that it was made after a given moment:

- its place: a safekeeper answers each batch of messages once, so it made the n-th answer on a
  connection after it had taken the n-th message since Elected, that one included. If messages share
  an answer the count is behind, until an answer shows that it has all WAL that was sent;
- its durable_lsn: WAL that was sent to no safekeeper before can only have been taken later.

Law: a safekeeper that answers so had promised nothing greater than our NodeId when it took the
message, and a greater NodeId needs a member of every quorum. So when the round began, no greater
NodeId had been elected. The round proves nothing about later moments. Sources: Ongaro's thesis, 6.4
(ReadIndex).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from quorum_wal.consensus.quorum import has_quorum
from quorum_wal.walproposer.stream.events import Action, RoundAnswered
from quorum_wal.walproposer.stream.progress import PeerState, Progress

if TYPE_CHECKING:
    from quorum_wal.walproposer.stream.leader import Leader


@dataclass(frozen=True, slots=True)
class Mark:
    """The state of a peer when it was asked: the number of its heartbeat, and the end of all
    WAL."""

    count: int
    end_lsn: int

    def is_passed_by(self, progress: Progress, durable_lsn: int) -> bool:
        return progress.taken_count >= self.count or durable_lsn > self.end_lsn


class Rounds:
    """One round at a time: a round that is replaced by the next one would never be answered."""

    def __init__(self) -> None:
        #: The number of the newest round that has begun, from 1 on. Other threads may read it.
        self.number = 0
        self._is_wanted_again = False
        self._marks: dict[int, Mark] = {}
        self._proven: set[int] = set()
        self._is_open = False

    @property
    def is_open(self) -> bool:
        return self._is_open

    def want(self, leader: Leader) -> list[Action]:
        """Begin a round, now or after the open one."""
        if self._is_open:
            self._is_wanted_again = True
            return []
        self.number += 1  # first: a thread that reads it from now on waits for the next round
        self._is_open, self._is_wanted_again = True, False
        self._marks, self._proven = {}, set()
        return self._ask(leader)

    def _ask(self, leader: Leader) -> list[Action]:
        """Send a heartbeat to followers that were not asked yet on this connection."""
        actions: list[Action] = []
        for p in leader.peers:
            mark = self._marks.get(p.peer)
            is_asked = mark is not None and mark.count <= p.sent_count
            if p.is_member and p.is_following and p.peer not in self._proven and not is_asked:
                self._marks[p.peer] = Mark(p.sent_count + 1, leader.window.end_lsn)
                actions.append(leader.heartbeat(p))
        return actions

    def heard(self, leader: Leader, progress: Progress, durable_lsn: int) -> list[Action]:
        """An answer to one of our messages, which `progress` has counted."""
        mark = self._marks.get(progress.peer)
        if not self._is_open or mark is None or progress.peer in self._proven:
            return []
        if not mark.is_passed_by(progress, durable_lsn):
            if progress.state is PeerState.CHAINED:
                return []  # only new WAL can show it
            return [leader.heartbeat(progress)]  # its answer advances the count by one
        self._proven.add(progress.peer)
        if not has_quorum(leader.membership, leader.ids_of(leader.peers[p] for p in self._proven)):
            return []
        self._is_open = False
        answered: list[Action] = [RoundAnswered(self.number)]
        return answered + self.want(leader) if self._is_wanted_again else answered

    def tick(self, leader: Leader) -> list[Action]:
        """Also ask peers that have reconnected."""
        return self._ask(leader) if self._is_open else []


def count_answer(progress: Progress, durable_lsn: int) -> None:
    """Count a follower's answer. A chained one also answers for WAL from its source."""
    if progress.state is not PeerState.CHAINED:
        progress.taken_count += 1
        if durable_lsn >= progress.next_lsn:
            progress.taken_count = max(progress.taken_count, progress.wal_count)
