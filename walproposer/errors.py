"""Errors of `walproposer`.

WalProposerError         one sentence for the user, a hint, an exit code
|-- Unreachable          nobody answers at an address, or it answered that it cannot
|-- Refusal              the parts do not fit together; trying again will not help
|-- CommitsWait          commits wait that no quorum has, and this would let them return
|-- Fenced               another proposer took the timeline over
`-- PrimaryLost          the replication stream ended; a new incarnation may attach again
"""

from __future__ import annotations


class WalProposerError(Exception):
    """`sqlstate` is the server's, when it was a server that refused."""

    def __init__(self, message: str, *, hint: str = "", sqlstate: str = "") -> None:
        super().__init__(message)
        self.hint = hint
        self.sqlstate = sqlstate


class Unreachable(WalProposerError):
    """May pass; the caller decides whether to try again."""


class Refusal(WalProposerError):
    """Will not pass by itself."""


class CommitsWait(WalProposerError):
    """Only the user can decide that they return all the same."""


class Fenced(WalProposerError):
    """The end of this process: it can never acknowledge anything again."""


class PrimaryLost(WalProposerError):
    """`orderly` when the primary said goodbye (COPY 0): it is shutting down."""

    def __init__(self, message: str, *, orderly: bool = False) -> None:
        super().__init__(message)
        self.orderly = orderly
