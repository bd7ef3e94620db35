"""JOIN_TIMELINE and LEAVE_TIMELINE: a safekeeper becomes a learner, or deletes its WAL.

This decides where a learner's log begins: as late as possible, but with all WAL that no archive
has. So replacing every member, one after the other, never loses unarchived WAL. Each function
blocks, and raises WalProposerError.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from quorum_wal.consensus.ids import TimelineId
from quorum_wal.consensus.join import TimelineOffer
from quorum_wal.consensus.membership import Member, Membership
from quorum_wal.pgwal.lsn import Lsn
from quorum_wal.walproposer.errors import Refusal
from quorum_wal.walproposer.safekeeper_client import SafekeeperAddress, SafekeeperClient
from quorum_wal.walproposer.timelines.survey import LATE_SECONDS, statuses_of, survey


def join(
    address: SafekeeperAddress,
    timeline: TimelineId,
    member: Member,
    offer: TimelineOffer,
    limit_lsn: int,
    members: Sequence[SafekeeperAddress],
) -> None:
    """Raises Refusal if another safekeeper answers there."""
    client = SafekeeperClient(address)
    _check_identity(client, member.id, member.instance)
    statuses = statuses_of(timeline, survey(members, LATE_SECONDS))
    seg_size = offer.server.wal_seg_size
    start_lsn = choose_start_lsn(limit_lsn, seg_size, statuses)
    client.join(timeline, offer.beginning_at(start_lsn))


def leave(
    address: SafekeeperAddress,
    timeline: TimelineId,
    safekeeper_id: int,
    instance: bytes,
    membership: Membership,
) -> None:
    """Law (D1): only when the membership without it is complete, on the disks of a quorum of its
    members; the caller has checked that. The safekeeper refuses a membership that names it, or that
    is less than its own. Raises Refusal if another safekeeper answers there."""
    client = SafekeeperClient(address)
    _check_identity(client, safekeeper_id, instance)
    client.leave(timeline, membership)


def _check_identity(client: SafekeeperClient, safekeeper_id: int, instance: bytes) -> None:
    """An address is only a hint. Raises Refusal."""
    identity = client.identify()
    found = (identity["safekeeper_id"], identity["instance"])
    if found != (str(safekeeper_id), instance.hex()):
        raise Refusal(
            f"safekeeper {found[0]} of instance {found[1]} answers at {client.address}, expected "
            f"{safekeeper_id} of instance {instance.hex()}"
        )


def choose_start_lsn(limit_lsn: int, seg_size: int, statuses: Sequence[Mapping[str, Any]]) -> int:
    """The start of the segment of `limit_lsn`, or of an earlier one, if the WAL between is not
    archived and one member has all of it. `statuses` are the members'."""
    highest = limit_lsn - limit_lsn % seg_size
    wanted = min((highest, *(_archived_lsn(status) for status in statuses if status["archive"])))
    wanted -= wanted % seg_size
    whole = [s for s in statuses if int(Lsn.parse(s["flush_lsn"])) >= limit_lsn]
    oldest = min((_local_start(status, seg_size) for status in whole), default=highest)
    return min(highest, max(wanted, oldest))


def _archived_lsn(status: Mapping[str, Any]) -> int:
    return int(Lsn.parse(status["archive"]["archived_lsn"]))


def _local_start(status: Mapping[str, Any], seg_size: int) -> int:
    """The start of its first complete segment."""
    start_lsn = int(Lsn.parse(status["local_start_lsn"]))
    return -(-start_lsn // seg_size) * seg_size
