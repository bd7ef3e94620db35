"""The safekeeper process: the one file that connects all parts.

Threads: one accepts connections, one per client, one saves positions, one does housekeeping (spare
segments, restarting stopped timelines, old WAL), one serves HTTP. Blocking threads measured better
than an event loop on the append path, where each message is four system calls: see
`docs/decisions/`.
"""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from errno import EAGAIN
from importlib.metadata import version
from itertools import count
from threading import Event, Lock, Thread
from typing import TYPE_CHECKING

import structlog
from prometheus_client import CollectorRegistry

from quorum_wal.access.access import Access
from quorum_wal.access.open_files import raise_limit
from quorum_wal.access.refusal_log import RefusalLog
from quorum_wal.consensus.errors import ConsensusError
from quorum_wal.pgwire.blocking import ServerConfig, Session, accept_connection
from quorum_wal.pgwire.errors import ConnectionRefused, WireError
from quorum_wal.safekeeper.command_roles import TRUSTED
from quorum_wal.safekeeper.config import SafekeeperConfig
from quorum_wal.safekeeper.data_directory import DataDirectory
from quorum_wal.safekeeper.errors import SafekeeperError
from quorum_wal.safekeeper.flush_times import FlushTimes
from quorum_wal.safekeeper.metrics import FlushCollector, StateCollector
from quorum_wal.safekeeper.open_files import files_needed
from quorum_wal.safekeeper.replica import stop_replicas
from quorum_wal.safekeeper.replication_server import select_timeline
from quorum_wal.safekeeper.scrub import Scrub
from quorum_wal.safekeeper.server_settings import FALLBACK_VERSION, version_text
from quorum_wal.safekeeper.session import ClientSession
from quorum_wal.safekeeper.start_check import StartCheck
from quorum_wal.safekeeper.startup_parameters import check_may_stream, check_startup_parameters
from quorum_wal.safekeeper.status import damage_of, timeline_numbers, timeline_status
from quorum_wal.safekeeper.tenant_limits import TenantConnections
from quorum_wal.safekeeper.timeline import Timeline
from quorum_wal.safekeeper.timeline_hooks import TimelineHooks
from quorum_wal.safekeeper.timeline_state import TimelineState
from quorum_wal.safekeeper.timelines import TimelinePolicy, Timelines
from quorum_wal.safekeeper.wal_removal import remove_old_wal
from quorum_wal.storage.compiled import how_it_runs
from quorum_wal.storage.errors import StorageError
from quorum_wal.telemetry.accept_trouble import RETRY_SECONDS, AcceptTrouble
from quorum_wal.telemetry.status_server import HttpListener, Pages, StatusServer, http_listener
from quorum_wal.telemetry.watched_files import unusable_files

if TYPE_CHECKING:
    from quorum_wal.safekeeper.archiving import Archiving
    from quorum_wal.telemetry.page.page_view import WebPage

log = structlog.get_logger()

HOUSEKEEPING_SECONDS = 5.0
# How often the flushed position is saved while it moves. Damage in WAL that was flushed since the
# last save cannot be distinguished from a torn tail after a power loss.
SAVE_POSITIONS_SECONDS = 1.0
LISTEN_BACKLOG = 64
# A thread that wakes up with WAL to write waits at most this long for a thread that computes.
SWITCH_INTERVAL_SECONDS = 0.0005
# How long an orderly stop waits for replicas to receive the committed WAL.
REPLICAS_STOP_SECONDS = 2.0
# How long it then waits for the threads of all clients.
STOP_TIMEOUT_SECONDS = 5.0


