"""The end of a failover: what was prepared in a new primary is committed, then clients are let in.

    commit_lsn is on the primary's timeline -> RESOLVE -> OPEN

Every proposer does it when it leads, whoever promoted the server and however that was broken off;
on a primary that was there before nothing is left to do.

Laws: nothing is committed here before the quorum has the first byte of the server's timeline. Until
then the primary before may be given the term back, where the same transaction may be rolled back,
and somebody would have seen what is lost. Clients are let in when all of it is committed. What
another server says, even behind the same address, counts for nothing (`PrimarySession`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

import psycopg
import structlog

from consensus.tli_history import last_switch_lsn
from walproposer.errors import WalProposerError
from walproposer.failover.client_writes import (
    READ_ONLY,
    is_closed,
    may_be_closed,
    open_again,
)
from walproposer.failover.promotion import Step, next_of_attached
from walproposer.primary.prepared_transactions import ours, prepared_before, read_prepared
from walproposer.primary.primary import Primary
from walproposer.primary.primary_address import PrimaryAddress
from walproposer.stream.incarnation import Incarnation

if TYPE_CHECKING:
    from walproposer.qsync.primary_session import PrimarySession

log = structlog.get_logger()

POLL_SECONDS = 0.01
RETRY_SECONDS = 1.0
BUSY_SECONDS_MAX = 10.0


class Opening:
    """Of one incarnation. `decides`: it leads, and the quorum has the primary's timeline. `error`:
    why clients are still kept out, or prepared transactions are left; "" when nothing is wrong."""

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
    def of(cls, address: PrimaryAddress, primary: Primary, incarnation: Incarnation) -> Opening:
        switch_lsn = last_switch_lsn(primary.tli_history)

        def decides() -> bool:
            return incarnation.is_leading and incarnation.commit_signal.commit_lsn > switch_lsn

        return cls(address, primary, decides)

    def start(self) -> None:
        """In a thread of its own, until all is done."""
        Thread(target=self._run, name="opening", daemon=True).start()

    def end(self) -> None:
        """The incarnation is over."""
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
            log.error("the failover is not finished", reason=str(error), hint=error.hint)
        self.error = reason

    # ---- what is left to do

    def finish(self) -> None:
        """All of it. Raises WalProposerError."""
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
            # Here, as a start that has nothing to resolve imports a tenth less.
            from walproposer.qsync.resolve import commit_limbo

            commit_limbo(self._session, prepared_before(prepared, self._tli), BUSY_SECONDS_MAX)
            return
        for foreign in set(prepared) - set(ours(prepared)):
            log.warning("a transaction of others stays prepared", prepared=str(foreign))
        open_again(self._new_session)

    def _warn_of_read_only(self) -> None:
        log.warning(
            "sessions are read-only, and our role may not see why",
            hint="If sk promote has made them so, as a superuser: ALTER SYSTEM RESET "
            f"{READ_ONLY}; SELECT pg_reload_conf();",
        )

    def _session(self, database: str = "") -> PrimarySession:
        # Here, as it brings the client of qsync along, and commits go already when it is needed.
        from walproposer.qsync.primary_session import PrimarySession

        return PrimarySession(self._address, self._primary, database)

    @contextmanager
    def _new_session(self) -> Iterator[psycopg.Connection[Any]]:
        session = self._session()
        try:
            with session.opened("could not finish the failover") as connection:
                yield connection
        finally:
            session.close()
