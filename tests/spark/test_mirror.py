"""A mirror equals the tables on the primary, whatever is changed, and whatever is killed."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable
from iceberg_tables import assert_iceberg_tables
from mirror_world import Workload, create_tables, mirrored_rows, rows_in_postgres
from pyspark.errors import StreamingQueryException

from quorum_wal.objectstore.store import open_store
from quorum_wal.pg_fixtures.plugin import skip_if_unavailable
from quorum_wal.pg_fixtures.postgres import Postgres
from quorum_wal.pg_fixtures.processes import SK, run_sk
from quorum_wal.pg_server.binaries import find_postgres
from quorum_wal.spark.errors import MirrorError
from quorum_wal.spark.mirror.mirror_stream import MirrorSettings, MirrorStream
from quorum_wal.spark.mirror.reader import read_mirror
from quorum_wal.spark.mirror.selection import Selection
from quorum_wal.spark.mirror.version import TableFormat, Versions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TIMEOUT = 120.0
WORKER = b"pyspark.daemon\0pyspark.worker\0"
MIRRORED = ("shop.orders", "shop.items", "shop.log", "shop.parts_n", "shop.parts_s")


def settings(postgres: Postgres, url: Path, **more: object) -> MirrorSettings:
    return MirrorSettings(
        url=str(url),
        source={"path": str(postgres.pg_wal)},
        dsn=postgres.dsn(),
        selection=Selection(("shop.*",), ("shop.tmp_*",)),
        **more,
    )


def run_once(session: SparkSession, postgres: Postgres, url: Path, **more: object) -> int:
    """Returns how many changes were applied."""
    counts: list[int] = []
    MirrorStream(settings(postgres, url, **more)).run(
        session,
        interval=None,
        on_applied=lambda applied: counts.append(applied.rows),
        is_stopping=lambda: False,
    )
    return sum(counts)


def assert_equal(postgres: Postgres, url: Path) -> None:
    for table in MIRRORED:
        assert mirrored_rows(url, table) == rows_in_postgres(postgres, table), table


@pytest.mark.parametrize(("wal_level", "major"), [("logical", 16), ("replica", 18)])
def test_random_changes_while_it_is_taken_and_later(
    session: SparkSession,
    wal_server: Callable[..., Postgres],
    tmp_path: Path,
    standby_factory: Callable[..., Postgres],
    wal_level: str,
    major: int,
) -> None:
    """With `replica`, the first copy is taken from a standby."""
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    mirror = tmp_path / "mirror"
    with skip_if_unavailable():
        binaries = find_postgres(major)
    with wal_server(tmp_path / "data", binaries, wal_level=wal_level) as postgres:
        create_tables(postgres)
        Workload(postgres, Random(seed)).run(40)
        writer = threading.Thread(target=Workload(postgres, Random(seed + 1)).run, args=(150,))
        server = postgres
        if wal_level == "replica":
            server = standby_factory(postgres, "standby", postgres.dsn())
        writer.start()
        taking = replace(settings(postgres, mirror), dsn=server.dsn())
        version, is_new = MirrorStream(taking).begin()
        assert is_new
        assert sum(table.rows for table in version.tables) > 0
        writer.join()
        run_once(session, postgres, mirror)
        assert_equal(postgres, mirror)
        assert run_once(session, postgres, mirror) == 0
        Workload(postgres, Random(seed + 2)).run(20)
        assert run_once(session, postgres, mirror) > 0
        assert_equal(postgres, mirror)


def test_changed_definitions(
    session: SparkSession, wal_server: Callable[..., Postgres], tmp_path: Path
) -> None:
    """Of existing, new, renamed and dropped tables, between changes of rows. The tables are also
    Iceberg tables."""
    mirror = tmp_path / "mirror"
    iceberg = {"table_format": TableFormat.ICEBERG}
    with wal_server(tmp_path / "data") as postgres:
        create_tables(postgres)
        Workload(postgres, Random(1)).run(40)
        MirrorStream(settings(postgres, mirror, **iceberg)).begin()
        for statement in DDL:
            postgres.execute(statement)
        run_once(session, postgres, mirror, **iceberg)
        tables = (*MIRRORED, "shop.newer", "shop.renamed", "shop.parts_w")
        for table in tables:
            if table not in ("shop.items", "shop.parts_s"):
                assert mirrored_rows(mirror, table) == rows_in_postgres(postgres, table), table
        assert_iceberg_tables(mirror)
        version = Versions(open_store(str(mirror))).newest()
        assert version is not None
        names = {each.name for each in version.tables}
        assert {"shop.items", "shop.parts_s", "shop.tmp_x", "public.other"}.isdisjoint(names)
        (parts,) = postgres.execute("SELECT count(*) FROM shop.parts")[0]
        assert read_mirror(session, str(mirror), "shop.parts").count() == parts > 0
        (total,) = postgres.execute("SELECT sum(weight) FROM shop.orders")[0]
        frame = read_mirror(session, str(mirror), "shop.orders")
        assert frame.selectExpr("sum(weight)").collect()[0][0] == total
        postgres.execute("ALTER TABLE shop.tmp_x RENAME TO wanted")
        with pytest.raises(StreamingQueryException, match=r"shop\.wanted at .* is now one of"):
            run_once(session, postgres, mirror, **iceberg)
        assert Versions(open_store(str(mirror))).newest() == version


DDL = (
    "ALTER TABLE shop.orders ADD weight int DEFAULT 7",
    "UPDATE shop.orders SET weight = 8, note = 'heavy' WHERE id % 2 = 0",
    "ALTER TABLE shop.orders RENAME note TO remark",
    "ALTER TABLE shop.orders DROP raw, ADD extra text",
    "INSERT INTO shop.orders (id, state, remark, extra) VALUES (1000, 'new', 'x', 'y')",
    "ALTER TYPE shop.state RENAME VALUE 'new' TO 'open'",
    "ALTER TYPE shop.state ADD VALUE 'lost' BEFORE 'paid'",
    "ALTER TABLE shop.orders ALTER total TYPE numeric(14, 2)",
    "INSERT INTO shop.orders (id, state, total) VALUES (1001, 'lost', 123456789012.25)",
    "ALTER TABLE shop.orders ALTER id TYPE bigint",
    "VACUUM FULL shop.orders",
    "UPDATE shop.orders SET id = id + 5000 WHERE id < 20",
    "CREATE TABLE shop.newer (a int PRIMARY KEY, b text)",
    "INSERT INTO shop.newer SELECT i, 'b' || i FROM generate_series(1, 300) i",
    "TRUNCATE shop.newer",
    "INSERT INTO shop.newer VALUES (1, 'after'), (2, NULL)",
    "ALTER TABLE shop.newer ADD UNIQUE (b)",
    "CREATE TABLE shop.tmp_x (a int PRIMARY KEY)",
    "INSERT INTO shop.tmp_x VALUES (1)",
    "ALTER TABLE shop.items RENAME TO renamed",
    "UPDATE shop.renamed SET amount = -1",
    "CREATE TABLE shop.parts_w PARTITION OF shop.parts FOR VALUES IN ('w')",
    "INSERT INTO shop.parts VALUES (1, 'w', 1), (2, 'w', 2)",
    "DELETE FROM shop.parts_w WHERE id = 2",
    "DROP TABLE shop.parts_s",
    "INSERT INTO public.other VALUES (12345)",
)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--format", "iceberg", "--into", "memory://"), 'Iceberg tables cannot be in "memory://"'),
        ((), "there is no mirror in"),
        (("--table", "orders"), 'the pattern "orders" has no schema'),
        (("--option", "on_unknown=pass"), "option on_unknown is not for a mirror"),
        (("--dsn", "host=127.0.0.1 port=1"), "could not connect for the initial snapshot"),
    ],
)
def test_wrong_options_end_it_in_one_sentence(
    server_wal: Path, tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    where = ("--into", tmp_path / "mirror", "--path", server_wal)
    ended = run_sk("spark", "mirror", *where, *arguments, timeout=TIMEOUT)
    assert ended.returncode != 0
    assert message in ended.stderr
    assert "Traceback" not in ended.stderr
    assert not (tmp_path / "mirror" / "_mirror").exists()


def test_a_server_that_was_promoted_apart_from_the_wal(
    wal_server: Callable[..., Postgres], tmp_path: Path
) -> None:
    """Its rows look as if the WAL continued them."""
    with wal_server(tmp_path / "data") as postgres:
        create_tables(postgres)
        copy = tmp_path / "wal"
        postgres.execute("SELECT pg_switch_wal()")
        shutil.copytree(postgres.pg_wal, copy)
        postgres.stop()
        (postgres.data_dir / "standby.signal").touch()
        postgres.start()
        postgres.execute("SELECT pg_promote()")
        wanted = replace(settings(postgres, tmp_path / "mirror"), source={"path": str(copy)})
        with pytest.raises(MirrorError, match="is on timeline 2, the WAL ends on timeline 1"):
            MirrorStream(wanted).begin()
        assert MirrorStream(settings(postgres, tmp_path / "mirror")).begin()[1]


def test_a_mirror_keeps_its_tables(wal_server: Callable[..., Postgres], tmp_path: Path) -> None:
    with wal_server(tmp_path / "data") as postgres:
        wanted = settings(postgres, tmp_path / "mirror")
        with pytest.raises(MirrorError, match=r'no table matches "shop\.\*"'):
            MirrorStream(wanted).begin()
        create_tables(postgres)
        assert MirrorStream(wanted).begin()[1]
        assert not MirrorStream(replace(wanted, dsn=None)).begin()[1]
        with pytest.raises(MirrorError, match="is another mirror"):
            MirrorStream(replace(wanted, selection=Selection())).begin()


def test_kill_9_at_random_moments(wal_server: Callable[..., Postgres], tmp_path: Path) -> None:
    """Of the command and of its workers, while clients write. Its tables are Delta tables."""
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    rng = Random(seed)
    mirror = tmp_path / "mirror"
    with wal_server(tmp_path / "data", wal_level="logical") as postgres:
        create_tables(postgres)
        command = [
            *SK, "spark", "mirror", "--into", str(mirror), "--path", str(postgres.pg_wal),
            "--dsn", postgres.dsn(), "--table", "shop.*", "--exclude", "shop.tmp_*",
            "--format", "delta", "--master", "local[2,4]",
        ]  # fmt: skip
        workload = Workload(postgres, rng)
        workload.run(40)
        killed_once(command, workload, rng, tmp_path / "log")
        ended = subprocess.run([*command, "--once"], capture_output=True, text=True, check=False)
        assert ended.returncode == 0, ended.stderr
        assert_equal(postgres, mirror)
        version = Versions(open_store(str(mirror))).newest()
        assert version is not None
        for name in MIRRORED:
            table = DeltaTable(mirror / name)
            files = {f"{name}/{Path(uri).name}" for uri in table.file_uris()}
            assert files == {file.path for file in version.table(name).files}
            assert table.to_pyarrow_table().num_rows == version.table(name).rows


def killed_once(command: list[str], workload: Workload, rng: Random, log: Path) -> None:
    """Runs the command, and kills its Python workers while it applies batches, and then itself."""
    with log.open("w") as errors:
        process = subprocess.Popen(
            [*command, "--interval", "1"], stdout=subprocess.PIPE, stderr=errors,
            text=True, start_new_session=True,
        )  # fmt: skip
    assert process.stdout is not None
    try:
        assert process.stdout.readline().startswith("snapshot"), log.read_text()
        for victims in (python_workers, lambda pid: [pid]):
            workload.run(30)
            assert process.stdout.readline().startswith("version"), log.read_text()
            workload.run(30)
            time.sleep(rng.uniform(0, 0.5))  # a random moment is what this is about
            for pid in victims(process.pid):
                os.kill(pid, signal.SIGKILL)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def python_workers(session_id: int) -> list[int]:
    """The processes of the command's session that run Spark's workers."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        pid = int(path.parent.name)
        try:
            if os.getsid(pid) == session_id and WORKER in path.read_bytes():
                found.append(pid)
        except OSError:
            continue  # it has ended
    return found
