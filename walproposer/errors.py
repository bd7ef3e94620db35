"""Errors of `walproposer`.

WalProposerError         one sentence for the user, a hint, an exit code
|-- Unreachable          no server answers at an address, or it answered that it is unavailable
|-- Refusal              the parts do not match; a retry will not help
|-- CommitsWait          commits wait that no quorum has, and the command would release them
|-- Fenced               another proposer took the timeline over
`-- PrimaryLost          the replication stream ended; a new incarnation may attach again
"""

from __future__ import annotations


class WalProposerError(Exception):
    """`sqlstate` is that of the server, if a server refused."""

    def __init__(self, message: str, *, hint: str = "", sqlstate: str = "") -> None:
        super().__init__(message)
        self.hint = hint
        self.sqlstate = sqlstate


class Unreachable(WalProposerError):
    """Temporary; the caller decides whether to retry."""


class Refusal(WalProposerError):
    """Permanent; a retry does not help."""


class CommitsWait(WalProposerError):
    """Only the user can decide to release the commits."""


class Fenced(WalProposerError):
    """This process must end: it can never acknowledge a commit again."""


class PrimaryLost(WalProposerError):
    """`orderly` if the primary ended the copy (COPY 0), because it is shutting down."""

    def __init__(self, message: str, *, orderly: bool = False) -> None:
        super().__init__(message)
        self.orderly = orderly
