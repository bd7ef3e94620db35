"""`PageserverService`: assembles a pageserver process and its HTTP port.

    process.py                   cores, their shells and the threads that ingest
    telemetry/status_server.py   the port: /status, /metrics, /healthz

Law: the port reads its values without a lock. They are replaced, never modified, so a page may be
slightly out of date but is always consistent.
"""

from __future__ import annotations

import fcntl
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog

from quorum_wal.consensus.ids import TimelineId
from quorum_wal.generations.protocol import GenerationService
from quorum_wal.objectstore.store import ObjectStore
from quorum_wal.pageserver.attached_timeline import AttachedTimeline
from quorum_wal.pageserver.attachments.attachment import Phase
from quorum_wal.pageserver.attachments.attachment_events import Mode
from quorum_wal.pageserver.attachments.attachment_shell import missing_text
from quorum_wal.pageserver.attachments.event_loop import EventLoop
from quorum_wal.pageserver.checks.scheduled_checks import CheckSchedule, ScheduledChecks
from quorum_wal.pageserver.config import ProcessConfig
from quorum_wal.pageserver.errors import PagesDeleted, PageserverError
from quorum_wal.pageserver.ingest.first_cut import first_cut_progress
from quorum_wal.pageserver.metrics import PageserverCollector
from quorum_wal.pageserver.process import PageserverProcess
from quorum_wal.pgwal.lsn import format_lsn
from quorum_wal.telemetry.status_server import HttpListener, Pages, StatusServer
from quorum_wal.telemetry.stop_signal import StopSignal
from quorum_wal.telemetry.watched_files import unusable_files

if TYPE_CHECKING:
    from quorum_wal.telemetry.page.page_view import WebPage

LOCK_FILE = "pageserver.lock"

log = structlog.get_logger()


class PageserverService:
    """run() serves until it is stopped. Closes `service`."""

    def __init__(
        self,
        config: ProcessConfig,
        store: ObjectStore,
        service: GenerationService,
        listener: HttpListener,
        schedule: CheckSchedule | None = None,
    ) -> None:
        self._config = config
        self._listener = listener
        self._service = service
        self._loop = EventLoop()
        self._process = PageserverProcess(config, self._loop, store, service)
        self._checks: ScheduledChecks | None = None
        if schedule is not None:
            self._checks = ScheduledChecks(
                schedule, store, config.ingest, config.data_dir,
                lambda: dict(self._process.attached),
            )  # fmt: skip
        self._archive = store.url
        self._address = ""

    def run(self, stopping: StopSignal) -> None:
        """Raises ListenError; PageserverError if the data directory is in use, or if this process
        is not the newest of its node."""
        with ExitStack() as stack:
            stack.callback(self._service.close)
            stack.enter_context(locked(self._config.data_dir))
            collector = PageserverCollector(self.status)
            pages = Pages(self.status, self.health, lambda: collector.registry, web=self._web_page)
            http = stack.enter_context(StatusServer(self._listener, pages))
            http.wait_started()
            self._address = f"{self._listener.host}:{http.port}"
            stopping.on_set(self._loop.end)
            self._loop.post(self._process.start)
            if self._checks is not None:
                self._checks.start()
                stack.callback(self._checks.stop)
            log.info("pageserver started", node_id=self._config.node_id, http=self._address)
            try:
                self._loop.run()
            finally:
                self._process.close()
            log.info("pageserver stopped")
        if self._process.end_reason is not None:
            message, hint = self._process.end_reason
            raise PageserverError(message, hint=hint)

    # ---- status

    def status(self) -> dict[str, Any]:
        """The JSON of /status."""
        process = self._process
        queue, validated_at = process.queue, process.validation.validated_at
        return {
            "version": version("quorum-wal"),
            "node_id": self._config.node_id,
            "node_generation": process.node_generation,
            "http": self._address,
            "archive": self._archive,
            "generation_service": process.service_problem or "ok",
            "validated_seconds_ago": (
                round(time.monotonic() - validated_at, 1) if validated_at else None
            ),
            "emergency": process.emergency_notice,
            "deletion_queue": (
                {"lists": queue.core.list_count, "unvalidated": queue.core.unvalidated_count}
                if queue is not None
                else None
            ),
            "deleted_objects": queue.deleted_keys if queue is not None else 0,
            "timelines": {
                str(timeline): timeline_status(attached, self._problem(timeline, attached))
                for timeline, attached in sorted(dict(process.attached).items())
            },
            "checks": self._checks.status() if self._checks is not None else None,
            "deleted_timelines": [*map(str, sorted(process.deleted))],
            "unusable_files": unusable_files(self._listener.files),
        }

    def health(self) -> str:
        """One line about the first problem found, or "" if there is none."""
        if not self._process.node_generation:
            return f"not registered: {self._process.service_problem}"
        for timeline, attached in dict(self._process.attached).items():
            found = self._problem(timeline, attached)
            if found:
                return f"timeline {timeline}: {found}"
        return ""

    def _web_page(self) -> WebPage:
        from quorum_wal.pageserver.web_page import (
            PageserverPage,  # when the page is served: a start is faster
        )

        return PageserverPage(self.status, self.health).web_page

    def _problem(self, timeline: TimelineId, attached: AttachedTimeline) -> str:
        damage = self._checks.damage(timeline) if self._checks is not None else ""
        return timeline_problem(attached) or damage


