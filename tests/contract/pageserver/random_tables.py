"""Random workloads before and after a cut: each table from the layers equals that of a full copy.

python tests/contract/pageserver/random_tables.py --pg-major 15 --seeds 0-50
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
import psycopg
from folder_survey import survey_folder
from page_world import PageWorld, into_place
from random_epochs import PROMOTION_CHANCE, SEGMENT_BYTES, STEPS, NotEqual, new_folder
from random_workload import RandomWorkload
from seed_runs import run_seeds

from quorum_wal.backup.unpack import Unpacking
from quorum_wal.pageserver.epochs.in_place_tablespaces import link_range
from quorum_wal.pageserver.pitr.promoted_server import PromotedServer, ServerLimits
from quorum_wal.pageserver.pitr.restore_point import RestorePoint
from quorum_wal.pageserver.pitr.restored_table import RestoredDatabase
from quorum_wal.pageserver.pitr.sparse_restore import SparseRestore
from quorum_wal.pageserver.pitr.table_name import TableName
from quorum_wal.pg_fixtures.postgres import SUPERUSER, Postgres
from quorum_wal.pg_server.binaries import PostgresBinaries
from quorum_wal.pg_server.program import run_program
from quorum_wal.pgwal.lsn import Lsn

_TABLES = """
SELECT relname FROM pg_class
WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p', 'm') ORDER BY 1
"""
_DATABASES = "SELECT datname FROM pg_database WHERE datallowconn ORDER BY 1"
PREPARED_MAX = 100


def run_seed(binaries: PostgresBinaries, root: Path, seed: int) -> int:
    """Works in the empty folder `root`. Returns the number of equal tables. Raises NotEqual,
    PageserverError."""
    chance = random.Random(f"{seed} of tables")
    server = Postgres(binaries, root / "primary", wal_seg_size=SEGMENT_BYTES)
    load = RandomWorkload(server, seed, lambda name: new_folder(world, name))
    server.init(*load.init_options())
    world = PageWorld(server, root)
    try:
        server.start()
        server.configure(**load.settings())
        world.start()
        load.run(STEPS // 2)
        world.take_base()
        load.run(STEPS)
        if chance.random() < PROMOTION_CHANCE:
            load.move_to(world.promote())
        target = world.cut()
        world.replay(target)
        load.run(STEPS)
        ((lsn, tli),) = world.primary.execute(
            "SELECT pg_current_wal_insert_lsn()::text, timeline_id FROM pg_control_checkpoint()"
        )
        world.switch_wal()
    finally:
        load.close()
        world.primary.crash()
    target_lsn = int(Lsn.parse(lsn))
    point = RestorePoint(
        world.frame, world.stack(), world.wal, world.redo_lsn, target.end_lsn, target_lsn, tli,
        survey_folder(world.wal, world.redo_lsn, target_lsn, tli),
    )  # fmt: skip
    with full_copy(world, point) as full:
        return _compare(world, point, full)


@contextmanager
def full_copy(world: PageWorld, point: RestorePoint) -> Iterator[PromotedServer]:
    """A server on the full base backup, promoted at the same record. No page may be missing."""
    data_dir = world.root / "full"
    spaces = {
        each.path: world.root / f"{Path(each.path).name}-of-full"
        for each in world.backup.archives
        if each.path
    }
    Unpacking(
        data_dir=data_dir, tablespaces=spaces, owner=world.server.account, is_synced=False
    ).run(world.catalog, world.backup)
    for where in spaces.values():
        into_place(data_dir, where)
    for name in ("postgresql.auto.conf", "tablespace_map"):
        (data_dir / name).unlink(missing_ok=True)
    start_lsn = world.backup.start_lsn
    whole = survey_folder(world.wal, start_lsn, point.target_lsn, point.tli)
    created, stop = whole.touches.tablespaces_created, whole.stop
    link_range(world.wal, start_lsn, stop.end_lsn, stop.tli, created, data_dir, world.server.give)
    limits = ServerLimits(prepared=PREPARED_MAX, locks=0)
    with PromotedServer(world.server, data_dir, stop, limits) as server:
        if server.invalid_relations():
            raise NotEqual(f"the full copy lacks pages of {server.invalid_relations()}")
        yield server


def _compare(world: PageWorld, point: RestorePoint, full: PromotedServer) -> int:
    restore = SparseRestore(world.root, world.server)
    count = 0
    with psycopg.connect(full.conninfo("postgres", SUPERUSER)) as connection:
        databases = [name for (name,) in connection.execute(_DATABASES)]
    for database in databases:
        conninfo = full.conninfo(database, SUPERUSER)
        RestoredDatabase(world.server.binaries, conninfo).roll_back_prepared()
        with psycopg.connect(conninfo) as connection:
            tables = [name for (name,) in connection.execute(_TABLES)]
        for table in tables:
            path = world.root / "dump.sql"
            with restore.table(point, TableName(database, "public", table)) as restored:
                restored.dump(path)
                names = [f"--table={each.quoted()}" for each in restored.family or ()]
            program = [world.server.binaries.program("pg_dump"), f"--dbname={conninfo}", *names]
            if _statements(path.read_text()) != _statements(run_program(program).stdout):
                raise NotEqual(f"{database}.public.{table} at {point.target}: see {path}")
            path.unlink()
            count += 1
    return count


def _statements(text: str) -> list[str]:
    return [line for line in text.splitlines() if "restrict " not in line]


@click.command()
@click.option("--pg-major", type=int, default=None)
@click.option("--seeds", default="0-20", help="FIRST-LAST, without the last.")
def main(pg_major: int | None, seeds: str) -> None:
    def run(binaries: PostgresBinaries, root: Path, seed: int) -> str:
        return f"{run_seed(binaries, root, seed)} tables are equal"

    run_seeds(pg_major, seeds, run)


if __name__ == "__main__":
    main()
