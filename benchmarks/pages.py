"""`pages`: the cost of a pageserver's core: WAL surveyed, replayed and compressed into a layer.

    images    pgbench: nearly all of the WAL is page images
    dense     INSERT and UPDATE of tiny rows: records of 60 to 100 bytes
    vacuum    the first VACUUM of loaded tables, with neither checksums nor wal_log_hints: WAL of
              60 bytes per page, and each page must be read from the base and stored

Processor time is that of this process and of the replaying server together, which does not depend
on other work of the machine. All rounds use the same base backup and WAL.
"""

from __future__ import annotations

import resource
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from pathlib import Path

import psycopg

from benchmarks.rounds import Spread, Verdict
from quorum_wal.backup.backup_catalog import BackupCatalog
from quorum_wal.backup.base_backup import BackupOptions
from quorum_wal.backup.create import BackedUpServer, create_backup
from quorum_wal.consensus.ids import TimelineId
from quorum_wal.consensus.messages import ServerFacts
from quorum_wal.objectstore.archive import ArchivedTimeline, TimelineArchive
from quorum_wal.objectstore.local import LocalStore
from quorum_wal.pageserver.epochs.checkpoint_scan import checkpoints_of
from quorum_wal.pageserver.epochs.epoch import EpochInput, EpochReplay
from quorum_wal.pageserver.epochs.redo import RedoServer
from quorum_wal.pageserver.epochs.wal_folder import WalFolder
from quorum_wal.pageserver.layers.backup_base import BackupBase, read_backup
from quorum_wal.pageserver.layers.page_stack import PageStack
from quorum_wal.pageserver.layers.touches import Checkpoint
from quorum_wal.pg_fixtures.postgres import Postgres
from quorum_wal.pg_fixtures.waiting import wait_until
from quorum_wal.pg_server.account import server_account
from quorum_wal.pg_server.binaries import PostgresBinaries
from quorum_wal.pgwal.lsn import Lsn

IMAGES, DENSE, VACUUM = "images", "dense", "vacuum"
KINDS = (IMAGES, DENSE, VACUUM)
RATE_MIN = {IMAGES: 150.0, DENSE: 50.0}  # MB of WAL per second of processor time
RSS_MB_MAX = 600.0
SCALE = 40
IMAGE_TRANSACTIONS = 12_000
DENSE_ROWS = 4_000_000
LOADED = (
    "CREATE TABLE loaded AS SELECT g AS a, repeat('x', 100) AS b FROM generate_series(1, 4000000) g"
)
TIMEOUT = 60.0
COLUMNS = (
    *("WAL", "MB", "pages", "read", "MB a CPU second", "pages a CPU second"),
    *("seconds", "layers, MB", "pages, MB", "RSS MB"),
)


@dataclass(frozen=True, slots=True)
class PagesSample:
    """One epoch. `base_pages`: pages read from the base for it. `layer_mb` is compressed, `page_mb`
    is the size before compression."""

    kind: str
    round: int
    wal_mb: float
    pages: int
    base_pages: int
    mb_a_cpu_second: float
    pages_a_cpu_second: float
    seconds: float
    layer_mb: float
    page_mb: float
    rss_mb: float


def measure(binaries: PostgresBinaries, directory: Path, rounds: int) -> Iterator[PagesSample]:
    """Yields each sample when it is taken."""
    materials = [_Material(binaries, directory / kind, kind) for kind in KINDS]
    for number in range(rounds):
        for material in materials:
            yield material.sample(number)


