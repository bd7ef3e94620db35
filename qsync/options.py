"""The options of a transaction. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Self

from quorum_wal.qsync.errors import UsageError
from quorum_wal.qsync.gid import Policy

OnTimeout = Literal["detach", "rollback"]
Confirm = Literal["durable", "visible"]
Wait = Literal["complete", "submit"]

TIMEOUT_SECONDS = 5.0
_CHOICES = {
    "on_timeout": ("detach", "rollback"),
    "confirm": ("durable", "visible"),
    "wait": ("complete", "submit"),
}


@dataclass(frozen=True, slots=True)
class Options:
    """Raises UsageError for an invalid value.

    timeout      seconds from the end of the block; a transaction that is undecided by then is
                 Pending
    on_timeout   detach: it stays prepared, and is committed when the quorum has it; rollback: it is
                 rolled back if that is still possible
    confirm      durable: the client reports Committed when the quorum also has the COMMIT PREPARED
                 record, or at the end of the timeout; `lsn` is then that of PREPARE. visible: it
                 reports Committed when the transaction is visible. The transaction survives a
                 failover in both cases; with visible, a new primary may not show it until clients
                 may write again
    wait         complete: the block ends with the outcome; submit: the block ends with PREPARE,
                 and `tx.handle` waits for the outcome
    """

    timeout: float = TIMEOUT_SECONDS
    on_timeout: OnTimeout = "detach"
    confirm: Confirm = "durable"
    wait: Wait = "complete"

    def __post_init__(self) -> None:
        for name, choices in _CHOICES.items():
            value = getattr(self, name)
            if value not in choices:
                raise UsageError(f"invalid {name} {value!r}: expected {' or '.join(choices)}")
        if not self.timeout > 0:
            raise UsageError(f"invalid timeout {self.timeout!r}: expected seconds, more than 0")

    def with_changes(
        self,
        timeout: float | None = None,
        on_timeout: OnTimeout | None = None,
        confirm: Confirm | None = None,
        wait: Wait | None = None,
    ) -> Self:
        """A copy with the given options changed."""
        if (timeout, on_timeout, confirm, wait) == (None, None, None, None):
            return self
        return type(self)(
            self.timeout if timeout is None else timeout,
            self.on_timeout if on_timeout is None else on_timeout,
            self.confirm if confirm is None else confirm,
            self.wait if wait is None else wait,
        )

    @property
    def policy(self) -> Policy:
        return Policy.ROLLBACK if self.on_timeout == "rollback" else Policy.DETACH
