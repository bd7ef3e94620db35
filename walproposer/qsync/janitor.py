"""Decides what to do with a prepared transaction whose client has disconnected. Pure.

    its client disconnected orphan_grace      the quorum has it     the quorum surely lacks it
    ago, or the deadline passed               commit                roll back if the policy says so
    orphan_grace ago, with any client                               and the deadline has passed

Laws (docs/qsync.md): it commits only what the quorum has, and never rolls back what the quorum has.
If neither is certain, it leaves the transaction alone. A transaction of an older timeline has no
client, because its session ended with that server. Every elected log has it, so it is committed.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from quorum_wal.qsync.gid import Policy
from quorum_wal.walproposer.qsync.limbo_table import Entry


class Decision(Enum):
    COMMIT = "commit"
    ROLL_BACK = "roll back"
    LEAVE = "leave"


@dataclass(frozen=True, slots=True)
class Client:
    """The client of a transaction. `gone_ms` is None if it never connected, or is connected."""

    is_here: bool
    gone_ms: int | None = None


def decide(
    entry: Entry,
    client: Client,
    *,
    tli: int,
    commit_lsn: int,
    now_ms: int,
    deadline_ms: int,
    orphan_grace_ms: int,
) -> Decision:
    """`commit_lsn` is of a term whose verdicts count, on timeline `tli`. `deadline_ms` is that of
    the gid, by the clock of `now_ms`."""
    gid, is_of_here = entry.gid, entry.gid.tli == tli
    if is_of_here and not is_orphan(client, now_ms, deadline_ms, orphan_grace_ms):
        return Decision.LEAVE
    if commit_lsn >= entry.high_lsn:
        return Decision.COMMIT
    is_due = is_of_here and gid.policy is Policy.ROLLBACK and now_ms >= deadline_ms
    return Decision.ROLL_BACK if is_due and commit_lsn <= entry.low_lsn else Decision.LEAVE


def is_orphan(client: Client, now_ms: int, deadline_ms: int, orphan_grace_ms: int) -> bool:
    """Whether the client has left it: an open connection counts only until orphan_grace after the
    deadline."""
    since_ms = deadline_ms if client.gone_ms is None else client.gone_ms
    return now_ms >= since_ms + orphan_grace_ms
