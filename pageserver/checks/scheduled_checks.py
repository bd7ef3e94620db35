"""Periodic checks of a server's pages, run by a pageserver.

    every `seconds`:  `pages` random pages, and those that were damaged in the last round
                      --> status, /healthz, metrics, one log line for each new damage

This is the only connection of a pageserver to a server, and is optional. Each round reads the WAL
after the newest cut once. The status reports a server that does not answer; only damage makes the
pageserver unhealthy. Law: values that other threads read are replaced, never modified.
"""

from __future__ import annotations

import secrets
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import structlog

from quorum_wal.backup.archived_wal import ArchivedWalSource
from quorum_wal.backup.errors import BackupError
from quorum_wal.backup.safekeeper_wal import SafekeeperWalSource
from quorum_wal.backup.wal_source import WalSource
from quorum_wal.consensus.ids import TimelineId
from quorum_wal.objectstore.archive import TimelineArchive
from quorum_wal.objectstore.errors import ObjectStoreError
from quorum_wal.objectstore.store import ObjectStore
from quorum_wal.pageserver.checks.check_report import CheckReport, DamagedPage, Skip
from quorum_wal.pageserver.checks.server_check import ServerCheck, check_server
from quorum_wal.pageserver.checks.server_pages import ServerPages
from quorum_wal.pageserver.errors import PageserverError
from quorum_wal.pageserver.ingest.ingest import IngestConfig
from quorum_wal.pageserver.pitr.page_at import PageReader
from quorum_wal.pageserver.pitr.restore_points import point_opener
from quorum_wal.pg_server.errors import PgServerError
from quorum_wal.pgwal.lsn import format_lsn

CHECK_SECONDS = 3600.0
CHECK_PAGES = 1000
CHECKS_FOLDER = "checks"
STOP_SECONDS = 5.0

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class CheckSchedule:
    """`dsn`: a primary or a standby, with a superuser."""

    dsn: str
    seconds: float = CHECK_SECONDS
    pages: int = CHECK_PAGES


@dataclass(frozen=True, slots=True)
class ChecksState:
    """`pages`: number checked since the start. `skipped`: not checkable in the last round.
    `checked_at`: its end, by time.monotonic(). `problem`: why the last round failed."""

    timeline: TimelineId | None = None
    rounds: int = 0
    pages: int = 0
    damaged: tuple[DamagedPage, ...] = ()
    skipped: tuple[str, ...] = ()
    checked_at: float | None = None
    problem: str = ""


class ScheduledChecks(threading.Thread):
    """`timelines` returns the attached timelines. Works in a folder of `data_dir`."""

    def __init__(
        self,
        schedule: CheckSchedule,
        store: ObjectStore,
        ingest: IngestConfig,
        data_dir: Path,
        timelines: Callable[[], Iterable[TimelineId]],
    ) -> None:
        super().__init__(name="page checks", daemon=True)
        self._schedule = schedule
        self._store = store
        self._ingest = ingest
        self._folder = data_dir / CHECKS_FOLDER
        self._timelines = timelines
        self._stopping = threading.Event()
        self._rng = Random(secrets.randbits(64))
        self.state = ChecksState()

    def stop(self) -> None:
        """A round that is still running is abandoned when the process ends."""
        self._stopping.set()
        self.join(STOP_SECONDS)

    def run(self) -> None:
        while not self._stopping.wait(self._schedule.seconds):
            try:
                self._round()
            except (PageserverError, ObjectStoreError, BackupError, PgServerError, OSError) as e:
                self._failed(" ".join(str(e).split()))

    def _failed(self, words: str) -> None:
        if words != self.state.problem:
            log.warning("could not check the pages of the server", reason=words)
        self.state = replace(self.state, problem=words)

    def _round(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        with (
            ServerPages.connect(self._schedule.dsn) as server,
            tempfile.TemporaryDirectory(prefix="round-", dir=self._folder) as work,
        ):
            archive = self._archive_of(server)
            report = self._check(server, archive, Path(work))
        known = {(each.fork, each.block) for each in self.state.damaged}
        damaged = _still_damaged(self.state.damaged, report)
        for each in damaged:
            if (each.fork, each.block) not in known:
                log.error(
                    "a page of the server is damaged", path=each.path, block=each.block,
                    database=each.database, relation=each.relation, reason=each.reason,
                    hint=f"Use sk page get {each.path} {each.block} to get the undamaged page.",
                )  # fmt: skip
        self.state = ChecksState(
            archive.timeline,
            self.state.rounds + 1,
            self.state.pages + report.checked,
            damaged,
            tuple(report.skips()),
            time.monotonic(),
            "" if report.checked else "no page was checked",
        )

    def _archive_of(self, server: ServerPages) -> TimelineArchive:
        for timeline in list(self._timelines()):
            archive = TimelineArchive.open(self._store, timeline)
            if archive.facts.system_id == server.system_id:
                check_server(server, server.system_id, archive.newest_history())
                return archive
        raise PageserverError(
            f"the server has system identifier {server.system_id}, but no timeline of that cluster "
            "is attached to this pageserver"
        )

    def _check(self, server: ServerPages, archive: TimelineArchive, work: Path) -> CheckReport:
        replay_dir = work / "server"
        replay_dir.mkdir()
        facts = archive.facts
        safekeepers = self._ingest.safekeepers_of(archive.timeline)
        sources: list[WalSource] = [
            ArchivedWalSource(lambda: archive),
            SafekeeperWalSource(safekeepers),
        ]
        reader = PageReader(replay_dir, self._ingest.server_of(facts.server.pg_major))
        check = ServerCheck(server, reader, facts.wal_seg_size)
        return check.run(
            point_opener(archive, sources, work),
            self._schedule.pages,
            self._rng,
            also=frozenset((each.fork, each.block) for each in self.state.damaged),
        )

    # ---- status

    def status(self) -> dict[str, Any]:
        """The JSON of the checks."""
        state = self.state
        return {
            "timeline": str(state.timeline) if state.timeline else None,
            "rounds": state.rounds,
            "pages": state.pages,
            "damaged": [
                {
                    "path": each.path,
                    "block": each.block,
                    "database": each.database,
                    "relation": each.relation,
                    "reason": each.reason,
                    "at_lsn": format_lsn(each.at_lsn),
                }
                for each in state.damaged
            ],
            "not_checkable": list(state.skipped),
            "seconds_ago": (
                round(time.monotonic() - state.checked_at, 1)
                if state.checked_at is not None
                else None
            ),
            "problem": state.problem,
        }

    def damage(self, timeline: TimelineId) -> str:
        """The damage of that timeline's server as a sentence, or "" if none is known."""
        state = self.state
        if state.timeline != timeline or not state.damaged:
            return ""
        more = f", and {len(state.damaged) - 1} more" if len(state.damaged) > 1 else ""
        return f"the server has a damaged page: {state.damaged[0]}{more}"


def _still_damaged(known: Iterable[DamagedPage], report: CheckReport) -> tuple[DamagedPage, ...]:
    """Damage found in this round, and known damage of pages that it could not judge."""
    found = {(each.fork, each.block): each for each in report.damaged}
    for each in known:
        key = each.fork, each.block
        is_locked = report.skipped[Skip.LOCKED] > 0 and key not in report.again
        if key in report.unchecked or is_locked:
            found.setdefault(key, each)
    return tuple(found.values())
