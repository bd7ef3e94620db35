"""Types that are not printed as Postgres prints them, values that are older than their column, and
catalogs that do not describe a type."""

from __future__ import annotations

import json
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest
from changed_logs import MIB, SETTINGS, ChangedLog
from composed_table import run, stopped
from decoding import Row, read_all
from pgoutput import exact_json

from quorum_wal.pg_fixtures.postgres import Postgres
from quorum_wal.spark.changes.catalog import Catalog

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


def inserts(log: ChangedLog, table: str, **options: Any) -> list[Row]:
    rows = read_all(log, **options)
    return [row for row in rows if (row["operation"], row["table"]) == ("insert", table)]


def test_other_texts(server: Postgres) -> None:
    begin_lsn = int(server.flush_lsn())
    columns = {f"c{number}": name for number, name in enumerate(NAMED)}
    with server.connect() as connection:
        run(connection, "SET timezone = 'UTC'; CREATE TYPE pair AS (a int, t text)")
        run(connection, "CREATE TYPE granted AS (a aclitem, n int, l aclitem[])")
        definition = ", ".join(f"{column} {name}" for column, name in columns.items())
        run(connection, f"CREATE TABLE named ({definition}, a regclass[])")
        values = ", ".join(f"'{value}'" for value in NAMED.values())
        run(connection, f"INSERT INTO named VALUES ({values}, '{{pg_class,-}}')")
        oids = ", ".join(f"{column}::oid AS {column}" for column in columns)
        ((named,),) = run(
            connection,
            f"SELECT row_to_json(x)::text FROM (SELECT {oids}, a::oid[] AS a FROM named) x",
        )
        run(connection, "CREATE TABLE unknown (id int, a aclitem, g granted, s aclitem[])")
        run(connection, "INSERT INTO unknown VALUES (1), (2, makeaclitem(10, 10, 'SELECT', false),"
                        " ROW(NULL, 7, NULL), '{}')")  # fmt: skip
        run(connection, "CREATE TABLE old (id int); INSERT INTO old VALUES (1)")
        for name, (type_name, value) in MISSING.items():
            run(connection, f"ALTER TABLE old ADD COLUMN {name} {type_name} DEFAULT {value}")
        run(connection, "ALTER TABLE old REPLICA IDENTITY FULL")
        ((old, amount, padded),) = run(
            connection, f"SELECT {PRINTED}::text, m::numeric, c::text FROM old"
        )
        run(connection, "DELETE FROM old; INSERT INTO old (id) VALUES (2)")
    log = stopped(server, begin_lsn)

    (row,) = inserts(log, "named")
    assert (row["new"], row["detail"]) == (named, None)

    empty, full = inserts(log, "unknown")
    assert (empty["detail"], exact_json(empty["new"])["a"]) == (None, None)
    values_of = exact_json(full["new"])
    size = 12 if server.binaries.major < 16 else 16
    assert values_of["a"] == f"\\x0a0000000a000000{'02000000'.ljust(2 * size - 16, '0')}"
    assert (values_of["g"], values_of["s"]) == ({"a": None, "n": "7", "l": None}, [])
    assert full["detail"].split("; ") == [
        f"column {name}: stored bytes, because type aclitem is not decoded" for name in "ags"
    ]

    (deleted,) = [row for row in read_all(log) if row["operation"] == "delete"]
    assert (deleted["old"], deleted["detail"]) == (old, None)
    (new,) = inserts(log, "old")
    assert exact_json(new["new"]) == exact_json(old) | {"id": "2"}
    table = log.catalogs[0].table_named("public.old")
    (deleted,) = [row for row in read_all(log, table=table) if row["operation"] == "delete"]
    (new,) = inserts(log, "old", table=table)
    assert deleted["old"] == new["new"] | {"id": 1}
    assert (new["new"]["m"], new["new"]["c"]) == (amount, f"{padded:4}")
    assert amount == Decimal("-1234.50")

    older = Catalog.from_json(without_new_fields(log.catalogs[0]), "older")
    (new,) = inserts(log, "old", catalog=older)
    details = new["detail"].split("; ")
    names = {"p": "pair", "l": "pair", "r": "int4range", "m": "money"}
    assert details == [
        f"column {column}: stored bytes, because the catalog does not describe type {name}: "
        "take a new catalog"
        for column, name in names.items()
    ]
    assert exact_json(new["new"])["m"] == f"\\x{(-123450).to_bytes(8, 'little', signed=True).hex()}"


def without_new_fields(catalog: Catalog) -> bytes:
    stored = json.loads(catalog.to_json())
    for each in stored["types"]:
        for name in NEW_FIELDS:
            del each[name]
        if each["kind"] in "rm":
            each["of_oid"] = 0
    return json.dumps(stored).encode()