def timeline_problem(attached: AttachedTimeline) -> str:
    """The problem as a sentence, or "" if there is none."""
    core, ingest = attached.shell.core, attached.ingest
    if attached.shell.refusal:
        return attached.shell.refusal
    if core.phase is Phase.BROKEN:
        return attached.shell.alarms[-1]
    if core.is_deleted:
        return str(PagesDeleted(attached.timeline))
    if core.mode is Mode.STALE:
        return f"generation {core.suffix} is stale: another pageserver has the timeline"
    if ingest is not None and ingest.state.problem:
        return ingest.state.problem
    return missing_text(attached.shell.missing) if attached.shell.missing else ""


def timeline_status(attached: AttachedTimeline, problem: str) -> dict[str, Any]:
    """The status of one attached timeline."""
    core, ingest = attached.shell.core, attached.ingest
    index = core.index
    page: dict[str, Any] = {
        "suffix": str(core.suffix),
        "phase": core.phase.value,
        "mode": core.mode.value,
        "problem": problem,
        "alarms": attached.shell.alarms[-5:],
        "cuts": len(index.cuts),
        "layers": len(index.layers),
        "layer_bytes": sum(layer.size_bytes for layer in index.layers),
        "frame_bytes": sum(frame.size_bytes for frame in index.frames),
        "horizon_lsn": format_lsn(index.horizon_lsn),
        "projected_lsn": format_lsn(core.projected_lsn),
        "visible_lsn": format_lsn(core.visible_lsn),
    }
    if attached.shell.compaction is not None:
        compaction = attached.shell.compaction.state
        page |= {
            "compaction": compaction.phase,
            "compaction_problem": compaction.problem,
            "merges": compaction.merges,
            "merge_read_bytes": compaction.read_bytes,
            "merge_written_bytes": compaction.written_bytes,
            "merge_seconds": round(compaction.seconds, 3),
        }
        if compaction.dead_share is not None:
            page["dead_share"] = round(compaction.dead_share, 3)
    if ingest is not None:
        state = ingest.state
        page |= {
            "ingest": state.phase,
            "received_lsn": format_lsn(state.received_lsn),
            "cut_lsn": format_lsn(state.cut_lsn),
            "cut_at": state.cut_at.isoformat(" ") if state.cut_at else None,
            "epochs": state.epochs,
            "replayed_wal_bytes": state.wal_bytes,
            "replayed_pages": state.pages,
            "base_pages_read": state.needs_base,
            "replay_seconds": round(state.replay_seconds, 3),
        }
        if state.received_lsn and state.begin_lsn:  # else it is unknown
            page["lag_bytes"] = max(0, state.received_lsn - state.begin_lsn)
    if not index.cuts and not problem:
        page["first_cut"] = first_cut_progress(ingest.state if ingest is not None else None)
    return page


@contextmanager
def locked(data_dir: Path) -> Iterator[None]:
    """Locks `data_dir`, which is created if missing. Raises PageserverError if it is in use."""
    data_dir.mkdir(parents=True, exist_ok=True)
    with (data_dir / LOCK_FILE).open("wb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise PageserverError(
                f"{data_dir} is in use by another pageserver",
                hint="Give each pageserver a data directory and a node id of its own.",
            ) from error
        yield
