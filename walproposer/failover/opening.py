"""The end of a failover: what was prepared in a new primary is committed, then clients are let in.

    commit_lsn is on the primary's timeline -> RESOLVE -> OPEN

Every proposer does it when it leads, whoever promoted the server and however that was broken off;
on a primary that was there before nothing is left to do.

Laws: nothing is committed here before the quorum has the first byte of the server's timeline. Until
then the primary before may be given the term back, where the same transaction may be rolled back,
and somebody would have seen what is lost. Clients are let in when all of it is committed.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from threading import Event, Thread

import structlog

from walproposer.connection import refusing
from walproposer.errors import WalProposerError
from walproposer.failover.promotion import Step, next_of_attached
from walproposer.failover.standby import READ_ONLY, StandbyServer
from walproposer.qsync.resolve import commit_limbo

log = structlog.get_logger()

POLL_SECONDS = 0.01
RETRY_SECONDS = 1.0
BUSY_SECONDS_MAX = 10.0

_CANNOT_TELL = (
    "SELECT EXISTS (SELECT FROM pg_settings WHERE name = %s AND setting = 'on' AND source ="
    " 'configuration file') AND NOT rolsuper FROM pg_roles WHERE rolname = current_user"
)


class Opening:
    """Of one incarnation. `decides`: it leads, and the quorum has the server's timeline. `error`:
    why clients are still kept out, or prepared transactions are left; "" when nothing is wrong."""

    def __init__(self, server: StandbyServer, decides: Callable[[], bool]) -> None:
        self._server = server
        self._decides = decides
        self._ending = Event()
        self.is_done = False
        self.error = ""

    def start(self) -> None:
        """In a thread of its own, until all is done."""
        Thread(target=self._run, name="opening", daemon=True).start()

    def end(self) -> None:
        """The incarnation is over."""
        self._ending.set()

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

    def finish(self) -> None:
        """All that is left to do. Raises WalProposerError."""
        while (step := next_of_attached(self._server.read())) is not None:
            if self._ending.is_set() or not self._decides():
                return
            log.info(step.value, step=step.name.lower())
            if step is Step.RESOLVE:
                limbo = self._server.read_limbo()
                commit_limbo(self._server.address, limbo, BUSY_SECONDS_MAX)
            else:
                self._open()
        self._warn_of_read_only()

    def _open(self) -> None:
        for foreign in self._server.read_foreign():
            log.warning("a transaction of others stays prepared", prepared=str(foreign))
        self._server.open()

    def _warn_of_read_only(self) -> None:
        """A role that may not open it does not see either who has closed it."""
        doing = "could not see whether clients may write"
        with closing(self._server.address.connect()) as connection, refusing(doing):
            row = connection.execute(_CANNOT_TELL, (READ_ONLY,)).fetchone()
        if row is not None and row[0]:
            log.warning(
                "sessions are read-only, and our role may not see why",
                hint="If sk promote has made them so, as a superuser: ALTER SYSTEM RESET "
                f"{READ_ONLY}; SELECT pg_reload_conf();",
            )
