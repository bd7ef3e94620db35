"""`TrimReport`: what safekeepers are told of an attachment: whose the pages are, what WAL may go.

    START_REPLICATION PHYSICAL 0/5000000 TIMELINE 1 (pageserver '000007000300001A')
    status update 'r': write = flush = what was received, apply = visible_lsn

The stream of the WAL goes to one safekeeper. The others are visited, each once for each position,
by the same two messages and no WAL.

Law: only the visible position is told, and 0 before there is one. What a safekeeper has not heard
keeps its WAL longer, nothing else; so a visit that fails is made again, later.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing

import structlog

from backup.safekeeper_wal import Safekeeper
from generations.suffix import Suffix
from pageserver.errors import PageserverError
from pgclient.questions import identify_system
from pgclient.stream import ReplicationStream, start_copy
from pgwal.lsn import Lsn, format_lsn
from pgwire.commands import StartReplication, format_start_replication
from pgwire.replication import StandbyStatus, postgres_time_us

#: SQLSTATE of a safekeeper that has seen a newer pageserver (object_in_use).
STALE = "55006"
OPTION = "pageserver"
SILENCE_SECONDS = 20.0
RETRY_SECONDS = 60.0

log = structlog.get_logger()


class TrimReport:
    """Of one attachment. `visible_lsn` is asked anew each time, on any thread."""

    def __init__(
        self, suffix: Suffix, visible_lsn: Callable[[], int], safekeepers: Sequence[Safekeeper]
    ) -> None:
        self.suffix = suffix
        self.visible_lsn = visible_lsn
        self._safekeepers = list(safekeepers)
        self._told: dict[str, int] = {}
        self._failed_at: dict[str, float] = {}
        self._visiting: threading.Thread | None = None

    def start_command(self, begin_lsn: int, tli: int) -> str:
        options = {OPTION: str(self.suffix)}
        return format_start_replication(
            StartReplication(Lsn(begin_lsn), timeline=tli, options=options)
        )

    def status(self, received_lsn: int, visible_lsn: int) -> StandbyStatus:
        now_us = postgres_time_us(time.time_ns())
        return StandbyStatus(received_lsn, received_lsn, visible_lsn, now_us)

    def visit_due(self) -> None:
        """In a thread of its own, so that a host that is gone keeps nobody waiting: those that have
        not heard the present position. Called now and then, by one thread."""
        if self._visiting is not None and self._visiting.is_alive():
            return
        visible_lsn, now = self.visible_lsn(), time.monotonic()
        due = [
            each
            for each in self._safekeepers
            if self._told.get(each.name) != visible_lsn
            and now - self._failed_at.get(each.name, -RETRY_SECONDS) >= RETRY_SECONDS
        ]
        if due:
            self._visiting = threading.Thread(
                target=self._visit_all, args=(due, visible_lsn), name="trim report", daemon=True
            )
            self._visiting.start()

    def _visit_all(self, safekeepers: Sequence[Safekeeper], visible_lsn: int) -> None:
        for each in safekeepers:
            try:
                self._visit(each, visible_lsn)
            except Exception as error:  # of the connection, whatever it is: it is visited again
                self._failed_at[each.name] = time.monotonic()
                log.warning(
                    "safekeeper is not told which WAL may go",
                    safekeeper=each.name,
                    reason=" ".join(str(error).split()),
                )
            else:
                self._told[each.name] = visible_lsn
                self._failed_at.pop(each.name, None)

    def _visit(self, safekeeper: Safekeeper, visible_lsn: int) -> None:
        with closing(safekeeper.connect()) as connection:
            pgconn = connection.pgconn
            system = identify_system(pgconn)
            if system.flush_lsn < visible_lsn:
                raise PageserverError(f"it has WAL up to {format_lsn(system.flush_lsn)} only")
            if not start_copy(pgconn, self.start_command(system.flush_lsn, system.tli)):
                raise PageserverError(f"timeline {system.tli} has just ended")
            stream = ReplicationStream(pgconn, system.flush_lsn, SILENCE_SECONDS)
            stream.send_status(self.status(visible_lsn, visible_lsn))
            stream.end()
