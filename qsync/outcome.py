"""What can become of a transaction. Pure values: none of them is an exception.

Committed    it is there, and stays: the quorum has it
RolledBack   it is not there, and never will be
Pending      not decided, and not visible; the janitor finishes it, `outcome(gid)` tells how
Refused      it was not prepared: nothing happened
"""

from __future__ import annotations

from dataclasses import dataclass

from qsync.gid import Gid


@dataclass(frozen=True, slots=True)
class Committed:
    """`lsn`: the quorum had the log up to here when this was known."""

    lsn: int


@dataclass(frozen=True, slots=True)
class RolledBack:
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Pending:
    """`lsn`: an upper bound of the end of PREPARE; 0 if its answer did not come."""

    gid: Gid
    lsn: int


@dataclass(frozen=True, slots=True)
class Refused:
    """`sqlstate` is the coordinator's: 53400 (too many transactions wait), 57P03 (no quorum, no
    coordinator leads)."""

    sqlstate: str
    reason: str
    hint: str = ""


Outcome = Committed | RolledBack | Pending | Refused
