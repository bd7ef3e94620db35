"""Safekeeper 4 on a real data directory, and the leader of the log that it joins."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from acceptor_steps import A, elected, history, vote_request
from joining_steps import (
    JOIN_LSN,
    SAFEKEEPER_ID,
    offer_of,
    without_four,
)
from new_timeline import TIMELINE
from timeline_on_disk import HOOKS, Pusher
from wal_log import START_LSN, WAL_SEG_SIZE, WalLog

from quorum_wal.consensus.join import TimelineOffer
from quorum_wal.consensus.membership import Membership
from quorum_wal.consensus.messages import VoteResponse
from quorum_wal.safekeeper.data_directory import DataDirectory
from quorum_wal.safekeeper.timeline import Timeline
from quorum_wal.safekeeper.timelines import Timelines


@contextmanager
def opened(path: Path) -> Iterator[Timelines]:
    """Timelines as between a start and an orderly end of the process."""
    directory = DataDirectory(path, SAFEKEEPER_ID)
    timelines = Timelines(directory, HOOKS)
    try:
        yield timelines
    finally:
        timelines.close()
        directory.close()


def files_of(timelines: Timelines) -> set[str]:
    folder = timelines.data_directory.folder(TIMELINE)
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def log_to_join() -> WalLog:
    """A log that extends well beyond the place where 4 joins."""
    log = WalLog()
    while log.lsn < JOIN_LSN + WAL_SEG_SIZE // 2:
        log.append(f"R{len(log.ends)}", 30_000)
    return log


class Leader(Pusher):
    """The leader of the log that 4 joins."""

    def lead_from(self, start_lsn: int, membership: Membership) -> Leader:
        self.timeline.connect(self)
        stamp = membership.stamp
        (vote,) = self.send(vote_request(self.node_id, self.number, stamp))
        assert isinstance(vote, VoteResponse)
        assert vote.granted
        assert vote.flush_lsn == start_lsn
        event = elected(self.node_id, start_lsn, self.terms, self.number, membership=membership)
        self.send(event)
        return self


def joined_leader(
    timelines: Timelines, offer: TimelineOffer | None = None, log: WalLog | None = None
) -> Leader:
    """4 has joined, and has all of the log."""
    offer = offer or offer_of()
    timelines.join(TIMELINE, offer)
    leader = Leader(
        timelines.get(TIMELINE),
        node_id=offer.node_id,
        log=log or log_to_join(),
        terms=history((offer.node_id, START_LSN)),
    )
    leader.lead_from(offer.start_lsn, offer.membership)
    leader.push(commit_lsn=leader.log.lsn, generation=offer.membership.generation)
    leader.push(commit_lsn=leader.log.lsn, generation=offer.membership.generation)
    return leader


def left(timelines: Timelines, membership: Membership | None = None) -> Timeline:
    timelines.leave(TIMELINE, membership or without_four(A, 1))
    return timelines.get(TIMELINE)
