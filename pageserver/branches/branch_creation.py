"""Creates a branch: a full data directory at a point in time, on a new timeline, stopped.

    cut's pages + WAL  ->  replay, promotion  ->  subscriptions off, checkpoint  ->  its own files
    work/, data/           private server                                           branch.json

Laws. Only this process can connect to the private server, which ends with it (`PromotedServer`). If
the point in time cannot be reached, no folder is left. After a crash, a marker file in the folder
says that the branch is incomplete. branch.json is written when all other files are durable.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import psycopg

from quorum_wal.backup.wal_source import WalSource
from quorum_wal.objectstore.archive import TimelineArchive
from quorum_wal.pageserver.branches.branch_configuration import BranchConfiguration, BranchRequest
from quorum_wal.pageserver.branches.branch_folder import BranchFolder
from quorum_wal.pageserver.branches.branch_record import Branch
from quorum_wal.pageserver.branches.branch_settings import check_user_settings
from quorum_wal.pageserver.cuts.cut_files import CutFiles
from quorum_wal.pageserver.cuts.virtual_full import write_virtual_full
from quorum_wal.pageserver.epochs.in_place_tablespaces import WAL_FOLDER
from quorum_wal.pageserver.epochs.redo import CONF_FOLDER, RedoServer
from quorum_wal.pageserver.errors import BranchError
from quorum_wal.pageserver.layers.control_file import CONTROL_FILE, ControlFile
from quorum_wal.pageserver.layers.fork import PAGE_BYTES
from quorum_wal.pageserver.pitr.catalog_files import pages_in_directory
from quorum_wal.pageserver.pitr.promoted_server import PromotedServer, ServerLimits, StopPoint
from quorum_wal.pageserver.pitr.restore_point import RestorePoint
from quorum_wal.pageserver.pitr.restore_points import RestorePoints
from quorum_wal.storage import durable
from quorum_wal.telemetry.size import bytes_text

SYNC_THREADS = 8
#: For new WAL, logs, and pages that the replay adds.
SPARE_BYTES = 64 << 20

#: Disabled and without a slot name, so that the branch neither reads nor drops a publisher's slot.
_DISABLE_SUBSCRIPTIONS = "UPDATE pg_subscription SET subenabled = false, subslotname = NULL"
_STATE = "SELECT pg_last_xact_replay_timestamp(), (SELECT count(*) FROM pg_prepared_xacts)"


@dataclass(frozen=True, slots=True)
class Progress:
    """`found` receives the restore point, and whether the available WAL ends before the requested
    time. `expect_bytes` receives the size of all pages, `more_bytes` each size written."""

    found: Callable[[RestorePoint, bool], None] = lambda point, is_wal_end: None
    expect_bytes: Callable[[int], None] = lambda size: None
    more_bytes: Callable[[int], None] = lambda size: None


@dataclass(frozen=True, slots=True)
class _ServerState:
    """The answers of the private server."""

    database: str
    superuser: str
    last_commit_at: datetime | None
    prepared: int


class BranchCreation:
    """Creates one branch. An object is used once."""

    def __init__(
        self,
        folder: BranchFolder,
        archive: TimelineArchive,
        sources: Sequence[WalSource],
        redo: RedoServer,
        request: BranchRequest,
        progress: Progress,
    ) -> None:
        self._folder = folder
        self._archive = archive
        self._sources = sources
        # All pages exist, so a missing page is an error, as in any recovery.
        more = {**redo.more_settings, "ignore_invalid_pages": "off"}
        self._redo = replace(redo, more_settings=more)
        self._request = request
        self._progress = progress
        self._configuration = BranchConfiguration(folder, self._redo, request)

    def run(self) -> Branch:
        """Creates the branch, stopped. Raises PageserverError, BackupError, ObjectStoreError,
        StorageError, PgServerError; then no files are left."""
        check_user_settings(self._request.settings)
        self._folder.begin()
        with self._folder.locked():
            try:
                branch = self._make()
                self._folder.finish(branch)
            except BaseException as error:
                self._folder.remove()
                if isinstance(error, OSError):
                    raise BranchError(
                        f'could not write "{self._folder.path}": {error.strerror}'
                    ) from error
                raise
        return branch

    def _make(self) -> Branch:
        self._folder.work.mkdir(mode=0o700)
        self._configuration.check()
        points = RestorePoints(self._archive, self._sources, self._folder.work)
        point = points.open(self._request.target)
        self._progress.found(point, points.is_wal_end)
        self._configuration.check_access(point.frame)
        self._check_space(point)
        self._write_pages(point, points.files(point))
        self._write_wal(point)
        limits = ServerLimits(point.prepared_max, locks=0)
        answers = self._promote(point.stop, limits)
        self._remove_server_files()
        self._configuration.write(limits.prepared)
        if self._request.is_synced:
            _sync_tree(self._folder.data)
        return self._branch(point, answers)

    # ---- before pages are written

    def _check_space(self, point: RestorePoint) -> None:
        """Raises BranchError. The WAL is already in the folder."""
        pages_bytes = sum(point.frame.forks.values()) * PAGE_BYTES
        self._progress.expect_bytes(pages_bytes)
        wal_bytes = point.target_lsn - point.redo_lsn
        frame_bytes = point.frame.path.stat().st_size
        needed_bytes = pages_bytes + frame_bytes + wal_bytes + SPARE_BYTES
        free_bytes = shutil.disk_usage(self._folder.path).free
        if free_bytes < needed_bytes:
            raise BranchError(
                f"branch {self._folder.name} needs {bytes_text(needed_bytes)}, but "
                f'"{self._folder.path.parent}" has {bytes_text(free_bytes)} free',
                hint="Drop another branch, or specify a larger disk with --branches-dir.",
            )

    # ---- the data directory

    def _write_pages(self, point: RestorePoint, files: CutFiles) -> None:
        for folder in (self._folder.data, self._folder.socket):
            folder.mkdir(mode=0o700)
            self._redo.give(folder)
        write_virtual_full(
            self._folder.data,
            point.frame,
            files,
            pg_major=self._pg_major,
            give=self._redo.give,
            progress=self._progress.more_bytes,
        )
        self._configuration.rename_cluster_files()

    def _write_wal(self, point: RestorePoint) -> None:
        """Moves the files instead of linking them: the server keeps them, and removes them
        later."""
        point.link_wal(self._folder.data, self._redo.give)
        for link in (self._folder.data / WAL_FOLDER).iterdir():
            if link.is_symlink():
                link.resolve().replace(link)
                link.chmod(0o600)
                self._redo.give(link)

    def _promote(self, stop: StopPoint, limits: ServerLimits) -> _ServerState:
        with PromotedServer(self._redo, self._folder.data, stop, limits) as server:
            answers = self._query_server(server)
            server.shut_down()
        return answers

    def _query_server(self, server: PromotedServer) -> _ServerState:
        """Connects as a superuser. Some row versions of roles and databases may be obsolete."""
        version_folder = self._control_file().version_folder(self._pg_major)
        pages = pages_in_directory(server.data_dir, self._pg_major, version_folder)
        databases = [row.name.decode(errors="surrogateescape") for row in pages.databases()]
        databases.sort(key=lambda name: (name != "postgres", name.startswith("template"), name))
        refusal: psycopg.Error | None = None
        for superuser in pages.superusers():
            for database in dict.fromkeys(databases):
                try:
                    connection = psycopg.connect(server.conninfo(database, superuser))
                except psycopg.Error as error:
                    refusal = error
                    continue
                with closing(connection):
                    return _disable_subscriptions(connection, database, superuser)
        raise BranchError(
            "could not connect to the branch as a superuser: "
            f"{refusal or 'the cluster has no superuser that can log in'}"
        )

    def _remove_server_files(self) -> None:
        """Removes the files of the private server."""
        shutil.rmtree(self._folder.data / CONF_FOLDER)
        (self._folder.data / "postmaster.opts").unlink(missing_ok=True)

    def _branch(self, point: RestorePoint, answers: _ServerState) -> Branch:
        binaries = self._redo.binaries
        return Branch(
            name=self._folder.name,
            timeline=str(self._archive.timeline),
            lsn=point.target_lsn,
            cut_lsn=point.cut_lsn,
            tli=self._control_file().tli,
            moment=self._request.target.time,
            last_commit_at=answers.last_commit_at,
            pg_version=binaries.version,
            bin_dir=str(binaries.bin_dir),
            port=self._request.port,
            database=answers.database,
            superuser=answers.superuser,
            prepared=answers.prepared,
            created_at=datetime.now(UTC),
        )

    @property
    def _pg_major(self) -> int:
        return self._archive.facts.server.pg_major

    def _control_file(self) -> ControlFile:
        return ControlFile.parse((self._folder.data / CONTROL_FILE).read_bytes())


def _disable_subscriptions(
    connection: psycopg.Connection[tuple[datetime | None, int]], database: str, superuser: str
) -> _ServerState:
    """Raises BranchError."""
    try:
        connection.execute(_DISABLE_SUBSCRIPTIONS)
        row = connection.execute(_STATE).fetchone()
        connection.commit()
    except psycopg.Error as error:
        raise BranchError(f"could not query the branch: {error}") from error
    assert row is not None
    return _ServerState(database, superuser, *row)


def _sync_tree(folder: Path) -> None:
    """Syncs each file, then each folder. Raises StorageError."""
    files: list[Path] = []
    folders: list[Path] = []
    for path, _, names in os.walk(folder):
        folders.append(Path(path))
        files += [Path(path, name) for name in names]
    with ThreadPoolExecutor(SYNC_THREADS) as pool:
        list(pool.map(durable.sync_file, files))
        list(pool.map(durable.sync_directory, folders))
