"""The safekeeper process: the one file that knows everybody.

Threads: one accepts, one per client, one keeps house (hints, spare segments, healing), one serves
HTTP. Blocking threads measured better than an event loop on the append path, where each message is
four system calls: see `docs/decisions/`.
"""

from __future__ import annotations

import socket
import sys
from contextlib import ExitStack
from importlib.metadata import version
from itertools import count
from threading import Event, Lock, Thread

import structlog
from prometheus_client import CollectorRegistry

from pgwire.auth import make_verifier
from pgwire.blocking import ServerConfig, Session, accept_connection, server_tls_context
from pgwire.errors import WireError
from safekeeper.config import SafekeeperConfig
from safekeeper.data_directory import DataDirectory
from safekeeper.errors import SafekeeperError, StorageError
from safekeeper.metrics import FlushTimes, StateCollector
from safekeeper.session import ClientSession
from safekeeper.status import timeline_status
from safekeeper.timeline import Timeline, TimelineHooks, TimelineState
from safekeeper.timelines import Timelines
from telemetry.status_server import HttpListener, Pages, StatusServer

log = structlog.get_logger()

HOUSEKEEPING_SECONDS = 5.0
CLIENTS_MAX = 200
LISTEN_BACKLOG = 64
# A thread that wakes up with WAL in hand waits at most this long for one that computes.
SWITCH_INTERVAL_SECONDS = 0.0005
# How long an orderly stop waits for its clients' threads.
STOP_TIMEOUT_SECONDS = 5.0


class Safekeeper:
    """Context manager: listening and serving inside, everything flushed and saved after it."""

    def __init__(self, config: SafekeeperConfig) -> None:
        self.config = config
        self.version = version("quorum-wal")
        self._stack = ExitStack()
        self._stopping = Event()
        self._wake_housekeeper = Event()
        self._sessions: dict[int, Session] = {}
        self._threads: dict[int, Thread] = {}
        self._sessions_lock = Lock()
        self._numbers = count(1)

    def __enter__(self) -> Safekeeper:
        """Raises SafekeeperError, ListenError."""
        sys.setswitchinterval(SWITCH_INTERVAL_SECONDS)
        config = self.config
        with ExitStack() as stack:
            self.data_directory = DataDirectory(config.data_dir, config.safekeeper_id)
            stack.callback(self.data_directory.close)
            self._server_config = self._make_server_config()
            self._listener = self._listen()
            stack.callback(self._listener.close)
            registry = CollectorRegistry()
            flush_times = FlushTimes()
            registry.register(flush_times)
            hooks = TimelineHooks(
                wants_housekeeping=self._wake_housekeeper.set,
                flush_seconds=flush_times.observe,
            )
            self.timelines = Timelines(self.data_directory, hooks)
            stack.callback(self.timelines.close)
            registry.register(StateCollector(self.data_directory, self.timelines))
            pages = Pages(self.status, self.health, registry)
            self._http = stack.enter_context(StatusServer(self._http_listener(), pages))
            stack.callback(self._end_threads)
            for run in (self._accept, self._keep_house):
                Thread(target=run, name=run.__name__, daemon=True).start()
            self._stack = stack.pop_all()
        for name, reason in self.timelines.damaged.items():
            log.error("timeline is damaged", timeline=name, reason=reason)
        log.info("safekeeper started", id=config.safekeeper_id, listen=self.address)
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
        return {
            "safekeeper_id": self.config.safekeeper_id,
            "version": self.version,
            "listen": self.address,
            "http": self.http_address,
            "data_dir": str(self.config.data_dir),
            "disk": {"total_bytes": space.total_bytes, "free_bytes": space.free_bytes},
            "timelines": [timeline_status(timeline) for timeline in self.timelines.all()],
            "damaged": self.timelines.damaged,
        }

    def health(self) -> str:
        """One line on the first timeline that cannot take part; "" when all can."""
        for timeline in self.timelines.all():
            if timeline.state in (TimelineState.STOPPED, TimelineState.DAMAGED):
                name = timeline.control.timeline
                return f"timeline {name} is {timeline.state.value}: {timeline.stopped_reason}"
        return "; ".join(self.timelines.damaged.values())

    # ---- listening

    def _make_server_config(self) -> ServerConfig:
        config = self.config
        tls = None
        if config.tls_certificate is not None and config.tls_key is not None:
            try:
                tls = server_tls_context(str(config.tls_certificate), str(config.tls_key))
            except OSError as error:
                raise SafekeeperError(f"could not load the TLS certificate: {error}") from error
        return ServerConfig(
            server_version="16.0",
            tls=tls,
            require_tls=tls is not None,
            verifiers=config.verifiers,
        )

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
        verifiers = self.config.verifiers

        def check_password(user: str, password: str) -> bool:
            assert verifiers is not None
            wanted = verifiers.get(user)
            return wanted is not None and wanted == make_verifier(
                password, wanted.salt, wanted.iterations
            )

        return HttpListener(
            self.config.http_host,
            self.config.http_port,
            self._server_config.tls,
            check_password if verifiers is not None else None,
        )

    def _accept(self) -> None:
        while not self._stopping.is_set():
            try:
                sock, address = self._listener.accept()
            except OSError as error:
                if self._stopping.is_set():
                    return
                log.error("could not accept a connection", reason=error.strerror)
                self._stopping.wait(0.1)  # out of file descriptors: some will be given back
                continue
            if len(self._threads) >= CLIENTS_MAX:
                sock.close()
                log.warning("too many clients", limit=CLIENTS_MAX)
                continue
            number = next(self._numbers)
            client = f"{address[0]}:{address[1]}"
            thread = Thread(
                target=self._serve,
                args=(sock, client, number),
                name=f"client-{number}",
                daemon=True,
            )
            self._threads[number] = thread
            thread.start()

    def _serve(self, sock: socket.socket, client: str, number: int) -> None:
        try:
            session = accept_connection(sock, self._server_config)
            if session is None:
                return
            with session:
                with self._sessions_lock:
                    self._sessions[number] = session
                if not self._stopping.is_set():
                    ClientSession(self, session, number, client).run()
        except (WireError, OSError) as error:
            log.debug("client lost", client=client, reason=str(error))
        finally:
            with self._sessions_lock:
                self._sessions.pop(number, None)
            self._threads.pop(number, None)

    # ---- housekeeping

    def _keep_house(self) -> None:
        while not self._stopping.is_set():
            self._wake_housekeeper.wait(HOUSEKEEPING_SECONDS)
            self._wake_housekeeper.clear()
            free_bytes = self.data_directory.disk_space().free_bytes
            for timeline in self.timelines.all():
                self._keep_timeline(timeline, free_bytes)

    def _keep_timeline(self, timeline: Timeline, free_bytes: int) -> None:
        try:
            timeline.maybe_heal(free_bytes)
            timeline.keep_house()
        except StorageError as error:
            log.warning("housekeeping failed", reason=str(error))

    def _end_threads(self) -> None:
        self._stopping.set()
        self._wake_housekeeper.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        with self._sessions_lock:
            for session in self._sessions.values():
                session.shutdown()
        for thread in list(self._threads.values()):
            thread.join(STOP_TIMEOUT_SECONDS)
