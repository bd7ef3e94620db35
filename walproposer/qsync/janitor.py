"""What to do about a prepared transaction whose client is gone. Pure.

    its client is gone for orphan_grace,      the quorum has it     the quorum surely lacks it
    or orphan_grace has passed since the      commit                roll back if the policy says so
    deadline, whoever is connected                                  and the deadline is over

Laws (docs/qsync.md): it commits only what the quorum has, and never rolls back what the quorum has.
Between the two it leaves the transaction alone. A transaction of an older timeline has no client:
its session ended with that server; and as every log that was elected has it, it is committed.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from qsync.gid import Policy
from walproposer.qsync.limbo_table import Entry


class Decision(Enum):
    COMMIT = "commit"
    ROLL_BACK = "roll back"
    LEAVE = "leave"


@dataclass(frozen=True, slots=True)
class Client:
    """What is known of a transaction's client: `gone_ms` is None if it never came, or is here."""

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
    """`commit_lsn` is of a term whose verdicts count, on timeline `tli`; `deadline_ms` is that of
    the gid, by the clock of `now_ms`."""
    gid, is_of_here = entry.gid, entry.gid.tli == tli
    if is_of_here and not is_orphan(client, now_ms, deadline_ms, orphan_grace_ms):
        return Decision.LEAVE
    if commit_lsn >= entry.high_lsn:
        return Decision.COMMIT
    is_due = is_of_here and gid.policy is Policy.ROLLBACK and now_ms >= deadline_ms
    return Decision.ROLL_BACK if is_due and commit_lsn <= entry.low_lsn else Decision.LEAVE


def is_orphan(client: Client, now_ms: int, deadline_ms: int, orphan_grace_ms: int) -> bool:
    """Whether its client leaves it alone: a connection that stays open does not mean more."""
    since_ms = deadline_ms if client.gone_ms is None else client.gone_ms
    return now_ms >= since_ms + orphan_grace_ms
