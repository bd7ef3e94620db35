"""The possible outcomes of a transaction. Pure values, no exceptions.

Committed    committed, durably: the quorum has it
RolledBack   rolled back, finally
Pending      undecided, and not visible; the janitor finishes it, `outcome(gid)` returns how
Refused      it was not prepared: nothing happened
"""

from __future__ import annotations

from dataclasses import dataclass

from quorum_wal.qsync.gid import Gid


@dataclass(frozen=True, slots=True)
class Committed:
    """`lsn`: the quorum had the log up to this position when the outcome was determined."""

    lsn: int


@dataclass(frozen=True, slots=True)
class RolledBack:
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Pending:
    """`lsn`: an upper bound of the end of PREPARE; 0 if the answer to PREPARE was lost."""

    gid: Gid
    lsn: int


@dataclass(frozen=True, slots=True)
class Refused:
    """`sqlstate` is that of the coordinator: 53400 (too many transactions wait), 57P03 (no quorum,
    or no coordinator leads)."""

    sqlstate: str
    reason: str
    hint: str = ""


Outcome = Committed | RolledBack | Pending | Refused
