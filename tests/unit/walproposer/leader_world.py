"""A leader with three members and the log of its primary, for tests."""

from __future__ import annotations

from proposer_steps import (
    answer,
    greet,
    sent,
    vote,
)
from wal_log import PAGE_SIZE, WalLog

from quorum_wal.consensus.messages import Append
from quorum_wal.walproposer.stream.events import (
    Action,
    WalReceived,
)
from quorum_wal.walproposer.stream.proposer import Proposer
from quorum_wal.walproposer.stream.wal_window import WalWindow


class World:
    """A leader, and the log of its primary."""

    def __init__(self, proposer: Proposer, log: WalLog) -> None:
        self.proposer = proposer
        self.log = log

    def write(self, *lengths: int) -> list[Action]:
        """The primary writes records and sends each by itself."""
        actions = []
        for length in lengths:
            begin_lsn = self.log.lsn
            wal = self.log.append(f"R{len(self.log.ends)}", length)
            actions += self.proposer.step(WalReceived(begin_lsn, wal))
        return actions

    def write_in_pages(self, length: int) -> list[Action]:
        """One record, shipped as it is flushed: a page at a time."""
        begin_lsn = self.log.lsn
        self.log.append(f"R{len(self.log.ends)}", length)
        page_lsn = begin_lsn - begin_lsn % PAGE_SIZE + PAGE_SIZE
        actions = []
        for end_lsn in [*range(page_lsn, self.log.lsn, PAGE_SIZE), self.log.lsn]:
            wal = self.log.read(begin_lsn, end_lsn)
            actions += self.proposer.step(WalReceived(begin_lsn, wal))
            begin_lsn = end_lsn
        return actions

    @property
    def position(self) -> int:
        return self.log.lsn

    def answer(self, *peers: int, lsn: int | None = None) -> list[Action]:
        actions = []
        for peer in peers:
            actions += answer(self.proposer, peer, self.log.lsn if lsn is None else lsn)
        return actions

    def rejoin(self, peer: int, flush_lsn: int) -> list[Action]:
        """A new connection of a member whose log ends there, under our NodeId."""
        assert self.proposer.node_id is not None
        assert self.proposer.leader is not None
        greet(self.proposer, peer, self.proposer.node_id)
        terms = self.proposer.leader.term.term_history.clipped(flush_lsn)
        return vote(self.proposer, peer, flush_lsn, term_history=terms)


def grow(log: WalLog, records: int) -> list[int]:
    """Their ends."""
    for number in range(records):
        log.append(f"R{number}")
    return list(log.ends)


def appends_to(actions: list[Action], peer: int) -> list[Append]:
    return [message for to, message in sent(actions, Append) if to == peer]


# ---- rule 4: each from its own highest common point


def wal_of(window: WalWindow) -> bytes:
    """All that a peer at its beginning would be sent."""
    wal = bytearray()
    while (lsn := window.begin_lsn + len(wal)) < window.end_lsn:
        try:
            chunk = window.read(lsn)
        except IndexError:
            break  # it has positions, and no WAL
        if not chunk.wal:
            break
        wal += chunk.wal
    return bytes(wal)
