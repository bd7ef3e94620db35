"""The text of a value is the one that Postgres prints: every type, random bits, also in arrays."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from changed_logs import MIB, SETTINGS, ChangedLog
from decoding import read_all
from stored_values import ROWS, VALUES, binary_copy

from quorum_wal.pg_fixtures.postgres import Postgres
from quorum_wal.spark.changes.catalog_snapshot import take_catalog
from quorum_wal.spark.inputs.folder_input import FolderInput


@pytest.mark.parametrize("pg_binaries", [18], indirect=True)
def test_same_texts(postgres_factory: Callable[..., Postgres]) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    postgres = postgres_factory(settings=SETTINGS, wal_seg_size=MIB)
    begin_lsn = int(postgres.flush_lsn())
    expected = {
        f"t{number}": printed_by_postgres(postgres, number, name, random.Random(seed + number))
        for number, name in enumerate(VALUES)
    }
    catalog = take_catalog(postgres.dsn())
    postgres.stop()
    wal_input = FolderInput(str(postgres.pg_wal))
    log = ChangedLog(wal_input, begin_lsn, wal_input.newest_lsn(), (catalog, catalog), [])
    for is_compiled in (True, False):
        found: dict[str, list[str]] = {}
        for row in read_all(log, is_compiled=is_compiled):
            if row["operation"] == "insert":
                assert row["detail"] is None
                found.setdefault(row["table"], []).append(row["new"])
        for table, name in zip(expected, VALUES, strict=True):
            assert len(found[table]) == ROWS
            for one, other in zip(found[table], expected[table], strict=True):
                assert one == other, name


def printed_by_postgres(
    postgres: Postgres, number: int, name: str, rng: random.Random
) -> list[str]:
    """Rows of a value and an array of it, as row_to_json() prints them."""
    with postgres.connect() as connection:
        connection.execute("SET timezone = 'UTC'")
        for statement in (
            f"CREATE TEMP TABLE given (id int, v {name})",
            f"CREATE TABLE t{number} (id int, v {name}, a {name}[])",
        ):
            connection.execute(statement)
        with connection.cursor().copy("COPY given FROM STDIN (FORMAT binary)") as copy:
            for piece in binary_copy(VALUES[name], rng):
                copy.write(piece)
        connection.execute(
            f"INSERT INTO t{number} SELECT id, v, ARRAY[v, NULL, v] FROM given ORDER BY id"
        )
        query = f"SELECT row_to_json(t)::text FROM t{number} t ORDER BY id"
        return [text for (text,) in connection.execute(query).fetchall()]
