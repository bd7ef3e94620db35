"""The end of a failover: the proposer commits what was prepared, then lets clients write.

    commit_lsn is on the primary's timeline -> RESOLVE -> OPEN

Every proposer does this when it leads, whatever promoted the server, and even if the promotion was
interrupted. On a primary that was not promoted there is nothing to do.

Laws: nothing is committed here before the quorum has the first byte of the server's timeline.
Before that, the previous primary may get the term back and roll back the same transaction, after a
client has seen it committed here. Clients can write only when everything is committed. Answers of
another server, even at the same address, are ignored (`PrimarySession`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

import psycopg
import structlog

from quorum_wal.consensus.tli_history import last_switch_lsn
from quorum_wal.walproposer.errors import WalProposerError
from quorum_wal.walproposer.failover.client_writes import (
    READ_ONLY,
    is_closed,
    may_be_closed,
    open_again,
)
from quorum_wal.walproposer.failover.promotion import Step, next_of_attached
from quorum_wal.walproposer.primary.prepared_transactions import (
    ours,
    prepared_before,
    read_prepared,
)
from quorum_wal.walproposer.primary.primary import Primary
from quorum_wal.walproposer.primary.primary_address import PrimaryAddress
from quorum_wal.walproposer.stream.incarnation import Incarnation

if TYPE_CHECKING:
    from quorum_wal.walproposer.qsync.primary_session import PrimarySession

log = structlog.get_logger()

POLL_SECONDS = 0.01
RETRY_SECONDS = 1.0
BUSY_SECONDS_MAX = 10.0


class FailoverCompletion:
    """The end of a failover, for one incarnation. `decides`: it leads, and the quorum has the
    primary's timeline. `error`: why clients cannot write yet, or prepared transactions are left; ""
    if there is no error."""

    def __init__(
        self, address: PrimaryAddress, primary: Primary, decides: Callable[[], bool]
    ) -> None:
        self._address = address
        self._primary, self._tli = primary, primary.tli_history.tli
        self._decides = decides
        self._ending = Event()
        self.is_done = False
        self.error = ""

    @classmethod
    def of(
        cls, address: PrimaryAddress, primary: Primary, incarnation: Incarnation
    ) -> FailoverCompletion:
        switch_lsn = last_switch_lsn(primary.tli_history)

        def decides() -> bool:
            return incarnation.is_leading and incarnation.commit_signal.commit_lsn > switch_lsn

        return cls(address, primary, decides)

    def start(self) -> None:
        """Run in a thread until everything is done."""
        Thread(target=self._run, name="failover", daemon=True).start()

    def end(self) -> None:
        """The incarnation has ended."""
        self._ending.set()

    @property
    def status(self) -> dict[str, Any]:
        """The part of /status."""
        return {"finished": self.is_done, "error": self.error or None}

    def _run(self) -> None:
        while not self._decides():
            if self._ending.wait(POLL_SECONDS):
                return
        while not self._ending.is_set():
            try:
                self.finish()
            except WalProposerError as error:
                self._failed(error)
                self._ending.wait(RETRY_SECONDS)
            else:
                self.error, self.is_done = "", True
                return

    def _failed(self, error: WalProposerError) -> None:
        reason = "; ".join(filter(None, (str(error), error.hint)))
        if reason != self.error:
            log.error("could not finish the failover", reason=str(error), hint=error.hint)
        self.error = reason

    # ---- the steps

    def finish(self) -> None:
        """Do all steps that are left. Raises WalProposerError."""
        while (step := self._next()) is not None:
            if self._ending.is_set() or not self._decides():
                return
            log.info(step.value, step=step.name.lower())
            self._do(step)

    def _next(self) -> Step | None:
        with self._new_session() as connection:
            prepared = read_prepared(connection)
            limbo = prepared_before(prepared, self._tli)
            closed = is_closed(connection)
            if not closed and may_be_closed(connection):
                self._warn_of_read_only()
        return next_of_attached(limbo_len=len(limbo), is_closed=closed)

    def _do(self, step: Step) -> None:
        with self._new_session() as connection:
            prepared = read_prepared(connection)
        if step is Step.RESOLVE:
            # Imported here, because a start with nothing to resolve then imports a tenth less.
            from quorum_wal.walproposer.qsync.resolve import commit_limbo

            commit_limbo(self._session, prepared_before(prepared, self._tli), BUSY_SECONDS_MAX)
            return
        for foreign in set(prepared) - set(ours(prepared)):
            log.warning("a transaction of another program stays prepared", prepared=str(foreign))
        open_again(self._new_session)

    def _warn_of_read_only(self) -> None:
        log.warning(
            "sessions are read-only, and the role may not see why",
            hint="If sk promote set this, as a superuser: ALTER SYSTEM RESET "
            f"{READ_ONLY}; SELECT pg_reload_conf();",
        )

    def _session(self, database: str = "") -> PrimarySession:
        # Imported here, because it imports the client of qsync, and commits already run when it is
        # needed.
        from quorum_wal.walproposer.qsync.primary_session import PrimarySession

        return PrimarySession(self._address, self._primary, database)

    @contextmanager
    def _new_session(self) -> Iterator[psycopg.Connection[Any]]:
        session = self._session()
        try:
            with session.opened("could not finish the failover") as connection:
                yield connection
        finally:
            session.close()
