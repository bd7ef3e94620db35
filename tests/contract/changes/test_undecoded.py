"""A change that cannot be decoded is a row that reports it; an outdated catalog is read again."""

from __future__ import annotations

from typing import Any

import pytest
from changed_logs import LogOf
from decoding import Row, read, read_all, without_rows
from pgoutput import exact_json

from quorum_wal.spark.changes.catalog import Catalog, Column, Table
from quorum_wal.spark.errors import CatalogError

#: a type that no catalog has
UNKNOWN = 4_000_000


def undecoded(rows: list[Row]) -> list[tuple[str | None, str]]:
    return [(row["table"], row["detail"]) for row in rows if row["operation"] == "unknown"]


@pytest.mark.parametrize("major", [15, 16, 18])
def test_files_of_before_the_catalog(changed_log: LogOf, major: int) -> None:
    """The materialized view's first file. All later files are followed."""
    ((table, detail),) = undecoded(read_all(changed_log(major, "logical")))
    assert table is None
    assert detail.startswith("1 changes of relation ")
    assert "which the catalog does not have" in detail


@pytest.mark.parametrize("major", [15, 16, 18])
def test_rewrites_and_forgotten_files(changed_log: LogOf, major: int) -> None:
    """With catalogs that are not followed."""
    log = changed_log(major, "logical")
    found = undecoded(read_all(log, without_rows(log)))
    assert [table for table, _ in found] == [None, None, "whole", "by_index", None]
    details = [detail for _, detail in found]
    # The materialized view's first file, one between two TRUNCATEs, a table that was dropped.
    for number, detail in ((1, details[0]), (1, details[1]), (2, details[4])):
        assert detail.startswith(f"{number} changes of relation ")
        assert "which the catalog does not have" in detail
    for detail in details[2:4]:
        assert detail.startswith("the table was rewritten into a new file")


def test_catalog_is_refreshed(changed_log: LogOf) -> None:
    log = changed_log(16, "logical")
    asked: list[Catalog] = []

    def refresh() -> Catalog:
        asked.append(log.catalogs[1])
        return asked[-1]

    assert read_all(log, log.catalogs[0], refresh=refresh) == read_all(log)
    assert len(asked) == 1
    stale = undecoded(read_all(log, without_rows(log).parts[0]))
    assert sum("which the catalog does not have" in detail for _, detail in stale) > 3


def test_type_that_is_not_decoded(changed_log: LogOf) -> None:
    """The column has the stored bytes."""
    log = changed_log(16, "logical")
    catalog = with_columns(log.catalogs[1], "copied", lambda column: retyped(column, "t"))
    rows = [row for row in read_all(log, catalog) if row["table"] == "copied"]
    assert len(rows) == 700
    for number, row in enumerate(rows):
        if number % 3:
            stored = f"\\x{f'row {number}'.encode().hex()}"
            assert exact_json(row["new"]) == {"id": str(number), "t": stored}
            assert row["detail"] == (
                f"column t: stored bytes, because the catalog does not have type {UNKNOWN}"
            )
        else:
            assert exact_json(row["new"]) == {"id": str(number), "t": None}
            assert row["detail"] is None


def test_catalog_that_is_older_than_a_column(changed_log: LogOf) -> None:
    log = changed_log(16, "logical")
    catalog = with_columns(log.catalogs[1], "copied", lambda c: None if c.name == "t" else c)
    rows = [row for row in read_all(log, catalog) if row["table"] == "copied"]
    assert exact_json(rows[0]["new"]) == {"id": "0"}
    assert rows[0]["detail"] == (
        "the row has 2 columns, but the catalog has 1 for table public.copied: take a new catalog"
    )


def test_catalog_is_refreshed_for_a_column(changed_log: LogOf) -> None:
    """Of a table whose file is known."""
    log = changed_log(16, "logical")
    older = with_columns(log.catalogs[1], "copied", lambda c: None if c.name == "t" else c)
    commit_lsn = next(row["commit_lsn"] for row in read_all(log) if row["table"] == "copied")
    expected = read(log, commit_lsn, commit_lsn + 1)
    assert len(expected) == 700
    assert read(log, commit_lsn, commit_lsn + 1, older) != expected
    found = read(log, commit_lsn, commit_lsn + 1, older, refresh=lambda: log.catalogs[1])
    assert found == expected


def test_catalog_of_another_cluster(changed_log: LogOf) -> None:
    with pytest.raises(CatalogError, match="the catalog is of system identifier"):
        read_all(changed_log(16, "logical"), changed_log(18, "logical").catalogs[1])


def retyped(column: Column, name: str) -> Column:
    if column.name != name:
        return column
    return Column(name, UNKNOWN, -1, column.length, column.align, False, False, None, None)


def with_columns(catalog: Catalog, name: str, change: Any) -> Catalog:
    tables = [
        Table(
            *(getattr(table, each) for each in Table.__slots__ if each != "columns"),
            columns=tuple(filter(None, map(change, table.columns))),
        )
        if table.name == name
        else table
        for table in catalog.tables
    ]
    return Catalog(
        system_id=catalog.system_id,
        version_major=catalog.version_major,
        database_oid=catalog.database_oid,
        database_name=catalog.database_name,
        lsn=catalog.lsn,
        wal_level=catalog.wal_level,
        tables=tables,
        types=catalog.types.values(),
        ignored=catalog.ignored,
    )
