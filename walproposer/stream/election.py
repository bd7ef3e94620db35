"""Decisions of an election as plain functions: the donor, and whether the primary matches. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from quorum_wal.consensus.ids import NodeId
from quorum_wal.consensus.messages import VoteResponse
from quorum_wal.consensus.tli_history import first_difference, last_switch_lsn
from quorum_wal.pgwal.lsn import format_lsn
from quorum_wal.walproposer.primary.primary import Primary
from quorum_wal.walproposer.stream.events import Outcome, Stop

# Equal ids, timelines and positions do not prove equal bytes: a machine restored from a snapshot
# writes different WAL on the same timeline. So this much of both logs is compared (law 3).
TAIL_BYTES_MAX = 1024 * 1024
# A log that ends with its segment may end with the zero padding of a segment switch, which proves
# nothing. Then the whole segment is compared, or this much of a very large one.
SEGMENT_TAIL_BYTES_MAX = 16 * 1024 * 1024


def choose_donor(votes: Mapping[int, VoteResponse]) -> int:
    """The peer with the greatest (last_log_node_id, flush_lsn): term first, never position first.

    Ties go to the lowest peer, so that an election is reproducible.
    """
    return max(votes, key=lambda peer: (votes[peer].last_log_node_id, votes[peer].flush_lsn, -peer))


def fenced(ours: NodeId, promised: NodeId, safekeeper_id: int | None) -> Stop:
    """Rule 1: a greater NodeId was seen. `safekeeper_id`: the member that has promised it; None: it
    is the author of a membership."""
    who = (
        f"safekeeper {safekeeper_id} has promised {promised}"
        if safekeeper_id is not None
        else f"the members were written by {promised}"
    )
    return Stop(
        Outcome.FENCED,
        f"{who}, greater than our {ours}",
        "Another proposer took over this timeline. Use its primary; 'sk status' shows it.",
    )


def fork_problem(primary: Primary, vote: VoteResponse) -> Stop | None:
    """Why this primary must not continue the donor's log, or None. `vote` is the donor's.

    A primary that forked below the end of the log would lose acknowledged commits.
    """
    end_lsn = vote.flush_lsn
    fork_lsn = first_difference(
        primary.tli_history, vote.tli_history, vote.timeline_start_lsn, end_lsn
    )
    if fork_lsn is not None:
        return Stop(
            Outcome.REFUSED,
            f"the primary (timeline {primary.tli_history.tli}) and the quorum's log (timeline "
            f"{vote.tli_history.tli_at(end_lsn)}) diverge at {format_lsn(fork_lsn)}, "
            f"but the quorum's log ends at {format_lsn(end_lsn)}",
            "This primary lacks acknowledged commits. Attach the primary that continued the log, "
            "or rebuild this one from it with pg_rewind or a base backup.",
        )
    return None


def behind_problem(primary_flush_lsn: int, end_lsn: int) -> Stop | None:
    """A primary whose WAL ends below the end of the log would lose acknowledged commits.

    `primary_flush_lsn` must have been read after the position of the log: until the election a
    predecessor may have added more WAL of the same primary.
    """
    if primary_flush_lsn >= end_lsn:
        return None
    return Stop(
        Outcome.REFUSED,
        f"the primary's WAL ends at {format_lsn(primary_flush_lsn)}, "
        f"but the quorum's log ends at {format_lsn(end_lsn)}",
        "This primary lacks acknowledged commits (an old backup or snapshot?). Start it as a "
        "standby of the safekeepers until it has replayed that position, then promote it.",
    )


def tail_begin_lsn(primary: Primary, vote: VoteResponse) -> int:
    """Where to begin the comparison: as much of the tail as both are certain to have."""
    end_lsn, seg_size = vote.flush_lsn, primary.server.wal_seg_size
    ends_with_segment = end_lsn % seg_size == 0
    if primary.slot_lsn == end_lsn and ends_with_segment:
        return end_lsn  # the slot has confirmed exactly this log, and holds no byte of it
    # A slot that holds too little is a new one, and this may be any primary. A primary that lacks
    # the segment of the last byte refuses the stream itself.
    held_lsn = min(primary.slot_lsn, end_lsn - 1)
    segment_bytes = min(seg_size, SEGMENT_TAIL_BYTES_MAX) if ends_with_segment else 0
    # The primary keeps the segment of its last switch only under the new timeline's name.
    switch_lsn = last_switch_lsn(primary.tli_history)
    begin_lsn = max(
        end_lsn - max(TAIL_BYTES_MAX, segment_bytes),
        vote.timeline_start_lsn,
        held_lsn - held_lsn % seg_size,
        switch_lsn - switch_lsn % seg_size if switch_lsn <= end_lsn else 0,
    )
    return min(begin_lsn, end_lsn)


def tail_problem(begin_lsn: int, ours: bytes, donors: bytes) -> Stop | None:
    """Compare the primary's bytes from `begin_lsn` on with the donor's, of equal length."""
    assert len(ours) == len(donors)
    if ours == donors:
        return None
    offset = next(i for i, (a, b) in enumerate(zip(ours, donors, strict=True)) if a != b)
    return Stop(
        Outcome.REFUSED,
        f"the primary's WAL differs from the quorum's log at {format_lsn(begin_lsn + offset)}, "
        f"below the log's end at {format_lsn(begin_lsn + len(donors))}",
        "The primary has the same timeline but other bytes: it was probably restored from a "
        "snapshot. Rebuild it from a base backup and the safekeepers' WAL.",
    )
