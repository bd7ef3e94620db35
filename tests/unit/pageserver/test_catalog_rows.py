"""Pages of catalogs, relation maps and table names: valid and invalid ones."""

from __future__ import annotations

import struct

import pytest
from crc32c import crc32c

from quorum_wal.pageserver.errors import LayerDamaged, TableNameError
from quorum_wal.pageserver.layers.fork import PAGE_BYTES
from quorum_wal.pageserver.pitr.catalog_rows import (
    ClassRow,
    RoleRow,
    parse_class_row,
    parse_named_row,
    parse_pair_row,
    parse_role_row,
)
from quorum_wal.pageserver.pitr.heap_page import heap_rows
from quorum_wal.pageserver.pitr.relation_map import parse_relation_map
from quorum_wal.pageserver.pitr.table_name import TableName, quote_name


def heap_page(rows: list[bytes], states: list[int] | None = None) -> bytes:
    """Tuples with a header of 24 bytes, placed from the end of the page. `states`: line
    pointers."""
    page = bytearray(PAGE_BYTES)
    upper = PAGE_BYTES
    for number, row in enumerate(rows):
        state = states[number] if states else 1
        length = 24 + len(row)
        upper -= -(-length // 8) * 8
        page[upper + 22] = 24
        page[upper + 24 : upper + length] = row
        struct.pack_into("<I", page, 24 + 4 * number, upper | state << 15 | length << 17)
    struct.pack_into("<HHH", page, 12, 24 + 4 * len(rows), upper, PAGE_BYTES)
    return bytes(page)


def test_all_normal_tuples_are_rows() -> None:
    page = heap_page([b"one", b"dead", b"two", b"moved"], states=[1, 3, 1, 2])
    assert list(heap_rows(page)) == [b"one", b"two"]
    assert list(heap_rows(bytes(PAGE_BYTES))) == []


@pytest.mark.parametrize(
    ("at", "value", "error"),
    [
        (12, struct.pack("<H", 9000), "free space"),
        (14, struct.pack("<H", 8), "free space"),
        (24, struct.pack("<I", 8190 | 1 << 15 | 60 << 17), "tuple 1"),
        (24, struct.pack("<I", 100 | 1 << 15 | 60 << 17), "tuple 1"),
        (PAGE_BYTES - 32 + 22, b"\xff", "an invalid header of 255 bytes"),
        (PAGE_BYTES - 32 + 22, b"\x03", "an invalid header of 3 bytes"),
    ],
)
def test_a_damaged_page_is_refused(at: int, value: bytes, error: str) -> None:
    page = bytearray(heap_page([b"row"]))
    page[at : at + len(value)] = value
    with pytest.raises(LayerDamaged, match=error):
        list(heap_rows(bytes(page)))


def class_row(toast_at: int, kind_at: int) -> bytes:
    row = bytearray(kind_at + 20)
    struct.pack_into("<I64sI", row, 0, 16400, b"orders", 2200)
    struct.pack_into("<I", row, 88, 16500)
    struct.pack_into("<I", row, toast_at, 16403)
    row[kind_at : kind_at + 1] = b"r"
    return bytes(row)


@pytest.mark.parametrize(("pg_major", "toast_at", "kind_at"), [(13, 108, 115), (18, 112, 119)])
def test_a_row_of_pg_class(pg_major: int, toast_at: int, kind_at: int) -> None:
    expected = ClassRow(16400, b"orders", 2200, 16500, 16403, b"r")
    row = class_row(toast_at, kind_at)
    assert parse_class_row(row, pg_major) == expected
    with pytest.raises(LayerDamaged, match="pg_class"):
        parse_class_row(row[:kind_at], pg_major)


def test_rows_of_other_catalogs() -> None:
    named = struct.pack("<I64s", 5, b"shop")
    assert parse_named_row(named + b"more").name == b"shop"
    assert parse_pair_row(struct.pack("<III", 1, 2, 3)) == (1, 2)
    role = struct.pack("<I64s5B", 10, b"postgres", 1, 1, 1, 1, 0)
    assert parse_role_row(role) == RoleRow(10, b"postgres", True, False)
    for parse, row in (
        (parse_named_row, named),
        (parse_pair_row, bytes(8)),
        (parse_role_row, role),
    ):
        with pytest.raises(LayerDamaged, match="expected"):
            parse(row[:-1])


def relation_map(room: int, pairs: dict[int, int], *, count: int | None = None) -> bytes:
    body = b"".join(struct.pack("<II", *pair) for pair in pairs.items()).ljust(8 * room, b"\0")
    data = struct.pack("<II", 0x592717, len(pairs) if count is None else count) + body
    data += struct.pack("<I", crc32c(data))
    return data + (bytes(4) if room == 62 else b"")


@pytest.mark.parametrize("room", [62, 64])
def test_a_relation_map(room: int) -> None:
    data = relation_map(room, {1259: 16390, 1247: 16391})
    assert parse_relation_map(data) == {1259: 16390, 1247: 16391}
    for damaged, error in (
        (data[:-1], "512 or 524 bytes, found"),
        (data[:9] + b"\xff" + data[10:], "is damaged"),
        (relation_map(room, {}, count=65), "found 65"),
    ):
        with pytest.raises(LayerDamaged, match=error):
            parse_relation_map(damaged)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("shop.public.orders", TableName("shop", "public", "orders")),
        ("Shop.Public.Orders", TableName("shop", "public", "orders")),
        ('shop."Odd.Name"."we""ird"', TableName("shop", "Odd.Name", 'we"ird')),
    ],
)
def test_a_name_of_a_table(text: str, expected: TableName) -> None:
    assert TableName.parse(text) == expected
    assert TableName.parse(str(expected)) == expected
    assert quote_name('a"b') == '"a""b"'


@pytest.mark.parametrize(
    "text", ["", "orders", "public.orders", "a.b.c.d", "a..c", 'a.b."c', "a.b.c."]
)
def test_invalid_table_names_are_refused(text: str) -> None:
    with pytest.raises(TableNameError, match="not a valid table name") as raised:
        TableName.parse(text)
    assert "database.schema.table" in raised.value.hint