class Safekeeper:
    """Context manager: listens and serves inside; everything is flushed and saved at its end.

    `web` makes its page for browsers; None if there is no page.
    """

    def __init__(
        self, config: SafekeeperConfig, web: Callable[[Safekeeper], WebPage] | None = None
    ) -> None:
        self.config = config
        self._web = web
        self.version = version("quorum-wal")
        self._stack = ExitStack()
        self._stopping = Event()
        self._wake_housekeeper = Event()
        self._sessions: dict[int, Session] = {}
        self._threads: dict[int, Thread] = {}
        self._sessions_lock = Lock()
        self._numbers = count(1)
        self.refusals = RefusalLog()

    def __enter__(self) -> Safekeeper:
        """Raises SafekeeperError, AccessError, ListenError."""
        sys.setswitchinterval(SWITCH_INTERVAL_SECONDS)
        config = self.config
        with ExitStack() as stack:
            workers_max = config.archive.workers_max if config.archive is not None else 0
            limits = config.access.limits
            raise_limit(files_needed(limits, workers_max), limits)
            self.data_directory = DataDirectory(config.data_dir, config.safekeeper_id)
            stack.callback(self.data_directory.close)
            self.access = Access(config.access, [TenantConnections(config.tenant_limits)], TRUSTED)
            self._server_config = ServerConfig(
                server_version=self._server_version,
                on_authenticated=check_startup_parameters,
                on_cancel=self._cancel,
            )
            self._listener = self._listen()
            stack.callback(self._listener.close)
            registry = CollectorRegistry()
            flush_times = FlushTimes()
            registry.register(FlushCollector(flush_times))
            hooks = TimelineHooks(
                wants_housekeeping=self._wake_housekeeper.set,
                flush_times=flush_times,
            )
            policy = TimelinePolicy(config.retention, config.archive, config.tenant_limits)
            self.timelines = Timelines(self.data_directory, hooks, policy)
            stack.callback(self.timelines.close)
            self._archiving = self._open_archive()
            if self._archiving is not None:
                stack.callback(self._archiving.close)
            admission = self.access.admission
            self.scrub = Scrub(self.timelines, config.scrub)
            state = StateCollector(
                self.data_directory,
                self.timelines,
                admission,
                self.scrub,
                self.refusals,
                self._unusable_files,
                config.metrics_timelines_max,
            )
            registry.register(state)
            web = self._web
            page = (lambda: web(self)) if web is not None else None
            pages = Pages(self.status, self.health, lambda: registry, web=page)
            http = self._http_listener()
            self._files = (*self.access.files, *http.files)
            # Known before its thread answers: the status has its address.
            self._http = StatusServer(http, pages)
            stack.enter_context(self._http)
            stack.callback(self._end_threads)
            self._acceptor = Thread(target=self._accept, name="accept", daemon=True)
            self._acceptor.start()
            Thread(target=self._run_housekeeping, name="housekeeping", daemon=True).start()
            Thread(target=self._save_positions, name="save_positions", daemon=True).start()
            for work in (self.scrub, StartCheck(self.timelines)):
                name = type(work).__name__.lower()
                Thread(target=work.run, args=(self._stopping,), name=name, daemon=True).start()
            self._stack = stack.pop_all()
        for name, reason in self.timelines.damaged.items():
            log.error("timeline is damaged", timeline=name, reason=reason)
        log.info(
            "safekeeper started", id=config.safekeeper_id, listen=self.address,
            http=self.http_address, steady_path=how_it_runs("quorum_wal.safekeeper.steady_path"),
        )  # fmt: skip
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
        log.info("safekeeper stopped", id=self.config.safekeeper_id)

    @property
    def address(self) -> str:
        return f"{self.config.host}:{self._listener.getsockname()[1]}"

    @property
    def http_address(self) -> str:
        return f"{self.config.http_host}:{self._http.port}"

    # ---- status

    def status(self) -> dict[str, object]:
        """The JSON of /status."""
        space = self.data_directory.disk_space()
        until = self._http.listener.certificate_until
        return {
            "safekeeper_id": self.config.safekeeper_id,
            "instance": self.data_directory.instance.hex(),
            "site": self.config.site,
            "version": self.version,
            "listen": self.address,
            "http": self.http_address,
            "data_dir": str(self.config.data_dir),
            "disk": {"total_bytes": space.total_bytes, "free_bytes": space.free_bytes},
            "timelines": [timeline_status(timeline) for timeline in self.timelines.all()],
            "damaged": self.timelines.damaged,
            "scrub": self.scrub.describe(),
            "unusable_files": self._unusable_files(),
            "certificate_until": until.isoformat() if until is not None else None,
        }

    def positions(self, timelines_max: int) -> dict[str, dict[str, float]]:
        """Numbers of some timelines that are awake, by their names, for charts: cheap."""
        return {
            str(timeline.control.timeline): timeline_numbers(timeline)
            for timeline in self.timelines.awake()[:timelines_max]
        }

    def _unusable_files(self) -> dict[str, str]:
        """Certificate, user or token files that changed and could not be loaded; with reasons."""
        return unusable_files(self._files)

    def health(self) -> str:
        """One line on the first timeline that cannot take part or vote; "" if there is none."""
        for timeline in self.timelines.all():
            if timeline.state in (TimelineState.STOPPED, TimelineState.DAMAGED):
                name = timeline.control.timeline
                return f"timeline {name} is {timeline.state.value}: {timeline.stopped_reason}"
            if damage := damage_of(timeline):
                return f"timeline {timeline.control.timeline} is damaged: {damage[0]}"
        return "; ".join(self.timelines.damaged.values())

    # ---- listening

    def _server_version(self, parameters: Mapping[str, str]) -> str:
        """The version of the primary whose WAL the client may stream: clients refuse a newer
        server. Raises ConnectionRefused: libpq then tries the next host."""
        try:
            timeline = select_timeline(self.timelines, parameters)
        except (SafekeeperError, StorageError, ConsensusError):
            return FALLBACK_VERSION  # the command that needs a timeline raises the error
        check_may_stream(timeline.control, parameters)
        return version_text(timeline.control.server.pg_version)

    def _listen(self) -> socket.socket:
        config = self.config
        family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
        try:
            return socket.create_server(
                (config.host, config.port), family=family, backlog=LISTEN_BACKLOG
            )
        except OSError as error:
            raise SafekeeperError(
                f"could not listen on {config.host}:{config.port}: {error.strerror}",
                hint="Is another safekeeper running there? Choose another --listen.",
            ) from error

    def _http_listener(self) -> HttpListener:
        config = self.config
        try:
            return http_listener(
                config.http_host,
                config.http_port,
                config.access.tls,
                config.http_token_file,
                config.http_spare_ports,
            )
        except (OSError, ValueError) as error:
            raise SafekeeperError(
                f"could not secure the HTTP port: {error}", hint=getattr(error, "hint", "")
            ) from error

    def _accept(self) -> None:
        trouble = AcceptTrouble(log, "wal")
        while not self._stopping.is_set():
            number = next(self._numbers)
            try:
                sock, address = self._listener.accept()
                self._arrive(number, sock)
            except OSError as error:
                if self._stopping.is_set():
                    return
                trouble.failed(error)
                self._stopping.wait(RETRY_SECONDS)
                continue
            thread = Thread(
                target=self._serve, args=(sock, address, number), name=f"client-{number}",
                daemon=True,
            )  # fmt: skip
            self._threads[number] = thread
            try:
                thread.start()
            except RuntimeError:  # no thread is left
                self._threads.pop(number)
                self.access.leave(number)
                sock.close()
                trouble.failed(OSError(EAGAIN, "no thread can be started"))
            else:
                trouble.accepted()

    def _arrive(self, number: int, sock: socket.socket) -> None:
        """Raises OSError, and then the connection is closed."""
        try:
            self.access.admission.arrive(number, sock)
        except OSError:
            sock.close()
            raise

    def _serve(self, sock: socket.socket, address: tuple[str, int], number: int) -> None:
        host, client = address[0], f"{address[0]}:{address[1]}"
        try:
            session = self._authenticate(sock, host, number)
            if session is None:
                return
            with session:
                with self._sessions_lock:
                    self._sessions[number] = session
                if not self._stopping.is_set():
                    ClientSession(self, session, number, client).run()
        except ConnectionRefused as error:
            self.refusals.note(
                "connection refused", client, sqlstate=error.sqlstate, reason=str(error)
            )
        except (WireError, OSError) as error:
            log.debug("client connection lost", client=client, reason=str(error))
        finally:
            self.access.leave(number)
            with self._sessions_lock:
                self._sessions.pop(number, None)
            self._threads.pop(number, None)

    def _authenticate(self, sock: socket.socket, host: str, number: int) -> Session | None:
        """Negotiates TLS and authenticates. Sends an error to the client, then raises WireError."""
        config = self.access.server_config(self._server_config, number, host)
        try:
            return accept_connection(sock, config)
        except ConnectionRefused as error:
            self.access.admission.fail(number, host, error)
            raise

    def _cancel(self, process_id: int, key: bytes) -> None:
        """Ends the stream of the session with that key; a wrong key gets no answer."""
        with self._sessions_lock:
            sessions = [s for s in self._sessions.values() if s.key.process_id == process_id]
        for session in sessions:
            if session.cancel(key):
                log.info("canceled by its client", user=session.parameters["user"])

    # ---- housekeeping

    def _run_housekeeping(self) -> None:
        self._wake_housekeeper.set()
        while not self._stopping.is_set():
            self._wake_housekeeper.wait(HOUSEKEEPING_SECONDS)
            self._wake_housekeeper.clear()
            if self._archiving is not None:
                self._archiving.update_readers()
            for timeline in self.timelines.awake():
                self._maintain(timeline)

    def _save_positions(self) -> None:
        """In a thread of its own: housekeeping may wait much longer for the disk."""
        while not self._stopping.wait(SAVE_POSITIONS_SECONDS):
            for timeline in self.timelines.awake():
                try:
                    timeline.save_positions()
                except Exception as error:  # bugs too: the other timelines must still be saved
                    _failed("positions not saved", timeline, error)

    def _open_archive(self) -> Archiving | None:
        """Raises ObjectStoreError."""
        if self.config.archive is None:
            return None
        from quorum_wal.safekeeper.archiving import (
            Archiving,  # its dependencies are not always needed
        )

        return Archiving(self.config.archive, self.timelines)

    def _maintain(self, timeline: Timeline) -> None:
        try:
            remove_old_wal(timeline)  # first: the next call counts the space that it frees
            timeline.maybe_resume(self.data_directory.disk_space().free_bytes)
            if (archive := timeline.archive) is not None:
                archive.warn_of_backlog(
                    str(timeline.control.timeline), timeline.positions.commit_lsn
                )
            timeline.maintain_files()
            timeline.sleep.maybe_begin(self.config.idle_seconds)
        except Exception as error:  # bugs too: the other timelines still need housekeeping
            _failed("housekeeping failed", timeline, error)

    def _end_threads(self) -> None:
        self._stopping.set()
        self._wake_housekeeper.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._acceptor.join(STOP_TIMEOUT_SECONDS)  # the client it accepted last has a thread, too
        self.access.admission.close_unauthenticated()
        self._stop_replicas()
        with self._sessions_lock:
            for session in self._sessions.values():
                session.shutdown()
        deadline = time.monotonic() + STOP_TIMEOUT_SECONDS
        for thread in list(self._threads.values()):
            thread.join(max(0.0, deadline - time.monotonic()))

    def _stop_replicas(self) -> None:
        """Each gets the committed WAL and an orderly end, unless it reads too slowly."""
        deadline = time.monotonic() + REPLICAS_STOP_SECONDS
        timelines = self.timelines.all()
        for timeline in timelines:
            stop_replicas(timeline)
        for timeline in timelines:
            timeline.replicas.wait_empty(max(0.0, deadline - time.monotonic()))


def _failed(what: str, timeline: Timeline, error: Exception) -> None:
    if isinstance(error, StorageError) and timeline.state is TimelineState.LEFT:
        return  # its files were removed meanwhile
    reason = str(error) if isinstance(error, StorageError) else f"unexpected {error!r}"
    log.warning(what, timeline=str(timeline.control.timeline), reason=reason)