class _Material:
    """A base backup, and the WAL of one epoch after it."""

    def __init__(self, binaries: PostgresBinaries, root: Path, kind: str) -> None:
        root.mkdir()
        root.chmod(0o755)
        self._root, self._kind = root, kind
        self._server = RedoServer(binaries, server_account())
        wal_dir = root / "wal"
        wal_dir.mkdir()
        self._server.give(wal_dir)
        settings = {
            "archive_mode": True,
            "archive_command": f"cp %p {wal_dir}/.%f && mv {wal_dir}/.%f {wal_dir}/%f",
            "autovacuum": False,
            "checkpoint_timeout": "1d",
            "max_wal_size": "32GB",
            "shared_buffers": "1GB",
        }
        primary = Postgres(binaries, root / "primary", settings=settings)
        primary.init(*_checksums(binaries, kind != VACUUM))
        with primary:
            facts = _facts(primary)
            self._wal = WalFolder(wal_dir, facts)
            if kind == VACUUM:
                primary.execute(LOADED)
            else:
                primary.pgbench("--initialize", f"--scale={SCALE}", "--quiet")
            self._take_base(primary, facts)
            self._load(primary)
            self._target = self._cut(primary)
        shutil.rmtree(primary.data_dir)

    def sample(self, number: int) -> PagesSample:
        work_dir = self._root / "epoch"
        work_dir.mkdir()
        base = BackupBase(self._catalog, self._backup, self._files)
        redo_lsn = self._backup.start_lsn
        given = EpochInput(self._frame, PageStack(base, []), self._wal, redo_lsn, self._target)
        begun, cpu_begun = time.monotonic(), _cpu_seconds()
        made = EpochReplay(work_dir, self._server).run(given)
        cpu, seconds = _cpu_seconds() - cpu_begun, time.monotonic() - begun
        wal_mb = (self._target.end_lsn - redo_lsn) / 1e6
        sample = PagesSample(
            kind=self._kind,
            round=number,
            wal_mb=wal_mb,
            pages=made.touches.page_count,
            base_pages=sum(int(each.needs_base.sum()) for each in made.touches.pages),
            mb_a_cpu_second=wal_mb / cpu,
            pages_a_cpu_second=made.touches.page_count / cpu,
            seconds=seconds,
            layer_mb=sum(part.stat().st_size for part in made.parts) / 1e6,
            page_mb=made.touches.page_count * 8192 / 1e6,
            rss_mb=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        )
        shutil.rmtree(work_dir)
        return sample

    def _take_base(self, primary: Postgres, facts: ServerFacts) -> None:
        archived = ArchivedTimeline(facts.system_id, facts.pg_version, facts.wal_seg_size, 1, 0)
        store = LocalStore(str(self._root / "archive"))
        archive = TimelineArchive.create(store, TimelineId(bytes(16), bytes(16)), archived)
        self._catalog = BackupCatalog(archive)
        server = BackedUpServer(facts.system_id, facts.pg_version, False, lambda: datetime.now(UTC))
        dsn = primary.dsn(replication="true")
        with closing(psycopg.connect(dsn, autocommit=True)) as connection:
            self._backup = create_backup(
                connection, server, self._catalog, BackupOptions(label="base")
            )
        frame = self._root / "frame.tar"
        self._files, self._frame = read_backup(self._catalog, self._backup, frame)

    def _load(self, primary: Postgres) -> None:
        if self._kind == IMAGES:
            count = f"--transactions={IMAGE_TRANSACTIONS}"
            primary.pgbench("--client=4", count, "--no-vacuum", "--skip-some-updates")
            return
        if self._kind == VACUUM:
            primary.execute("VACUUM loaded")
            return
        primary.execute("CREATE TABLE dense (a int, b int)")
        primary.execute(f"INSERT INTO dense SELECT g, g FROM generate_series(1, {DENSE_ROWS}) g")
        primary.execute(f"UPDATE dense SET b = b + 1 WHERE a < {DENSE_ROWS // 3}")

    def _cut(self, primary: Postgres) -> Checkpoint:
        primary.execute("CHECKPOINT")
        ((lsn, tli),) = primary.execute(
            "SELECT checkpoint_lsn::text, timeline_id FROM pg_control_checkpoint()"
        )
        ((name,),) = primary.execute("SELECT pg_walfile_name(pg_current_wal_insert_lsn())")
        primary.execute("SELECT pg_switch_wal()")
        wait_until(lambda: (self._wal.path / name).exists(), TIMEOUT, f"{name} in the folder")
        start_lsn = int(Lsn.parse(lsn))
        for index in self._wal.records(self._backup.start_lsn, start_lsn + 1, tli):
            for checkpoint in checkpoints_of(index):
                if checkpoint.start_lsn == start_lsn:
                    return checkpoint
        raise AssertionError("the checkpoint is in the WAL")


def _checksums(binaries: PostgresBinaries, is_on: bool) -> list[str]:
    """Options of initdb, which has checksums by default since 18."""
    if is_on:
        return ["--data-checksums"]
    return ["--no-data-checksums"] if binaries.major >= 18 else []


def _facts(primary: Postgres) -> ServerFacts:
    control = primary.control_data()
    ((version,),) = primary.execute("SHOW server_version_num")
    return ServerFacts(
        int(control["Database system identifier"]),
        int(version),
        int(control["Bytes per WAL segment"]),
    )


def _cpu_seconds() -> float:
    """The CPU time of this process and of its ended children."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def table(samples: Sequence[PagesSample]) -> list[list[str]]:
    """Medians."""
    rows = [list(COLUMNS)]
    for kind in dict.fromkeys(sample.kind for sample in samples):
        own = [sample for sample in samples if sample.kind == kind]
        medians = {
            name: Spread.of([getattr(each, name) for each in own]).median
            for name in (field.name for field in fields(PagesSample))
            if name not in ("kind", "round")
        }
        seconds = medians.pop("seconds")
        *counts, layer_mb, page_mb, rss_mb = (f"{value:.0f}" for value in medians.values())
        rows.append([kind, *counts, f"{seconds:.2f}", layer_mb, page_mb, rss_mb])
    return rows


def verdicts(samples: Sequence[PagesSample]) -> list[Verdict]:
    """The rate for each kind of WAL, and the memory."""
    found = []
    for kind, rate_min in RATE_MIN.items():
        rate = Spread.of([each.mb_a_cpu_second for each in samples if each.kind == kind])
        claim = f"{kind}: {rate_min:g} MB of WAL a second of one core"
        found.append(Verdict(claim, rate, rate_min, True))
    rss = Spread.of([each.rss_mb for each in samples])
    found.append(Verdict(f"memory below {RSS_MB_MAX:g} MB", rss, RSS_MB_MAX, False))
    return found
