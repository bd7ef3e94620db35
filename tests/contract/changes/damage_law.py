"""The law of damage: a row is right, or a row that could not be decoded accounts for it.

truth     the rows of the undamaged WAL, by their places (commit_lsn, lsn, seq)
found     the rows of the damaged WAL; those without a note must equal the truth
missing   rows of the truth that are not found; each is accounted for by
            a row at its place, or of its transaction and its table or of no known table,
            or a note about lost WAL before its commit, or about WAL that begins too late
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from quorum_wal.pgwal.lsn import format_lsn
from quorum_wal.spark.changes.change_schema import Note

Row = dict[str, Any]
Place = tuple[int, int, int]


def place_of(row: Row) -> Place:
    return row["commit_lsn"], row["lsn"], row["seq"]


def is_undecoded(row: Row) -> bool:
    return row["operation"] == "unknown" or row["detail"] is not None


def assert_accounted(found: Iterable[Row], truth: dict[Place, Row], where: str) -> None:
    rows = list(found)
    undecoded = [row for row in rows if is_undecoded(row)]
    decoded = {place_of(row): row for row in rows if not is_undecoded(row)}
    for place, row in decoded.items():
        assert row == truth.get(place), f"{where}: a wrong row at {format_lsn(row['lsn'])}"
    for place, row in truth.items():
        if place not in decoded:
            assert any(_accounts(note, row) for note in undecoded), (
                f"{where}: {row['operation']} of {row['table']} at {format_lsn(row['lsn'])} of "
                f"{format_lsn(row['commit_lsn'])} is missing without a note"
            )


def _accounts(note: Row, row: Row) -> bool:
    if note["xid"] is not None:
        is_table = note["table"] in (None, row["table"])
        return place_of(note) == place_of(row) or (
            note["commit_lsn"] == row["commit_lsn"] and is_table
        )
    if note["seq"] == Note.LOST_WAL.value:
        return bool(note["lsn"] <= row["commit_lsn"])
    return True
