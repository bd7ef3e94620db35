"""Types that are not printed as Postgres prints them, values that are older than their column, and
catalogs that do not describe a type."""

from __future__ import annotations

import json
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from changed_logs import MIB, SETTINGS, ChangedLog
from composed_table import run, stopped
from decoding import Row, read_all
from pgoutput import exact_json

from quorum_wal.pg_fixtures.postgres import Postgres
from quorum_wal.spark.changes.catalog import Catalog
from quorum_wal.spark.jobs.table_base import take_base

NAMED = {
    "regclass": "pg_class", "regtype": "int4", "regproc": "now", "regprocedure": "now()",
    "regoper": "!!", "regoperator": "+(int4,int4)", "regnamespace": "pg_catalog",
    "regrole": "pg_monitor", "regconfig": "simple", "regdictionary": "simple",
    "regcollation": "pg_catalog.\"C\"",
}  # fmt: skip

#: the fields of a type that older catalogs do not have
NEW_FIELDS = ("relation_oid", "attributes", "extension", "samples")

#: column -> its type and its default, which old rows do not store
MISSING = {
    "p": ("pair", "ROW(1, 'a \"q\"')"),
    "l": ("pair[]", "ARRAY[ROW(1, NULL)::pair]"),
    "r": ("int4range", "'[1,4)'"),
    "b": ("box", "'(1,2),(3,4)'"),
    "bs": ("box[]", "'{(1,2),(3,4);(0,0),(0,0)}'"),
    "m": ("money", "-1234.5"),
    "o": ("regclass", "'pg_class'"),
    "c": ("char(4)", "'x'"),
}
PRINTED = "row_to_json((SELECT x FROM (SELECT id, p, l, r, b, bs, m, o::oid AS o, c) x))"


@pytest.fixture
def server(postgres_factory: Callable[..., Postgres]) -> Postgres:
    return postgres_factory(settings=SETTINGS, wal_seg_size=MIB)


def test_types_of_names_are_oids(server: Postgres, tmp_path: Path) -> None:
    """In the base of a replay, too."""
    begin_lsn = int(server.flush_lsn())
    columns = [f"c{number}" for number in range(len(NAMED))]
    with server.connect() as connection:
        definition = ", ".join(
            f"{column} {name}" for column, name in zip(columns, NAMED, strict=True)
        )
        run(connection, f"CREATE TABLE named ({definition}, a regclass[], id int PRIMARY KEY)")
        values = ", ".join(f"'{value}'" for value in NAMED.values())
        run(connection, f"INSERT INTO named VALUES ({values}, '{{pg_class,-}}', 1)")
        oids = ", ".join(f"{column}::oid AS {column}" for column in columns)
        row = f"(SELECT {oids}, a::oid[] AS a, id FROM named) x"
        ((expected,),) = run(connection, f"SELECT row_to_json(x)::text FROM {row}")
    assert take_base(server.dsn(), "public.named", tmp_path / "base.parquet") == 1
    assert pq.read_table(tmp_path / "base.parquet")["row"].to_pylist() == [expected]
    (row,) = changes(stopped(server, begin_lsn), "named", "insert")
    assert (row["new"], row["detail"]) == (expected, None)


def test_unknown_types_are_bytes(server: Postgres) -> None:
    begin_lsn = int(server.flush_lsn())
    with server.connect() as connection:
        run(connection, "CREATE TYPE granted AS (a aclitem, n int, l aclitem[])")
        run(connection, "CREATE TABLE unknown (a aclitem, g granted, s aclitem[])")
        run(connection, "INSERT INTO unknown VALUES (NULL, NULL, NULL)")
        item = "makeaclitem(10, 10, 'SELECT', false)"
        run(connection, f"INSERT INTO unknown VALUES ({item}, ROW(NULL, 7, NULL), '{{}}')")
    empty, full = changes(stopped(server, begin_lsn), "unknown", "insert")
    assert (exact_json(empty["new"]), empty["detail"]) == (dict.fromkeys("ags"), None)
    privileges = "02000000" if server.binaries.major < 16 else "0200000000000000"
    assert exact_json(full["new"]) == {
        "a": f"\\x0a0000000a000000{privileges}",
        "g": {"a": None, "n": "7", "l": None},
        "s": [],
    }
    assert full["detail"].split("; ") == [
        f"column {name}: stored bytes, because type aclitem is not decoded" for name in "ags"
    ]


def test_values_older_than_their_column(server: Postgres) -> None:
    begin_lsn = int(server.flush_lsn())
    with server.connect() as connection:
        run(connection, "CREATE TYPE pair AS (a int, t text)")
        run(connection, "CREATE TABLE old (id int); INSERT INTO old VALUES (1)")
        for name, (type_name, value) in MISSING.items():
            run(connection, f"ALTER TABLE old ADD COLUMN {name} {type_name} DEFAULT {value}")
        ((expected,),) = run(connection, f"SELECT {PRINTED}::text FROM old")
        run(connection, "INSERT INTO old (id) VALUES (2)")
    log = stopped(server, begin_lsn)

    older, newer = changes(log, "old", "insert")
    assert (older["new"], older["detail"]) == (expected, None)
    assert exact_json(newer["new"]) == exact_json(expected) | {"id": "2"}
    older, newer = changes(log, "old", "insert", table=log.catalogs[0].table_named("public.old"))
    assert older["new"] == newer["new"] | {"id": 1}
    assert (newer["new"]["m"], newer["new"]["c"]) == (Decimal("-1234.50"), "x   ")

    catalog = Catalog.from_json(without_new_fields(log.catalogs[0]), "older")
    _, newer = changes(log, "old", "insert", catalog=catalog)
    assert newer["detail"].split("; ") == [
        f"column {column}: stored bytes, because the catalog does not describe type {name}: "
        "take a new catalog"
        for column, name in {"p": "pair", "l": "pair", "r": "int4range", "m": "money"}.items()
    ]
    amount = (-123450).to_bytes(8, "little", signed=True)
    assert exact_json(newer["new"])["m"] == f"\\x{amount.hex()}"


def changes(log: ChangedLog, name: str, operation: str, **options: Any) -> list[Row]:
    rows = read_all(log, **options)
    return [row for row in rows if (row["operation"], row["table"]) == (operation, name)]


def without_new_fields(catalog: Catalog) -> bytes:
    stored = json.loads(catalog.to_json())
    for each in stored["types"]:
        for name in NEW_FIELDS:
            del each[name]
        if each["kind"] in "rm":
            each["of_oid"] = 0
    return json.dumps(stored).encode()
