"""A cluster with all kinds of changes to table files, one cut, and one position after it; and the
contents of a full copy replayed up to that position."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
from folder_survey import survey_folder
from page_world import TIMEOUT, PageWorld
from psycopg import sql

from quorum_wal.backup.unpack import Unpacking
from quorum_wal.pageserver.layers.fork import Fork
from quorum_wal.pageserver.layers.page_run import Run
from quorum_wal.pageserver.layers.page_stack import PageBase
from quorum_wal.pageserver.layers.touches import Numbers
from quorum_wal.pageserver.pitr.restore_point import RestorePoint
from quorum_wal.pg_fixtures.postgres import Postgres
from quorum_wal.pg_fixtures.waiting import wait_until
from quorum_wal.pg_server.binaries import PostgresBinaries
from quorum_wal.pgwal.lsn import Lsn

SEGMENT_BYTES = 1 << 20
CHECKSUMS_MAJOR = 16
DATABASE = "shop"
TOAST = "(SELECT string_agg(md5(g::text || i), '') FROM generate_series(1, 200) i)"
BEFORE_BASE = (
    "CREATE TYPE mood AS ENUM ('sad', 'ok')",
    'CREATE SCHEMA "Odd.Name"',
    'CREATE TABLE "Odd.Name"."we""ird" (a int)',
    "CREATE TABLE orders (id serial PRIMARY KEY, v int, note text, m mood DEFAULT 'ok')",
    f"INSERT INTO orders (v, note) SELECT g, {TOAST} FROM generate_series(1, 40) g",
    "CREATE TABLE rewritten (k int PRIMARY KEY, v int, t text)",
    "INSERT INTO rewritten SELECT g, g, md5(g::text) FROM generate_series(1, 3000) g",
    "CREATE TABLE quiet AS SELECT g, md5(g::text) t FROM generate_series(1, 5000) g",
    "CREATE TABLE emptied AS SELECT g, md5(g::text) t FROM generate_series(1, 3000) g",
    "CREATE TABLE in_flight (k int PRIMARY KEY, v int, t text)",
    f"INSERT INTO in_flight SELECT g, g, {TOAST} FROM generate_series(1, 30) g",
    "CREATE TABLE old_name AS SELECT g, md5(g::text) t FROM generate_series(1, 3000) g",
    "CREATE TABLE neighbour AS SELECT g, repeat('x', 500) t FROM generate_series(1, 12000) g",
    "CREATE TABLE parts (k int, t text, PRIMARY KEY (k)) PARTITION BY RANGE (k)",
    "CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM (0) TO (1000)",
    "CREATE TABLE parts_2 (t text, gone int, k int NOT NULL)",
    "ALTER TABLE parts_2 DROP gone",
    f"INSERT INTO parts_2 SELECT {TOAST}, g FROM generate_series(1000, 1030) g",
    "INSERT INTO parts SELECT g, md5(g::text) FROM generate_series(0, 900) g",
    "CREATE MATERIALIZED VIEW summed AS SELECT g % 7 AS seven, count(*) FROM quiet GROUP BY 1",
    "CREATE UNIQUE INDEX ON summed (seven)",
    "CREATE UNLOGGED TABLE unlogged AS SELECT generate_series(1, 500) g",
    "CREATE VIEW looked_at AS SELECT 1",
    "CREATE TABLE placed TABLESPACE elsewhere AS SELECT generate_series(1, 700) g",
    "VACUUM FULL pg_class",
    "VACUUM FULL pg_attribute",
    "VACUUM FULL pg_type",
)
BEFORE_CUT = (
    "UPDATE orders SET v = v + 1",
    "VACUUM (FREEZE) quiet",
    "VACUUM FULL pg_class",
    "CREATE TABLE held AS SELECT generate_series(1, 100) g",
)
#: Begun before the cut, and committed after it.
OPEN = ("ALTER TABLE in_flight ALTER v TYPE bigint",)
#: The same for a catalog in the relation map: the cut does not know its new file.
OTHER_DATABASE = "other"
OPEN_IN_OTHER = ("CLUSTER pg_proc USING pg_proc_oid_index",)
IN_EPOCH = (
    f"INSERT INTO orders (v, note) SELECT g, {TOAST} FROM generate_series(1, 20) g",
    "ALTER TYPE mood ADD VALUE 'happy'",
    "UPDATE orders SET m = 'happy' WHERE id % 3 = 0",
    "DELETE FROM orders WHERE id % 5 = 0",
    "VACUUM orders",
    "VACUUM FULL rewritten",
    "ALTER TABLE rewritten ALTER v TYPE bigint",
    "ALTER TABLE rewritten ADD w float DEFAULT 1.5",
    "UPDATE rewritten SET w = k WHERE k % 9 = 0",
    "UPDATE quiet SET t = 'new' WHERE g = 77",
    "TRUNCATE emptied",
    "INSERT INTO emptied SELECT g, 'again' FROM generate_series(1, 10) g",
    "ALTER TABLE old_name RENAME TO new_name",
    "ALTER TABLE parts ATTACH PARTITION parts_2 FOR VALUES FROM (1000) TO (2000)",
    "INSERT INTO parts SELECT g, 'more' FROM generate_series(1100, 1200) g",
    "CREATE TABLE short_life (id serial, t text)",
    f"INSERT INTO short_life (t) SELECT {TOAST} FROM generate_series(1, 20) g",
    "UPDATE neighbour SET t = 'y' WHERE g % 1000 = 0",
    "REFRESH MATERIALIZED VIEW summed",
    "VACUUM neighbour",  # first, because without checksums it marks pages without images
    "VACUUM FULL pg_class",
    "VACUUM FULL pg_attribute",
)
LEFT_PREPARED = ("BEGIN; ALTER TABLE held ADD more int; PREPARE TRANSACTION 'held'",)
BEHIND_TARGET = (
    "DROP TABLE short_life",
    "DELETE FROM quiet",
    "DROP TABLE parts",
    "ALTER TABLE orders ADD later int",
)


class LackingBase:
    """A damaged stack without the pages of one file."""

    def __init__(self, base: PageBase, number: int) -> None:
        self._base = base
        self._number = number

    def read(self, fork: Fork, blocks: Numbers) -> Iterator[Run]:
        return iter(()) if fork.number == self._number else self._base.read(fork, blocks)


class CountedBase:
    """Counts the pages read from each fork."""

    def __init__(self, base: PageBase) -> None:
        self._base = base
        self.counts: dict[Fork, int] = {}

    def read(self, fork: Fork, blocks: Numbers) -> Iterator[Run]:
        self.counts[fork] = self.counts.get(fork, 0) + len(blocks)
        return self._base.read(fork, blocks)


class TableWorld:
    """`point` is the input of a sparse restore. `full` is a server on a full copy, promoted there.
    `files`: file number and length in pages at the cut, by relation."""

    def __init__(self, binaries: PostgresBinaries, root: Path) -> None:
        primary = Postgres(binaries, root / "primary", wal_seg_size=SEGMENT_BYTES)
        primary.init(*_checksums(binaries.major))
        self.world = PageWorld(primary, root)
        self.root = root
        try:
            self.world.start()
            self._live(primary)
        finally:
            primary.crash()

    def _live(self, primary: Postgres) -> None:
        world = self.world
        for name in (DATABASE, OTHER_DATABASE, "old_database"):
            primary.execute(f"CREATE DATABASE {name}")
        primary.execute("CREATE TABLE here AS SELECT 1 AS one", dbname=OTHER_DATABASE)
        space = self._folder("elsewhere")
        primary.execute(f"CREATE TABLESPACE elsewhere LOCATION '{space}'")
        self._do(primary, BEFORE_BASE)
        world.take_base()
        self._base = world.frame, world.stack()
        self._do(primary, BEFORE_CUT)
        with (
            psycopg.connect(primary.dsn(dbname=DATABASE)) as one,
            psycopg.connect(primary.dsn(dbname=OTHER_DATABASE)) as two,
        ):
            for statement in OPEN:
                one.execute(statement)
            for statement in OPEN_IN_OTHER:
                two.execute(statement)
            self.files = _files(primary)
            target = world.cut()
            world.replay(target)
        self._do(primary, IN_EPOCH)
        self._make_databases(primary)
        self._do(primary, LEFT_PREPARED)
        ((lsn,),) = primary.execute("SELECT pg_current_wal_insert_lsn()::text")
        self.cut = target
        self.target_lsn = int(Lsn.parse(lsn))
        self._do(primary, BEHIND_TARGET)
        world.switch_wal()

    def _make_databases(self, primary: Postgres) -> None:
        """Creates one database from another, before 15 by copying its files, and renames one."""
        copied = " STRATEGY file_copy" if primary.binaries.major >= 15 else ""
        primary.execute(f"CREATE DATABASE made TEMPLATE {DATABASE}{copied}")
        primary.execute("CREATE TABLE here AS SELECT generate_series(1, 50) g", dbname="made")
        primary.execute("ALTER DATABASE old_database RENAME TO new_database")
        primary.execute("CREATE TABLE here AS SELECT 2 AS two", dbname="new_database")

    def _do(self, primary: Postgres, statements: tuple[str, ...]) -> None:
        with primary.connect(dbname=DATABASE) as connection:
            for statement in statements:
                connection.execute(statement)

    def point(self, base: PageBase | None = None, target_lsn: int | None = None) -> RestorePoint:
        world, redo_lsn = self.world, self.world.redo_lsn
        target = target_lsn or self.target_lsn
        return RestorePoint(
            world.frame, base or world.stack(), world.wal, redo_lsn, self.cut.end_lsn, target, 1,
            survey_folder(world.wal, redo_lsn, target, 1),
        )  # fmt: skip

    def point_of_base(self) -> RestorePoint:
        """The same position, restored from the base backup."""
        world, backup, target = self.world, self.world.backup, self.target_lsn
        return RestorePoint(
            *self._base, world.wal, backup.start_lsn, backup.stop_lsn, target, 1,
            survey_folder(world.wal, backup.start_lsn, target, 1),
        )  # fmt: skip

    def _folder(self, name: str) -> Path:
        path = self.root / name
        path.mkdir()
        self.world.server.give(path)
        return path

    @contextmanager
    def full(self) -> Iterator[Postgres]:
        """Recovered by the server itself from the whole base backup."""
        world, data_dir = self.world, self.root / "full"
        spaces = {
            each.path: self.root / "elsewhere-of-full"
            for each in world.backup.archives
            if each.path
        }
        Unpacking(
            data_dir=data_dir, tablespaces=spaces, owner=world.server.account, is_synced=False
        ).run(world.catalog, world.backup)
        server = Postgres(world.primary.binaries, data_dir)
        server.configure(
            archive_mode="off",
            restore_command=f"cp {world.wal_dir}/%f %p",
            recovery_target_lsn=str(Lsn(self.target_lsn)),
            recovery_target_inclusive="off",
            recovery_target_action="promote",
            fsync="off",
        )
        (data_dir / "recovery.signal").touch()
        world.server.give(data_dir / "recovery.signal")
        with server:
            wait_until(
                lambda: server.execute("SELECT NOT pg_is_in_recovery()") == [(True,)],
                TIMEOUT,
                "the full copy to be promoted",
            )
            for gid, database in server.execute("SELECT gid, database FROM pg_prepared_xacts"):
                rollback = sql.SQL("ROLLBACK PREPARED {}").format(sql.Literal(gid))
                with server.connect(dbname=database) as connection:
                    connection.execute(rollback)
            yield server


def _checksums(major: int) -> list[str]:
    if major == CHECKSUMS_MAJOR:
        return ["--data-checksums"]
    return ["--no-data-checksums"] if major >= 18 else []


def _files(primary: Postgres) -> dict[str, tuple[int, int]]:
    rows = primary.execute(
        "SELECT relname, relfilenode, pg_relation_size(oid) / 8192 FROM pg_class"
        " WHERE relname IN ('quiet', 'neighbour', 'parts_1', 'pg_attrdef')",
        dbname=DATABASE,
    )
    return {name: (number, pages) for name, number, pages in rows}
