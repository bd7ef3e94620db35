"""`WalReceiver`: receives committed WAL from the safekeepers into segment files, as a standby does.

    safekeeper 1   |=====| lost
    safekeeper 2         |====   continues where the first one stopped
    archive        |==|          WAL that the safekeepers have removed

    folder:  000000010000000000000005  000000010000000000000006 (grows)  00000002.history

Laws. WAL is written in the received order, without a gap. The start command names the suffix of the
attachment: a safekeeper that has seen a newer pageserver rejects an older one. Status updates
report as `flush` the received position, and as `apply` the position below which WAL may be removed.
That is visible_lsn, never projected_lsn, and 0 before it is known. The folder is a cache: after a
restart the last segment is received again.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import structlog

from quorum_wal.backup.safekeeper_wal import Safekeeper
from quorum_wal.backup.wal_source import WalSource, check_same_server
from quorum_wal.consensus.messages import ServerFacts
from quorum_wal.pageserver.errors import PageserverError
from quorum_wal.pageserver.ingest.lasting_refusal import is_lasting
from quorum_wal.pageserver.ingest.trim_report import STALE, TrimReport
from quorum_wal.pgclient.errors import UNDEFINED_FILE, ServerError
from quorum_wal.pgclient.questions import identify_system, read_server_facts, read_timeline_history
from quorum_wal.pgclient.stream import ReplicationStream, start_copy
from quorum_wal.pgwal.history import TimelineHistory, history_file_name
from quorum_wal.pgwal.lsn import format_lsn
from quorum_wal.pgwal.segment import format_segment_name

SILENCE_SECONDS = 20.0
STATUS_SECONDS = 1.0
RETRY_SECONDS = 0.5
#: A rejection because of a newer pageserver is permanent unless an administrator intervenes.
STALE_RETRY_SECONDS = 30.0
#: So is one because of the user, if all safekeepers reject it. Wrong passwords are counted.
REFUSED_RETRY_SECONDS = 30.0
#: A full disk has room again when a cut is done, or when an administrator makes some.
DISK_RETRY_SECONDS = 10.0
BATCH_BYTES = 1 << 20

log = structlog.get_logger()


class DiskFailed(PageserverError):
    """WAL could not be written into the folder: no safekeeper is the reason."""


class WalReceiver(threading.Thread):
    """Receives from the segment of `begin_lsn` on. `on_progress` is called on this thread after
    more WAL was written. `archive` has WAL that safekeepers have removed, and `tli_at` returns the
    timeline of a position. The receiver pauses while it has `bytes_max` of WAL after
    `floor_lsn`."""

    def __init__(
        self,
        folder: Path,
        server: ServerFacts,
        begin_lsn: int,
        safekeepers: Sequence[Safekeeper],
        archive: WalSource,
        tli_at: Callable[[int], int],
        on_progress: Callable[[], None],
        bytes_max: int,
        trim: TrimReport,
    ) -> None:
        super().__init__(name="WAL receiver", daemon=True)
        self._folder = folder
        self._server = server
        self._safekeepers = list(safekeepers)
        self._archive = archive
        self._tli_at = tli_at
        self._on_progress = on_progress
        self._bytes_max = bytes_max
        self._trim = trim
        self._stopping = threading.Event()
        self._pause_seconds = RETRY_SECONDS
        #: Safekeepers whose last answer was a lasting refusal.
        self._refusing: set[str] = set()
        self._file = -1
        self._file_name = ""
        self.received_lsn = begin_lsn - begin_lsn % server.wal_seg_size
        self.tli = 0
        #: WAL below this position has been removed from the folder.
        self.floor_lsn = self.received_lsn
        #: Why no WAL is received, or "" while it is.
        self.problem = "the WAL receiver has not connected yet"

    def stop(self) -> None:
        """Waits for the thread."""
        self._stopping.set()
        self.join()

    def run(self) -> None:
        while not self._stopping.is_set():
            for safekeeper in self._safekeepers:
                if self._stopping.is_set() or self._is_full():
                    break
                try:
                    self._try(safekeeper)
                except DiskFailed as error:
                    self.problem, self._pause_seconds = str(error), DISK_RETRY_SECONDS
                    log.error("could not store WAL", reason=self.problem)
                    break
            if len(self._refusing) == len(self._safekeepers):
                self._pause_seconds = REFUSED_RETRY_SECONDS
            self._stopping.wait(self._pause_seconds)
            self._pause_seconds = RETRY_SECONDS
        if self._file >= 0:
            os.close(self._file)

    def _try(self, safekeeper: Safekeeper) -> None:
        """Raises DiskFailed."""
        self._refusing.discard(safekeeper.name)
        try:
            self._receive(safekeeper)
        except DiskFailed:
            raise
        except Exception as error:  # any error of the connection: try the next one
            words = " ".join(str(error).split())
            self.problem = f"safekeeper {safekeeper.name}: {words}"
            sqlstate = error.sqlstate if isinstance(error, ServerError) else ""
            if sqlstate == UNDEFINED_FILE:
                self._fetch_from_archive()
            else:
                if sqlstate == STALE:
                    self._pause_seconds = STALE_RETRY_SECONDS
                hint = str(getattr(error, "hint", ""))
                if is_lasting(error):
                    self._refusing.add(safekeeper.name)
                    self.problem = f"{self.problem}. {hint}"
                log.warning(
                    "could not receive WAL", safekeeper=safekeeper.name, reason=words, hint=hint
                )

    def _is_full(self) -> bool:
        kept = self.received_lsn - self.floor_lsn
        if kept < self._bytes_max:
            return False
        self.problem = (
            f"{kept} bytes of WAL wait for a cut, the limit is {self._bytes_max}: the primary has "
            "made no checkpoint since the last cut, or a replay fails"
        )
        return True

    # ---- one safekeeper

    def _receive(self, safekeeper: Safekeeper) -> None:
        """Returns when the connection or the timeline ends."""
        with closing(safekeeper.connect()) as connection:
            pgconn = connection.pgconn
            system = identify_system(pgconn)
            server = read_server_facts(pgconn, system.system_id)
            check_same_server(self._server, server, f"safekeeper {safekeeper.name}")
            if system.flush_lsn < self.received_lsn:
                raise PageserverError(f"its WAL ends at {format_lsn(system.flush_lsn)}")
            history = read_timeline_history(pgconn, system.tli)
            self._write_history(history)
            tli = history.tli_at(self.received_lsn)
            command = self._trim.start_command(self.received_lsn, tli)
            if not start_copy(pgconn, command):
                raise PageserverError(f"timeline {tli} ends at {format_lsn(self.received_lsn)}")
            self.tli, self.problem = tli, ""
            self._pause_seconds = RETRY_SECONDS
            log.info("receiving WAL", safekeeper=safekeeper.name, lsn=format_lsn(self.received_lsn))
            self._receive_stream(ReplicationStream(pgconn, self.received_lsn, SILENCE_SECONDS))

    def _receive_stream(self, stream: ReplicationStream) -> None:
        reported_at, reported, visible_lsn = 0.0, -1, self._trim.visible_lsn
        for batch in stream.batches(BATCH_BYTES):
            size = sum(map(len, batch))
            for piece in batch:
                self._write(piece)
            if size:
                self._on_progress()
            now = time.monotonic()
            if now - reported_at >= STATUS_SECONDS or reported != visible_lsn():
                reported_at, reported = now, visible_lsn()
                stream.send_status(self._trim.status(self.received_lsn, reported))
            if self._stopping.is_set() or self._is_full():
                return

    # ---- files

    def _write(self, piece: memoryview) -> None:
        seg_size = self._server.wal_seg_size
        while piece:
            room = seg_size - self.received_lsn % seg_size
            self._open(format_segment_name(self.tli, self.received_lsn // seg_size, seg_size))
            with self._disk():
                written = os.pwrite(self._file, piece[:room], self.received_lsn % seg_size)
            self.received_lsn += written
            piece = piece[written:]

    def _open(self, name: str) -> None:
        """On a new timeline the segment begins with the contents of the previous timeline."""
        if name == self._file_name and self._file >= 0:
            return
        path, before = self._folder / name, self._folder / self._file_name
        offset = self.received_lsn % self._server.wal_seg_size
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
        with self._disk():
            self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
            if offset and self._file_name:
                os.pwrite(self._file, before.read_bytes()[:offset], 0)
        self._file_name = name

    def _write_history(self, history: TimelineHistory) -> None:
        if history.entries:
            with self._disk():
                (self._folder / history_file_name(history.tli)).write_text(history.format())

    @contextmanager
    def _disk(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise DiskFailed(
                f'could not write WAL into "{self._folder}": {error.strerror}'
            ) from error

    # ---- WAL that the safekeepers have removed

    def _fetch_from_archive(self) -> None:
        """Fetches the segment at the position where the safekeepers have no WAL."""
        seg_size = self._server.wal_seg_size
        if self.received_lsn % seg_size:
            self.received_lsn -= self.received_lsn % seg_size
        segno = self.received_lsn // seg_size
        try:
            # A segment with a timeline switch is complete on its newest timeline only.
            self.tli = self._tli_at((segno + 1) * seg_size - 1)
            name = format_segment_name(self.tli, segno, seg_size)
            content = self._archive.segment(name)
        except Exception as error:  # any error of the store: the request is repeated
            self.problem = f"archive: {' '.join(str(error).split())}"
            log.warning("could not read WAL from the archive", reason=self.problem)
            return
        if len(content) < seg_size:
            self.problem = (
                f"the safekeepers have removed the WAL at {format_lsn(self.received_lsn)}, and the "
                "archive does not contain it"
            )
            log.error("a WAL segment is missing", segment=name, reason=self.problem)
            return
        with self._disk():
            (self._folder / name).unlink(missing_ok=True)
            (self._folder / name).write_bytes(content)
        self.received_lsn += seg_size
        self._on_progress()
