"""`TrimReport`: reports to safekeepers the owner of the pages, and which WAL it does not need.

    START_REPLICATION PHYSICAL 0/5000000 TIMELINE 1 (pageserver '000007000300001A')
    status update 'r': write = flush = what was received, apply = visible_lsn

One safekeeper sends the WAL stream. All others get the same two messages in a short connection
without WAL, for each new position and once a minute: a safekeeper that is killed may forget it.

Law: only the visible position is reported, or 0 before it is known. A safekeeper that does not know
the newest position keeps its WAL longer. So a failed report is only repeated later.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing

import structlog

from quorum_wal.backup.safekeeper_wal import Safekeeper
from quorum_wal.generations.suffix import Suffix
from quorum_wal.pageserver.errors import PageserverError
from quorum_wal.pgclient.questions import identify_system
from quorum_wal.pgclient.stream import ReplicationStream, start_copy
from quorum_wal.pgwal.lsn import Lsn, format_lsn
from quorum_wal.pgwire.commands import StartReplication, format_start_replication
from quorum_wal.pgwire.replication import StandbyStatus, postgres_time_us

#: SQLSTATE of a safekeeper that has seen a newer pageserver (object_in_use)
STALE = "55006"
OPTION = "pageserver"
SILENCE_SECONDS = 20.0
#: After a report, successful or not, of the same position.
REPEAT_SECONDS = 60.0

log = structlog.get_logger()


class TrimReport:
    """The reports of one attachment. `visible_lsn` is called for each report, on any thread."""

    def __init__(
        self, suffix: Suffix, visible_lsn: Callable[[], int], safekeepers: Sequence[Safekeeper]
    ) -> None:
        self.suffix = suffix
        self.visible_lsn = visible_lsn
        self._safekeepers = list(safekeepers)
        self._reported: dict[str, int] = {}
        self._tried_at: dict[str, float] = {}
        self._reporting: threading.Thread | None = None

    def start_command(self, begin_lsn: int, tli: int) -> str:
        options = {OPTION: str(self.suffix)}
        return format_start_replication(
            StartReplication(Lsn(begin_lsn), timeline=tli, options=options)
        )

    def status(self, received_lsn: int, visible_lsn: int) -> StandbyStatus:
        now_us = postgres_time_us(time.time_ns())
        return StandbyStatus(received_lsn, received_lsn, visible_lsn, now_us)

    def report_due(self) -> None:
        """Reports to the safekeepers that do not know the present position. Uses a thread, because
        a connection attempt may block. Called periodically, by one thread."""
        if self._reporting is not None and self._reporting.is_alive():
            return
        visible_lsn, now = self.visible_lsn(), time.monotonic()
        due = [each for each in self._safekeepers if self._is_due(each.name, visible_lsn, now)]
        if due:
            self._reporting = threading.Thread(
                target=self._report_all, args=(due, visible_lsn), name="trim report", daemon=True
            )
            self._reporting.start()

    def _is_due(self, name: str, visible_lsn: int, now: float) -> bool:
        if now - self._tried_at.get(name, -REPEAT_SECONDS) >= REPEAT_SECONDS:
            return True
        return self._reported.get(name, visible_lsn) != visible_lsn

    def _report_all(self, safekeepers: Sequence[Safekeeper], visible_lsn: int) -> None:
        for each in safekeepers:
            self._tried_at[each.name] = time.monotonic()
            try:
                self._report(each, visible_lsn)
            except Exception as error:  # any error of the connection: the report is repeated
                self._reported.pop(each.name, None)
                log.warning(
                    "could not report the trim position to the safekeeper",
                    safekeeper=each.name,
                    reason=" ".join(str(error).split()),
                )
            else:
                self._reported[each.name] = visible_lsn

    def _report(self, safekeeper: Safekeeper, visible_lsn: int) -> None:
        with closing(safekeeper.connect()) as connection:
            pgconn = connection.pgconn
            system = identify_system(pgconn)
            if system.flush_lsn < visible_lsn:
                raise PageserverError(f"its WAL ends at {format_lsn(system.flush_lsn)}")
            if not start_copy(pgconn, self.start_command(system.flush_lsn, system.tli)):
                raise PageserverError(f"timeline {system.tli} has ended")
            stream = ReplicationStream(pgconn, system.flush_lsn, SILENCE_SECONDS)
            stream.send_status(self.status(visible_lsn, visible_lsn))
            stream.end()
