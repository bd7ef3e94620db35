"""`Ingest`: makes cuts of one timeline: receives WAL, replays epochs, hands them to the attachment.

    safekeepers -> segments -> checkpoints -> an epoch -> layer and frame -> the attachment
                                     ^ a cut is due        (uploads both; an index names them)

Runs in its own thread. Laws. The next epoch begins only when an index in the store names the
previous one. Received WAL below the redo position of the newest cut is removed, and no other WAL.
An error ends the epoch, never the thread: the error is logged, the WAL is kept, and the epoch is
repeated.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeAlias

import structlog

from quorum_wal.backup.archived_wal import ArchivedWalSource
from quorum_wal.backup.backup_catalog import BackupCatalog
from quorum_wal.backup.backup_record import Backup
from quorum_wal.backup.safekeeper_wal import Safekeeper
from quorum_wal.consensus.ids import TimelineId
from quorum_wal.generations.suffix import Suffix
from quorum_wal.objectstore.archive import TimelineArchive
from quorum_wal.pageserver.cuts.cut_pages import OpenLayers, fetch_frame
from quorum_wal.pageserver.cuts.page_objects import PageObjects
from quorum_wal.pageserver.epochs.checkpoint_scan import CheckpointScan
from quorum_wal.pageserver.epochs.epoch import EpochInput, EpochOutput, EpochReplay
from quorum_wal.pageserver.epochs.redo import RedoServer
from quorum_wal.pageserver.epochs.wal_folder import WalFolder
from quorum_wal.pageserver.errors import PageserverError
from quorum_wal.pageserver.ingest.cut_rule import CutRule
from quorum_wal.pageserver.ingest.trim_report import TrimReport
from quorum_wal.pageserver.ingest.wal_receiver import WalReceiver
from quorum_wal.pageserver.layers.backup_base import BackupBase
from quorum_wal.pageserver.layers.base_cache import cached_backup, store_places
from quorum_wal.pageserver.layers.fork_table import ForkTable
from quorum_wal.pageserver.layers.frame import Frame
from quorum_wal.pageserver.layers.page_stack import PageStack
from quorum_wal.pageserver.layers.touches import Checkpoint
from quorum_wal.pageserver.objects.page_index import Cut, PageIndex
from quorum_wal.pgwal.errors import SegmentNameError
from quorum_wal.pgwal.lsn import format_lsn
from quorum_wal.pgwal.page import WAL_PAGE_SIZE
from quorum_wal.pgwal.segment import parse_segment_name

WAL_FOLDER, EPOCH_FOLDER = "wal", "epoch"
FEED_BYTES = 4 << 20
#: Received WAL that no cut covers yet, on the local disk. More than max_wal_size of a primary.
WAL_BYTES_MAX = 64 << 30
RETRY_SECONDS, RETRY_SECONDS_MAX = 2.0, 300.0
STOP_SECONDS = 5.0
WAIT_SECONDS = 1.0

log = structlog.get_logger()


#: (cut, id of the base backup, epoch output) -> a function that waits until it is stored
HandOver: TypeAlias = "Callable[[Cut, str, EpochOutput], Callable[[float], bool | None]]"


@dataclass(frozen=True, slots=True)
class IngestConfig:
    """The configuration shared by all timelines. `server_of` finds the programs of a major
    version."""

    safekeepers_of: Callable[[TimelineId], Sequence[Safekeeper]]
    rule: CutRule
    server_of: Callable[[int], RedoServer]
    wal_bytes_max: int = WAL_BYTES_MAX


@dataclass(slots=True)
class IngestState:
    """For status pages. Written by the ingest thread, read by others."""

    phase: str = "starting"
    problem: str = ""
    received_lsn: int = 0
    #: Where the WAL begins that no cut covers: the newest cut, or the start of the base backup.
    begin_lsn: int = 0
    #: The end of the base backup, while there is no cut: the first cut is after it.
    consistent_lsn: int = 0
    cut_lsn: int = 0
    epochs: int = 0
    wal_bytes: int = 0
    pages: int = 0
    replay_seconds: float = 0.0
    cut_at: datetime | None = None
    needs_base: int = 0


@dataclass(slots=True)
class _EpochStart:
    """The start of the next epoch. `last` is None before the first cut, which must be after
    `consistent_lsn`."""

    frame: Frame
    base: BackupBase
    layers: OpenLayers
    redo_lsn: int
    last: Checkpoint | None
    consistent_lsn: int


class Ingest(threading.Thread):
    """The ingest of one attachment with `suffix`. `index_of` returns its present index.
    `visible_lsn` returns the position reported to safekeepers: WAL below it may be removed.
    `hand_over` passes a replayed epoch to the attachment and returns a function. That function
    waits for the given number of seconds. It returns True if an index names the epoch, False if no
    index ever will, None if this is not known yet."""

    def __init__(
        self,
        archive: TimelineArchive,
        objects: PageObjects,
        index_of: Callable[[], PageIndex],
        folder: Path,
        config: IngestConfig,
        hand_over: HandOver,
        suffix: Suffix,
        visible_lsn: Callable[[], int],
    ) -> None:
        super().__init__(name=f"ingest {archive.timeline}", daemon=True)
        self.state = IngestState()
        #: The fork lengths in the base backup, once it was read.
        self.base_forks: ForkTable | None = None
        self._archive = archive
        self._objects = objects
        self._index_of = index_of
        self._folder = folder
        self._config = config
        self._hand_over = hand_over
        self._safekeepers = config.safekeepers_of(archive.timeline)
        self._trim = TrimReport(suffix, visible_lsn, self._safekeepers)
        self._server = config.server_of(archive.facts.server.pg_major)
        self._progress = threading.Event()
        self._stopping = threading.Event()
        self._receiver: WalReceiver | None = None
        self._backup: Backup | None = None
        self._log = log.bind(timeline=str(archive.timeline))

    def stop(self) -> None:
        """Waits for the thread, at most STOP_SECONDS. A replay that is still running is abandoned
        when the process ends; its output is not used."""
        self._stopping.set()
        self._progress.set()
        self.join(STOP_SECONDS)

    def run(self) -> None:
        pause_seconds = RETRY_SECONDS
        while not self._stopping.is_set():
            epochs = self.state.epochs
            try:
                self._follow(self._open_start())
            except Exception as error:  # logged, then repeated: the WAL is kept
                self.state.problem = " ".join(str(error).split())
                hint = getattr(error, "hint", "")
                self._log.error("ingest failed; will retry", reason=self.state.problem, hint=hint)
                if self.state.epochs > epochs:
                    pause_seconds = RETRY_SECONDS
                self._stopping.wait(pause_seconds)
                pause_seconds = min(2 * pause_seconds, RETRY_SECONDS_MAX)
            finally:
                if self._receiver is not None:
                    self._receiver.stop()
                    self._receiver = None

    # ---- start

    def _open_start(self) -> _EpochStart:
        self.state.phase = "opening"
        catalog = BackupCatalog(self._archive)
        self._folder.mkdir(parents=True, exist_ok=True)
        index = self._index_of()
        backup = self._backup = (
            catalog.get(index.base_backup_id) if index.base_backup_id else self._choose(catalog)
        )
        files, frame = cached_backup(catalog, backup, self._folder)
        store_places(catalog, backup, files)
        self.base_forks = files.forks()
        base = BackupBase(catalog, backup, files)
        layers = OpenLayers(self._objects)
        self.state.begin_lsn, self.state.consistent_lsn = backup.start_lsn, backup.stop_lsn
        if not index.cuts:
            return _EpochStart(frame, base, layers, backup.start_lsn, None, backup.stop_lsn)
        cut = index.cuts[-1]
        frame = fetch_frame(self._objects, index, cut, self._folder / "frame.tar")
        at = datetime.fromtimestamp(cut.time_unix_s, UTC)
        last = Checkpoint(cut.checkpoint_lsn, cut.end_lsn, cut.redo_lsn, cut.tli, at)
        self.state.begin_lsn = self.state.cut_lsn = cut.end_lsn
        self.state.cut_at = at
        return _EpochStart(frame, base, layers, cut.redo_lsn, last, cut.end_lsn)

    def _choose(self, catalog: BackupCatalog) -> Backup:
        """The newest base backup without checksum failures. Raises PageserverError."""
        sound = [each for each in catalog.backups() if not each.checksum_failures]
        if not sound:
            raise PageserverError(
                f"the archive has no usable base backup of timeline {self._archive.timeline}",
                hint="Run sk backup create. The pageserver needs only this one base backup.",
            )
        return sound[-1]

    # ---- WAL

    def _follow(self, start: _EpochStart) -> None:
        facts = self._archive.facts.server
        wal = WalFolder(self._folder / WAL_FOLDER, facts)
        shutil.rmtree(wal.path, ignore_errors=True)
        wal.path.mkdir(parents=True)
        self._receiver = WalReceiver(
            wal.path,
            facts,
            start.redo_lsn,
            self._safekeepers,
            ArchivedWalSource(lambda: self._archive),
            lambda lsn: self._archive.newest_history().tli_at(lsn),
            self._progress.set,
            self._config.wal_bytes_max,
            self._trim,
        )
        self._receiver.start()
        scan = CheckpointScan(start.redo_lsn, facts)
        tail_lsn = 0  # end of the page that was scanned before it was full
        while not self._stopping.is_set():
            is_quiet = not self._progress.wait(WAIT_SECONDS)
            self._progress.clear()
            self._trim.report_due()
            receiver = self._receiver
            received_lsn, tli = receiver.received_lsn, max(receiver.tli, 1)
            self.state.received_lsn = received_lsn
            self.state.problem = receiver.problem
            self.state.phase = "receiving"
            found = self._scan(wal, scan, received_lsn - received_lsn % WAL_PAGE_SIZE, tli)
            if is_quiet and received_lsn != tail_lsn:
                tail = CheckpointScan(max(scan.checked_lsn, start.redo_lsn), facts)
                found += self._scan(wal, tail, received_lsn, tli)
                tail_lsn = received_lsn
            for checkpoint in found:
                if self._config.rule.is_due(start.last, checkpoint, start.consistent_lsn):
                    self._cut(start, wal, checkpoint)

    def _scan(
        self, wal: WalFolder, scan: CheckpointScan, limit_lsn: int, tli: int
    ) -> list[Checkpoint]:
        """The checkpoints in the WAL from `scan.fed_lsn` on. If the limit is inside of a page, the
        scan ends there: on a quiet primary a page may stay unfinished for hours, and a later scan
        finds its checkpoints again."""
        found = []
        seg_size = wal.server.wal_seg_size
        while scan.fed_lsn < limit_lsn and not self._stopping.is_set():
            lsn = scan.fed_lsn
            (path,) = wal.segments(lsn, lsn + 1, tli)
            length = min(limit_lsn - lsn, seg_size - lsn % seg_size, FEED_BYTES)
            with path.open("rb") as file:
                file.seek(lsn % seg_size)
                found += scan.feed(file.read(length))
        return found

    # ---- epochs

    def _cut(self, start: _EpochStart, wal: WalFolder, target: Checkpoint) -> None:
        self.state.phase = "replaying"
        work_dir = self._folder / EPOCH_FOLDER
        shutil.rmtree(work_dir, ignore_errors=True)
        work_dir.mkdir()
        begun = datetime.now(UTC)
        layers = start.layers.of(self._index_of())
        given = EpochInput(start.frame, PageStack(start.base, layers), wal, start.redo_lsn, target)
        output = EpochReplay(work_dir, self._server).run(given)
        seconds = (datetime.now(UTC) - begun).total_seconds()
        self._note(start, target, output, seconds)
        cut = Cut(
            target.redo_lsn, target.start_lsn, target.end_lsn, target.tli,
            int(target.at.timestamp()),
        )  # fmt: skip
        assert self._backup is not None
        is_stored = self._hand_over(cut, self._backup.backup_id, output)
        self.state.phase = "uploading"
        while (answer := is_stored(WAIT_SECONDS)) is None:
            if self._stopping.is_set():
                return
        if not answer:
            raise PageserverError(
                "the attachment accepts no more epochs, because it is stale or has ended"
            )
        self._advance(start, wal, target, output)

    def _note(
        self, start: _EpochStart, target: Checkpoint, output: EpochOutput, seconds: float
    ) -> None:
        state, touches = self.state, output.touches
        state.epochs += 1
        state.wal_bytes += target.end_lsn - start.redo_lsn
        state.pages += touches.page_count
        state.needs_base += sum(int(each.needs_base.sum()) for each in touches.pages)
        state.replay_seconds += seconds
        self._log.info(
            "replayed epoch",
            to=format_lsn(target.end_lsn),
            wal_bytes=target.end_lsn - start.redo_lsn,
            pages=touches.page_count,
            seconds=round(seconds, 2),
        )

    def _advance(
        self, start: _EpochStart, wal: WalFolder, target: Checkpoint, output: EpochOutput
    ) -> None:
        """The stored epoch becomes the start of the next one."""
        made = output.frame
        path = made.path.replace(self._folder / "frame.tar")
        start.frame = Frame(path, made.forks, made.tablespaces, made.kept)
        start.redo_lsn, start.last = target.redo_lsn, target
        self.state.begin_lsn = self.state.cut_lsn = target.end_lsn
        self.state.cut_at = target.at
        remove_segments(wal, target.redo_lsn)
        if self._receiver is not None:
            self._receiver.floor_lsn = target.redo_lsn


def remove_segments(wal: WalFolder, below_lsn: int) -> None:
    """Removes segments that end at or below `below_lsn`."""
    for path in list(wal.path.iterdir()):
        try:
            name = parse_segment_name(path.name, wal.server.wal_seg_size)
        except SegmentNameError:
            continue
        if (name.segno + 1) * wal.server.wal_seg_size <= below_lsn:
            path.unlink()
