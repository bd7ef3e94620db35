"""A branch is made: a whole data directory at a moment, on a timeline of its own, at rest.

    cut's pages + WAL  ->  replay, promotion  ->  subscriptions off, checkpoint  ->  its own files
    work/, data/           a private server                                         branch.json

Laws. Until the end the server is one that only we reach, and that ends with us (`PromotedServer`).
A moment that cannot be had leaves no folder; what was killed leaves one that says so. branch.json
is written when all is on the disk.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

import psycopg

from backup.wal_source import WalSource
from objectstore.archive import TimelineArchive
from pageserver.branch_folder import BranchFolder
from pageserver.branch_record import Branch
from pageserver.branch_settings import (
    AUTO_CONF,
    CONF,
    HBA,
    IDENT,
    LOCAL_HBA,
    OF_CLUSTER,
    answer_settings,
    check_chosen,
    configuration,
    own_settings,
)
from pageserver.catalog_files import pages_in_directory
from pageserver.control_file import CONTROL_FILE, ControlFile
from pageserver.errors import BranchError
from pageserver.fork import PAGE_BYTES
from pageserver.in_place_tablespaces import WAL_FOLDER, link_range
from pageserver.moments import Moment, Moments
from pageserver.promoted_server import PromotedServer, ServerLimits, StopPoint
from pageserver.redo import CONF_FOLDER, RedoServer
from pageserver.sparse_restore import RestorePoint, survey_up_to
from pageserver.touches import Touches
from pageserver.virtual_full import write_virtual_full
from pg_server.program import run_program
from storage import durable
from telemetry.size import bytes_text

SYNC_THREADS = 8
#: New WAL, logs, the pages that the replay adds.
SPARE_BYTES = 64 << 20

_LOG_PREFIX = re.compile(r".*?(?:LOG|FATAL):\s+")
#: A branch must not take changes out of a publisher's slot, or drop it: neither enabled nor named.
_DISABLE_SUBSCRIPTIONS = "UPDATE pg_subscription SET subenabled = false, subslotname = NULL"
_STATE = "SELECT pg_last_xact_replay_timestamp(), (SELECT count(*) FROM pg_prepared_xacts)"


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchRequest:
    """`settings` are for its postgresql.conf; `cluster_hba`: who may connect is as the cluster's
    pg_hba.conf says."""

    moment: Moment
    port: int
    settings: Mapping[str, str] = field(default_factory=dict)
    cluster_hba: bool = False
    is_synced: bool = True


@dataclass(frozen=True, slots=True)
class Progress:
    """Hears of the moment that was found, whether the WAL ends before it is certain; and of pages:
    how many there are, and how many more are written."""

    found: Callable[[RestorePoint, bool], None] = lambda point, is_wal_end: None
    expect_bytes: Callable[[int], None] = lambda size: None
    more_bytes: Callable[[int], None] = lambda size: None


@dataclass(frozen=True, slots=True)
class _Answers:
    """Of the private server."""

    database: str
    superuser: str
    last_commit_at: datetime | None
    prepared: int


class BranchCreation:
    """Used once."""

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
        # All pages are there: one that is missing is an error, as in any recovery.
        more = {**redo.more_settings, "ignore_invalid_pages": "off"}
        self._redo = replace(redo, more_settings=more)
        self._request = request
        self._progress = progress

    def run(self) -> Branch:
        """Made, and at rest. Raises PageserverError, BackupError, ObjectStoreError, StorageError,
        PgServerError; nothing is left then."""
        check_chosen(self._request.settings)
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
        self._check_settings()
        moments = Moments(self._archive, self._sources, self._folder.work)
        point = moments.open(self._request.moment)
        self._progress.found(point, moments.is_wal_end)
        touches, stop = survey_up_to(point)
        self._check_hba(point)
        self._check_space(point)
        self._write_pages(point)
        self._write_wal(point, touches, stop)
        limits = _limits(point, touches)
        answers = self._promote(stop, limits)
        self._write_own_files(limits)
        if self._request.is_synced:
            _sync_tree(self._folder.data)
        return self._branch(point, answers)

    # ---- before anything is written

    def _check_settings(self) -> None:
        """Raises BranchError: Postgres does not accept what a user sets."""
        refusal = self._refusal(self._configuration(0))
        if refusal:
            raise BranchError(f"Postgres refuses a setting: {refusal}", hint="See --set.")

    def _configuration(self, prepared_max: int, of_cluster: Sequence[str] = ()) -> str:
        settings = own_settings(self._folder.name, self._request.port, prepared_max)
        return configuration({**settings, **self._request.settings}, of_cluster)

    def _refusal(self, conf: str) -> str:
        """What Postgres has against a configuration; "" when it takes it."""
        with tempfile.TemporaryDirectory(dir=self._folder.work) as created:
            folder = Path(created)
            self._redo.give(folder)
            for name, text in ((CONF, conf), (AUTO_CONF, "")):
                (folder / name).write_text(text)
                self._redo.give(folder / name)
            postgres = self._redo.binaries.program("postgres")
            program = [postgres, "-C", "port", "-D", folder]
            done = run_program(program, account=self._redo.account, check=False)
        if done.returncode == 0:
            return ""
        first = next(iter(done.stderr.splitlines()), "it gave no reason")
        return _LOG_PREFIX.sub("", first)

    def _check_hba(self, point: RestorePoint) -> None:
        """Raises BranchError."""
        if self._request.cluster_hba and HBA not in point.frame.names():
            raise BranchError(
                "the cluster has no pg_hba.conf in its data directory",
                hint="Without --cluster-hba: by password on the loopback, or by the socket.",
            )

    def _check_space(self, point: RestorePoint) -> None:
        """Raises BranchError. The WAL is there already."""
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
                hint="Drop another one, or name a larger disk with --branches-dir.",
            )

    # ---- the data directory

    def _write_pages(self, point: RestorePoint) -> None:
        for folder in (self._folder.data, self._folder.socket):
            folder.mkdir(mode=0o700)
            self._redo.give(folder)
        write_virtual_full(
            self._folder.data,
            point.frame,
            point.source,
            pg_major=self._pg_major,
            give=self._redo.give,
            progress=lambda pages: self._progress.more_bytes(pages * PAGE_BYTES),
        )
        for name in (CONF, AUTO_CONF, HBA, IDENT):
            path = self._folder.data / name
            if path.exists():
                path.rename(path.with_name(name + OF_CLUSTER))

    def _write_wal(self, point: RestorePoint, touches: Touches, stop: StopPoint) -> None:
        """The files themselves: the server is to keep them, and to remove them one day."""
        link_range(
            point.wal, point.redo_lsn, stop.end_lsn, stop.tli,
            touches.tablespaces_created, self._folder.data, self._redo.give,
        )  # fmt: skip
        for link in (self._folder.data / WAL_FOLDER).iterdir():
            if link.is_symlink():
                link.resolve().replace(link)
                link.chmod(0o600)
                self._redo.give(link)

    def _promote(self, stop: StopPoint, limits: ServerLimits) -> _Answers:
        with PromotedServer(self._redo, self._folder.data, stop, limits) as server:
            answers = self._ask(server)
            server.shut_down()
        return answers

    def _ask(self, server: PromotedServer) -> _Answers:
        """As a superuser; some row versions of roles and databases may be gone by now."""
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
                    return _settle(connection, database, superuser)
        raise BranchError(f"no superuser of the cluster can log in: {refusal or 'there is none'}")

    def _write_own_files(self, limits: ServerLimits) -> None:
        data = self._folder.data
        shutil.rmtree(data / CONF_FOLDER)
        (data / "postmaster.opts").unlink(missing_ok=True)
        of_cluster = [data / (name + OF_CLUSTER) for name in (CONF, AUTO_CONF)]
        texts = [path.read_text(errors="replace") for path in of_cluster if path.exists()]
        conf = self._configuration(limits.prepared, answer_settings(*texts))
        if self._refusal(conf):  # a time zone that this machine does not have, for instance
            conf = self._configuration(limits.prepared)
        files = {CONF: conf.encode(), AUTO_CONF: b""}
        files |= self._access_files()
        for name, content in files.items():
            durable.replace_file(data / name, content, like=data / "PG_VERSION")

    def _access_files(self) -> dict[str, bytes]:
        if not self._request.cluster_hba:
            return {HBA: LOCAL_HBA.encode(), IDENT: b""}
        hba, ident = (self._folder.data / (name + OF_CLUSTER) for name in (HBA, IDENT))
        return {HBA: hba.read_bytes(), IDENT: ident.read_bytes() if ident.exists() else b""}

    def _branch(self, point: RestorePoint, answers: _Answers) -> Branch:
        binaries = self._redo.binaries
        return Branch(
            name=self._folder.name,
            timeline=str(self._archive.timeline),
            lsn=point.target_lsn,
            cut_lsn=point.cut_lsn,
            tli=self._control_file().tli,
            moment=self._request.moment.time,
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


def _limits(point: RestorePoint, touches: Touches) -> ServerLimits:
    return ServerLimits(max(point.frame.control_file().prepared_max, touches.prepared_max), 0)


def _settle(
    connection: psycopg.Connection[tuple[datetime | None, int]], database: str, superuser: str
) -> _Answers:
    """Raises BranchError."""
    try:
        connection.execute(_DISABLE_SUBSCRIPTIONS)
        row = connection.execute(_STATE).fetchone()
        connection.commit()
    except psycopg.Error as error:
        raise BranchError(f"the branch could not be asked: {error}") from error
    assert row is not None
    return _Answers(database, superuser, *row)


def _sync_tree(folder: Path) -> None:
    """Each file, then each folder. Raises StorageError."""
    files: list[Path] = []
    folders: list[Path] = []
    for path, _, names in os.walk(folder):
        folders.append(Path(path))
        files += [Path(path, name) for name in names]
    with ThreadPoolExecutor(SYNC_THREADS) as pool:
        list(pool.map(durable.sync_file, files))
        list(pool.map(durable.sync_directory, folders))
