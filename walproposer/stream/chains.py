"""Daisy chains: which member takes the log from another member, and when a chain ends. Pure.

    proposer ==WAL==> 2 ==WAL==> 4          proposer --positions--> 4, which answers as usual

A chained member gets the end of the log instead of the WAL. Law: its answers count like any
other's, under the same ballot, so a chain may cost time, but no commit. A chained member is never
the source of another. A chain that is late, or whose source is late, ends with the connection: the
member then gets a new vote request, and the WAL directly from here. Both delays together are below
a second, so no member waits longer for a source that hangs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from quorum_wal.consensus.messages import Follow
from quorum_wal.walproposer.chain_rule import NO_CHAINS, ChainRule
from quorum_wal.walproposer.stream.events import Action, Send
from quorum_wal.walproposer.stream.progress import PeerState, Progress

if TYPE_CHECKING:
    from quorum_wal.walproposer.stream.leader import Leader

# A member is late if it lacks for this long what its source has flushed. A source is late if for
# this long it flushes no byte of what it lacks.
LATE_MS = 700
# A chain that ended is tried again after this time. The time doubles for each chain in a row that
# did not last this long, so a member that its source refuses does not lose its connection every
# time.
RETRY_MS = 30_000
RETRY_DOUBLINGS_MAX = 5


@dataclass(slots=True)
class Lateness:
    """Whether a position is reached within LATE_MS after it is set."""

    due_lsn: int = 0
    since_ms: int = 0

    def is_late(self, has_lsn: int, due_lsn: int, now_ms: int) -> bool:
        """`due_lsn`: the next position to reach."""
        if has_lsn >= self.due_lsn:
            self.due_lsn, self.since_ms = due_lsn, now_ms
        return has_lsn < self.due_lsn and now_ms - self.since_ms > LATE_MS


@dataclass(slots=True)
class Chain:
    """The chain of one peer: the place of its source, None while it has none, and the lateness of
    both."""

    source: int | None = None
    of_peer: Lateness = field(default_factory=Lateness)
    of_source: Lateness = field(default_factory=Lateness)
    begun_ms: int = 0
    retry_ms: int = 0
    #: Chains in a row that did not last.
    failures: int = 0

    def begin(self, progress: Progress, source: Progress, now_ms: int) -> None:
        self.source, self.begun_ms = source.peer, now_ms
        self.of_peer = Lateness(progress.durable_lsn, now_ms)
        self.of_source = Lateness(source.durable_lsn, now_ms)

    def end(self, now_ms: int) -> None:
        has_lasted = now_ms - self.begun_ms >= RETRY_MS
        self.failures = 0 if has_lasted else self.failures + 1
        doublings = min(max(self.failures - 1, 0), RETRY_DOUBLINGS_MAX)
        self.source, self.retry_ms = None, now_ms + (RETRY_MS << doublings)


class Chains:
    """The chains of one leader."""

    def __init__(self, rule: ChainRule) -> None:
        self._rule = rule
        #: By place, for the peers that were ever chained.
        self._chains: dict[int, Chain] = {}

    def source_of(self, progress: Progress) -> int | None:
        """The place of the peer that it takes its WAL from."""
        is_chained = progress.state is PeerState.CHAINED
        return self._chains[progress.peer].source if is_chained else None

    def tick(self, leader: Leader) -> list[Action]:
        if self._rule == NO_CHAINS:
            return []
        actions: list[Action] = []
        for p in leader.peers:
            chain = self._chains.get(p.peer)
            if p.state is PeerState.CHAINED:
                assert chain is not None
                actions += self._check(leader, p, chain)
            elif chain is not None and chain.source is not None:
                chain.end(leader.now_ms)
            if p.is_member and p.state is PeerState.STREAMING and p.is_whole(leader.window.end_lsn):
                actions += self._maybe_begin(leader, p)
        return actions

    def _check(self, leader: Leader, progress: Progress, chain: Chain) -> list[Action]:
        """If it or its source is late or lost, it reconnects."""
        assert chain.source is not None
        source, now_ms = leader.peers[chain.source], leader.now_ms
        # Any byte of what the source lacks is enough. During a bulk load the WAL should not be sent
        # twice.
        next_lsn = min(source.durable_lsn + 1, source.next_lsn)
        reason = ""
        if not _can_give(source):
            reason = f"its source, safekeeper {source.safekeeper_id}, no longer streams"
        elif chain.of_source.is_late(source.durable_lsn, next_lsn, now_ms):
            reason = f"its source, safekeeper {source.safekeeper_id}, is late"
        elif chain.of_peer.is_late(progress.durable_lsn, source.durable_lsn, now_ms):
            reason = f"late behind its source, safekeeper {source.safekeeper_id}"
        if not reason:
            return []
        chain.end(now_ms)
        return progress.close(reason, at_once=True)

    def _maybe_begin(self, leader: Leader, progress: Progress) -> list[Action]:
        chain = self._chains.setdefault(progress.peer, Chain())
        source = self._choose(leader, progress)
        if source is None or leader.now_ms < chain.retry_ms:
            return []
        chain.begin(progress, source, leader.now_ms)
        progress.state = PeerState.CHAINED
        member = leader.membership.member(source.safekeeper_id or 0)
        host, port = (member.host, member.port) if member.host else source.address
        follow = Follow(leader.membership.generation, leader.term.node_id, host, port)
        progress.sent_count += 1
        return [Send(progress.peer, follow), leader.heartbeat(progress)]

    def _choose(self, leader: Leader, progress: Progress) -> Progress | None:
        """The best source that streams; None if it is the peer itself, or there is none."""
        members = {p.safekeeper_id: p for p in leader.peers if p.is_member and _can_give(p)}
        wanted = self._rule.sources_of(progress.safekeeper_id or 0, leader.membership)
        source = next((members[i] for i in wanted if i in members), None)
        return source if source is not progress else None


def _can_give(source: Progress) -> bool:
    """It has processed our Elected, and gets the log from here."""
    return source.is_member and source.state is PeerState.STREAMING and source.answered
