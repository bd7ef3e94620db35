"""Ranges, composite types, types of extensions and the like are printed as Postgres prints them: as
row_to_json() does, and in a typed column as a cast does."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

import pytest
from changed_logs import MIB, SETTINGS
from composed_table import (
    NAME,
    ROWS,
    assert_same,
    fill,
    printed,
    printed_as_types,
    rows_of,
    run,
    stopped,
)
from composed_values import COMPOSED, COMPOSED_OF_17, EXTENDED, EXTENSIONS, TYPES, Make
from pgoutput import exact_json

from quorum_wal.pg_fixtures.postgres import Postgres
from quorum_wal.pg_server.binaries import PostgresBinaries

#: of 16, only the types of extensions
WAL_LEVELS = {15: "replica", 16: "replica", 18: "logical"}


@pytest.fixture
def rng() -> random.Random:
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    return random.Random(seed)


@pytest.fixture
def server(pg_binaries: PostgresBinaries, postgres_factory: Callable[..., Postgres]) -> Postgres:
    settings = {**SETTINGS, "wal_level": WAL_LEVELS[pg_binaries.major]}
    return postgres_factory(settings=settings, wal_seg_size=MIB)


@pytest.mark.parametrize("pg_binaries", [15, 18], indirect=True)
def test_composed_types(server: Postgres, rng: random.Random) -> None:
    types = {**COMPOSED, **(COMPOSED_OF_17 if server.binaries.major >= 17 else {})}
    check(server, types, rng, TYPES)


@pytest.mark.parametrize("pg_binaries", EXTENSIONS, indirect=True)
def test_types_of_extensions(server: Postgres, rng: random.Random) -> None:
    names = EXTENSIONS[server.binaries.major]
    available = {name for (name,) in server.execute("SELECT name FROM pg_available_extensions")}
    if missing := set(names) - available:
        pytest.skip(f"Postgres {server.binaries} has no extension {', '.join(sorted(missing))}")
    types = {type_name: make for name in names for type_name, make in EXTENDED[name].items()}
    check(server, types, rng, "; ".join(f"CREATE EXTENSION {name}" for name in names))


def check(
    server: Postgres, types: Mapping[str, Make], rng: random.Random, preparation: str
) -> None:
    begin_lsn = int(server.flush_lsn())
    with server.connect() as connection:
        run(connection, f"SET timezone = 'UTC'; {preparation}")
        if server.binaries.major == 15:
            run(connection, "SET default_toast_compression = 'lz4'")
        columns = fill(connection, types, rng)
        tables = [NAME] + ["public.grown_values"] * ("grown" in types)
        expected = {table: printed(connection, table) for table in tables}
        as_types = printed_as_types(connection, columns)
        run(connection, f"DELETE FROM {NAME}")
    log = stopped(server, begin_lsn)
    for table in tables:
        inserted = rows_of(log, table, "insert")
        assert_same([row["new"] for row in inserted], expected[table])
    deleted = rows_of(log, NAME, "delete")
    assert len(deleted) == ROWS
    values_of = {int(values["id"]): values for values in map(exact_json, expected[NAME])}
    for old in (exact_json(row["old"]) for row in deleted):
        # With wal_level = replica, the WAL does not have the out-of-line values of old rows.
        values = values_of[int(old["id"])]
        assert old == {name: values[name] for name in old}
    table = log.catalogs[0].table_named(NAME)
    for row, values in zip(rows_of(log, NAME, "insert", table=table), as_types, strict=True):
        for name, value in values.items():
            assert row["new"][name] == value, (name, columns.get(name))
