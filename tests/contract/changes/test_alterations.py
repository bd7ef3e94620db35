"""A catalog that is older than an ALTER without a rewrite: affected rows report it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from changed_logs import MIB, SETTINGS, ChangedLog
from decoding import Row, read
from pgoutput import exact_json
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadMaxBytes

from quorum_wal.pg_fixtures.plugin import skip_if_unavailable
from quorum_wal.pg_fixtures.postgres import Postgres
from quorum_wal.pg_server.binaries import PostgresBinaries, find_postgres
from quorum_wal.pgwal.lsn import format_lsn
from quorum_wal.spark.changes.catalog_snapshot import take_catalog
from quorum_wal.spark.inputs.folder_input import FolderInput
from quorum_wal.spark.sources.change_batch import ChangeBatchReader
from quorum_wal.spark.sources.change_stream import ChangeStreamReader
from quorum_wal.spark.sources.input_options import parse_options
from quorum_wal.spark.sources.pg_changes_options import parse_change_options

#: table: its column, a value before, what alters it, a value behind, and as what that is shown
ALTERED = {
    "number": ("v int", "-1", "ALTER TABLE number ALTER v TYPE oid", "4294967295", "4294967295"),
    "network": ("v cidr", "'::1/128'", "ALTER TABLE network ALTER v TYPE inet", "'::1'", "::1"),
    "renamed": ("u text", "'x'", "ALTER TABLE renamed RENAME u TO v", "'x'", "x"),
    "feeling": (
        "v mood", "'sad'", "ALTER TYPE mood RENAME VALUE 'sad' TO 'blue'", "'blue'", "blue",
    ),
    "feelings": ("v mood[]", "'{sad}'", "SELECT 1", "'{blue}'", ["blue"]),
    "nested": (
        "v int", "1", "BEGIN; SAVEPOINT a; ALTER TABLE nested ALTER v TYPE oid; RELEASE a; COMMIT",
        "1", "1",
    ),
    "prepared": (
        "v int", "1", "BEGIN; ALTER TABLE prepared ALTER v TYPE oid; PREPARE TRANSACTION 'p';"
        " COMMIT PREPARED 'p'", "1", "1",
    ),
    "composed": (
        "v couple", "(1, 'x')", "ALTER TYPE couple RENAME ATTRIBUTE a TO b", "(2, 'y')",
        {"b": "2", "t": "y"},
    ),
    "couples": (
        "v couple_range[]", "'{empty}'", "SELECT 1", "ARRAY[couple_range(NULL, (3, 'z'))]",
        ['(,"(3,z)")'],
    ),
    "part": ("v cidr", "'::1/128'", "ALTER TABLE whole ALTER v TYPE inet", "'::1'", "::1"),
}  # fmt: skip

#: what leaves a catalog true
HARMLESS = (
    "ANALYZE same", "VACUUM same", "CREATE INDEX ON same (v)", "CREATE TABLE later (v int)",
    "GRANT SELECT ON same TO PUBLIC", "ALTER TABLE same SET (fillfactor = 70)",
    "CREATE TEMP TABLE own (v int)", "CREATE STATISTICS pair ON id, v FROM same",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class AlteredLog:
    """The catalogs are of before and after. `before_lsn` is after the WAL that both describe;
    `after_lsn` is where rows with the new definitions begin."""

    log: ChangedLog
    altered_lsn: int
    after_lsn: int


@pytest.fixture(scope="module", params=[15, 16, 18])
def altered(
    request: pytest.FixtureRequest,
    initdb_template: Callable[[PostgresBinaries, int], Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> AlteredLog:
    with skip_if_unavailable():
        binaries = find_postgres(request.param)
    data_dir = tmp_path_factory.mktemp("altered") / "data"
    data_dir.parent.chmod(0o755)
    postgres = Postgres(
        binaries, data_dir, settings=SETTINGS, wal_seg_size=MIB,
        template=initdb_template(binaries, MIB),
    )  # fmt: skip
    with postgres:
        return write_log(postgres)


def write_log(postgres: Postgres) -> AlteredLog:
    create_tables(postgres)
    begin_lsn = int(postgres.flush_lsn())
    before = take_catalog(postgres.dsn())
    before.rows = None  # as an older version has taken it
    insert(postgres, 1, [value for _, value, *_ in ALTERED.values()])
    postgres.execute("SELECT pg_switch_wal()")
    altered_lsn = int(postgres.flush_lsn())
    with postgres.connect() as connection:
        for statement in (*HARMLESS, *(alter for _, _, alter, *_ in ALTERED.values())):
            for part in statement.split(";"):
                connection.execute(part)
    postgres.execute("SELECT pg_switch_wal()")
    after_lsn = int(postgres.flush_lsn())
    insert(postgres, 2, [value for *_, value, _ in ALTERED.values()])
    after = take_catalog(postgres.dsn())
    postgres.stop()
    wal_input = FolderInput(str(postgres.pg_wal))
    log = ChangedLog(wal_input, begin_lsn, wal_input.newest_lsn(), (before, after), [])
    return AlteredLog(log, altered_lsn, after_lsn)


def create_tables(postgres: Postgres) -> None:
    postgres.execute("CREATE TYPE mood AS ENUM ('sad', 'happy')")
    postgres.execute("CREATE TYPE couple AS (a int, t text)")
    postgres.execute("CREATE TYPE couple_range AS RANGE (subtype = couple)")
    postgres.execute("CREATE TABLE whole (id int, v cidr) PARTITION BY LIST (id)")
    for name, (column, *_) in ALTERED.items():
        is_part = name == "part"
        kind = "PARTITION OF whole FOR VALUES IN (1, 2)" if is_part else f"(id int, {column})"
        postgres.execute(f"CREATE TABLE {name} {kind}")
    postgres.execute("CREATE TABLE same (id int, v int)")


def insert(postgres: Postgres, number: int, values: list[str]) -> None:
    for name, value in zip(ALTERED, values, strict=True):
        postgres.execute(f"INSERT INTO {name} VALUES ({number}, {value})")
    postgres.execute(f"INSERT INTO same VALUES ({number}, 1)")


def test_rows_of_altered_tables_say_so(altered: AlteredLog) -> None:
    """In the range of the ALTER, and in one that begins after it."""
    log, (before, after) = altered.log, altered.log.catalogs
    whole = read(log, log.begin_lsn, log.end_lsn, before)
    assert {row["detail"] for row in whole if row["lsn"] < altered.altered_lsn} == {None}
    for rows in (whole, read(log, altered.after_lsn, log.end_lsn, before)):
        found = [row for row in rows if row["lsn"] >= altered.after_lsn and row["table"]]
        assert {row["table"] for row in found} == {*ALTERED, "same"}
        for row in found:
            if row["table"] == "same":
                assert row["detail"] is None
                continue
            assert row["detail"].startswith(f"table public.{row['table']} was altered at 0/")
            assert f"taken at {format_lsn(before.lsn)}: take a new catalog" in row["detail"]
    for catalog in (after, before.merged(after)):
        found = read(log, altered.after_lsn, log.end_lsn, catalog)
        assert {row["detail"] for row in found} == {None}
        values = {row["table"]: exact_json(row["new"])["v"] for row in found}
        assert values == {name: shown for name, (*_, shown) in ALTERED.items()} | {"same": "1"}


def test_tasks_know_what_was_altered_before_them(altered: AlteredLog, tmp_path: Path) -> None:
    """In batches of several tasks, and in streams of several batches; the driver searches once."""
    log, (before, _) = altered.log, altered.log.catalogs
    (tmp_path / "catalog.json").write_bytes(before.to_json())
    catalog = {"catalog": str(tmp_path / "catalog.json"), "on_unknown": "pass"}
    changes = parse_change_options(catalog)
    given = {"path": log.wal_input.path, "start_lsn": format_lsn(log.begin_lsn)}
    expected = read(log, log.begin_lsn, log.end_lsn, before)

    batch = ChangeBatchReader(parse_options({**given, "partition_bytes": "1MB"}), changes)
    tasks = batch.partitions()
    assert len(tasks) > 2
    assert [row for task in tasks for row in rows_of(batch, task)] == expected

    stream = ChangeStreamReader(parse_options(given, is_stream=True), changes)
    found, lsn = [], {"lsn": format_lsn(log.begin_lsn)}
    while (end := stream.latestOffset(lsn, ReadMaxBytes(MIB))) != lsn:
        for task in stream.partitions(lsn, end):
            found += rows_of(stream, task)
        lsn = end
    assert found == expected


def rows_of(reader: ChangeBatchReader | ChangeStreamReader, task: InputPartition) -> list[Row]:
    return [row for batch in reader.read(task) for row in batch.to_pylist()]


def test_catalog_is_refreshed_for_an_altered_table(altered: AlteredLog) -> None:
    log, (before, after) = altered.log, altered.log.catalogs
    for begin_lsn in (log.begin_lsn, altered.after_lsn):
        found = read(log, begin_lsn, log.end_lsn, before, refresh=lambda: after)
        assert found == read(log, begin_lsn, log.end_lsn, before.merged(after))
        assert {row["detail"] for row in found if row["xid"] is not None} == {None}


def test_wal_that_was_not_searched_is_reported(altered: AlteredLog, tmp_path: Path) -> None:
    """The WAL that was archived since the catalog is missing."""
    log, (before, _) = altered.log, altered.log.catalogs
    begin_lsn = altered.after_lsn // MIB * MIB
    folder = tmp_path / "wal"
    shutil.copytree(log.wal_input.path, folder)
    for file in folder.glob("0*"):
        if int(file.name[8:16], 16) * 4096 + int(file.name[16:24], 16) < begin_lsn // MIB:
            file.unlink()
    rest = ChangedLog(FolderInput(str(folder)), begin_lsn, log.end_lsn, log.catalogs, [])
    rows = read(rest, begin_lsn, log.end_lsn, before)
    (said,) = [row for row in rows if "was not searched" in (row["detail"] or "")]
    assert said["lsn"] == before.lsn
    assert f"to {format_lsn(begin_lsn)}, after the catalog" in said["detail"]
