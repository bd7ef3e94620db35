"""Stored values as text: values that a server rarely stores, and damage."""

from __future__ import annotations

import random
import re
import struct
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal, localcontext

import numpy as np
import pytest

from quorum_wal.spark.changes.catalog import Attribute, Type
from quorum_wal.spark.changes.datum import MONEY, Datums
from quorum_wal.spark.changes.datum_array import Element, array_json, array_text
from quorum_wal.spark.changes.datum_composite import Field, composite_json, composite_text
from quorum_wal.spark.changes.datum_float import (
    float4_text,
    float4_texts,
    float8_text,
    float8_texts,
)
from quorum_wal.spark.changes.datum_geometry import polygon_text
from quorum_wal.spark.changes.datum_hstore import hstore_text
from quorum_wal.spark.changes.datum_jsonb import jsonb_text
from quorum_wal.spark.changes.datum_jsonpath import jsonpath_text
from quorum_wal.spark.changes.datum_ltree import ltree_text
from quorum_wal.spark.changes.datum_money import MoneyFormat
from quorum_wal.spark.changes.datum_numeric import numeric_text
from quorum_wal.spark.changes.datum_range import Bound, multirange_text, range_text
from quorum_wal.spark.changes.datum_snapshot import snapshot_text
from quorum_wal.spark.changes.datum_tsearch import tsquery_text, tsvector_text
from quorum_wal.spark.changes.datum_varlena import (
    DatumError,
    decompress_pglz,
    parse_pointer,
    plain_varlena,
)
from quorum_wal.spark.changes.datum_vector import sparsevec_text

#: the errors that damage may cause; a reader of rows catches these
DAMAGE = (ValueError, IndexError, struct.error, RecursionError)


@pytest.fixture
def rng() -> random.Random:
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    return random.Random(seed)


def stored_numeric(
    digits: list[int], weight: int, scale: int, *, is_negative: bool, is_long: bool
) -> bytes:
    tail = struct.pack(f"<{len(digits)}H", *digits)
    if is_long:
        return struct.pack("<Hh", (0x4000 if is_negative else 0) | scale, weight) + tail
    header = 0x8000 | (0x2000 if is_negative else 0) | scale << 7 | (weight & 0x7F)
    return struct.pack("<H", header) + tail


def test_numerics(rng: random.Random) -> None:
    """Compared with decimal arithmetic."""
    for _ in range(2000):
        is_long = rng.random() < 0.5
        weight = rng.randint(-40, 40) if is_long else rng.randint(-60, 60)
        digits = [rng.randrange(10_000) for _ in range(rng.randint(0, 6))]
        scale = rng.randint(0, 300 if is_long else 63)
        is_negative = bool(digits) and rng.random() < 0.5
        stored = stored_numeric(digits, weight, scale, is_negative=is_negative, is_long=is_long)
        with localcontext() as context:
            context.prec = 1000
            value = sum(
                (
                    Decimal(digit) * Decimal(10_000) ** (weight - i)
                    for i, digit in enumerate(digits)
                ),
                Decimal(0),
            )
            cut = value.quantize(Decimal(1).scaleb(-scale), rounding="ROUND_DOWN")
        expected = f"{'-' if is_negative else ''}{cut:f}"
        assert numeric_text(stored) == expected, (digits, weight, scale)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (np.float64(1e15), "1e+15"),
        (np.float64(123456789012345.0), "123456789012345"),
        (np.float64(1e-4), "0.0001"),
        (np.float64(1e-5), "1e-05"),
        (np.float64(-0.0), "-0"),
        (np.float64(5e-324), "5e-324"),
        (np.float64(2.0**53), "9.007199254740992e+15"),
        (np.float64(-4e23), "-3.9999999999999997e+23"),
        (np.float64(1.7976931348623157e308), "1.7976931348623157e+308"),
        (np.float32(1e6), "1e+06"),
        (np.float32(999999), "999999"),
        (np.float32(0.1), "0.1"),
        (np.float32(51654648), "5.1654648e+07"),
        (np.float32(2.0**24), "1.6777216e+07"),
        (np.float64("-inf"), "-Infinity"),
    ],
)
def test_floats(value: np.floating, text: str) -> None:
    print_it = float4_text if value.dtype == np.float32 else float8_text
    assert print_it(value.tobytes()) == text


def test_floats_in_a_row(rng: random.Random) -> None:
    """The same texts, bits at random and numbers around the limits of Arrow's notation."""
    edges = (0.0, -0.0, 1e-4, 9.9e-5, 999999.9, 1e6, 1e10, 9999999999.9, 1e15, 123.0, float("nan"))
    some = np.array([*edges, *(rng.gauss(0, 10**6) for _ in range(500))])
    for one, many, dtype in (
        (float4_text, float4_texts, "<f4"),
        (float8_text, float8_texts, "<f8"),
    ):
        size = np.dtype(dtype).itemsize
        data = some.astype(dtype).tobytes() + rng.randbytes(size * 1000)
        count = len(data) // size
        expected = [one(data[size * i : size * (i + 1)]) for i in range(count)]
        assert many(data, count) == expected
        with pytest.raises(DatumError, match="numbers of"):
            many(data, count + 1)


def test_damaged_values_raise_expected_errors(rng: random.Random) -> None:
    element = Element(-1, 4, bytes.hex, bytes.hex)
    for _ in range(5000):
        data = rng.randbytes(rng.randint(0, 60))
        if rng.random() < 0.5:  # so that more of it is read
            data = bytes(byte & rng.choice((0xFF, 0x07)) for byte in data)
        for read in (
            numeric_text, jsonb_text, plain_varlena, parse_pointer,
            lambda data: array_text(data, element), lambda data: array_json(data, element),
            lambda data: decompress_pglz(data, 500),
        ):  # fmt: skip
            try:
                read(data)
            except DAMAGE:
                pass  # a reader of rows reports it in the row


@pytest.mark.parametrize("print_it", [array_text, array_json])
@pytest.mark.parametrize("lengths", [(1 << 30, -5), (-5, -5), (1 << 20, 1 << 20)])
def test_an_array_that_is_too_large_is_refused_at_once(
    print_it: Callable[[bytes, Element], str], lengths: tuple[int, ...]
) -> None:
    with pytest.raises(ValueError, match=re.escape(f"array of {lengths[0]} x {lengths[1]} elem")):
        print_it(stored_array(lengths), Element(4, 4, bytes.hex, bytes.hex))


def test_an_array_with_an_empty_dimension_is_empty() -> None:
    """As array_out prints it, whatever the other dimensions are."""
    data = stored_array((1 << 30, 0))
    assert array_text(data, Element(4, 4, bytes.hex, bytes.hex)) == "{}"
    assert array_json(data, Element(4, 4, bytes.hex, bytes.hex)) == "[]"


def stored_array(lengths: tuple[int, ...]) -> bytes:
    """Without any byte of its elements."""
    lower_bounds = (1,) * len(lengths)
    return struct.pack(f"<iiI{2 * len(lengths)}i", len(lengths), 0, 23, *lengths, *lower_bounds)


def test_jsonb_with_overlapping_entries_is_refused() -> None:
    """Forty arrays of three that all begin at the same byte would be read 3 ** 40 times."""
    level = struct.pack("<4I", 0x40000003, *[0xD0000000] * 3)
    with pytest.raises(DAMAGE):
        jsonb_text(level * 40)


def test_pglz_that_points_before_its_start() -> None:
    with pytest.raises(DatumError, match="pglz data is damaged"):
        decompress_pglz(b"\x01\x0f\xff\x00", 20)


def test_types_of_a_catalog() -> None:
    types = [
        Type(1, "mood", "e", 0, 4, 4, True, {7: "happy"}),
        Type(2, "_mood", "a", 1, -1, 4, False, {}),
        Type(3, "my_mood", "d", 1, 4, 4, True, {}),
    ]
    datums = Datums({each.oid: each for each in types})
    assert datums.base_oid(3) == 1
    for oid in (1, 3):
        reader = datums.reader(oid)
        assert reader.json(struct.pack("<I", 7)) == '"happy"'
        with pytest.raises(ValueError, match="no enum label with oid 8"):
            reader.text(struct.pack("<I", 8))
    assert not datums.reader(2).undecoded


OLDER = "the catalog does not describe type {}: take a new catalog"


@pytest.mark.parametrize(
    ("oid", "undecoded"),
    [
        (1, "type point_like is not decoded"),
        (2, "type point_like is not decoded"),
        (3, OLDER.format("pair")),
        (4, OLDER.format("some_range")),
        (5, OLDER.format("some_ranges")),
        (6, "type point_like is not decoded"),
        (7, "type circular contains itself"),
        (8, ""),
        (99, "the catalog does not have type 99"),
        (MONEY, OLDER.format("money")),
        (9, "the catalog does not have type 98"),
        (10, ""),
    ],
)
def test_types_that_are_printed_as_their_bytes(oid: int, undecoded: str) -> None:
    parts = (Attribute("a", 1, 16, 8, False), Attribute("b", 1, 16, 8, False))
    types = [
        Type(1, "point_like", "b", 0, 16, 8, False, {}),
        Type(2, "_point_like", "a", 1, -1, 8, False, {}),
        Type(3, "pair", "c", 0, -1, 8, False, {}),
        Type(4, "some_range", "r", 0, -1, 8, False, {}),
        Type(5, "some_ranges", "m", 0, -1, 8, False, {}),
        Type(6, "pair", "c", 0, -1, 8, False, {}, 16500, parts),
        Type(7, "circular", "d", 7, -1, 8, False, {}),
        Type(8, "nothing", "c", 0, -1, 8, False, {}, 16501),
        Type(9, "_gone", "a", 98, -1, 8, False, {}),
        Type(10, "shrunk", "c", 0, -1, 8, False, {}, 16502, (replace(parts[0], is_dropped=True),)),
        Type(MONEY, "money", "b", 0, 8, 8, True, {}),
    ]
    datums = Datums({each.oid: each for each in types})
    reader = datums.reader(oid)
    assert reader.undecoded == undecoded
    if undecoded and oid not in (2, 6):
        assert reader.text(b"\0\xff") == "\\x00ff"
        assert reader.json(b"\0\xff") == '"\\\\x00ff"'
    assert datums.base_oid(oid) == oid


@pytest.mark.parametrize(
    ("samples", "texts"),
    [
        (("$1,234,567.00", "-$1,234,567.00"), ("$0.07", "-$92,233,720,368,547,758.08")),
        (("1.234.567,00 €", "-1.234.567,00 €"), ("0,07 €", "-92.233.720.368.547.758,08 €")),
        (("¥1,234,567", "(¥1,234,567)"), ("¥7", "(¥9,223,372,036,854,775,808)")),
        (
            ("kr. 1.234567,000", "kr. 1.234567,000-"),
            ("kr. 0,007", "kr. 9223.372036.854775,808-"),
        ),
    ],
)
def test_money(samples: tuple[str, str], texts: tuple[str, str]) -> None:
    money = MoneyFormat.of(samples)
    values = [struct.pack("<q", value) for value in (7, -(1 << 63))]
    assert tuple(map(money.text, values)) == texts
    assert [Decimal(money.number(value)) for value in values] == [
        Decimal(value).scaleb(-money.decimals) for value in (7, -(1 << 63))
    ]


@pytest.mark.parametrize("samples", [(), ("$1.00", "-$1.00"), ("$1,234,567.00",), ("", "")])
def test_money_without_its_format(samples: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="sample"):
        MoneyFormat.of(samples)
    datums = Datums({MONEY: Type(MONEY, "money", "b", 0, 8, 8, True, {}, samples=samples)})
    assert datums.money_decimals() is None
    assert datums.reader(MONEY).undecoded


@pytest.mark.parametrize(
    ("read", "data", "message"),
    [
        (tsvector_text, struct.pack("<II", 1, 5 << 1) + b"abc", "lexeme from 0 to 5 of 3 bytes"),
        (tsvector_text, struct.pack("<I", 9), "tsvector of 9 entries in 4 bytes"),
        (tsquery_text, struct.pack("<IBB10x", 1, 2, 2), "a tsquery operator has no operand"),
        (tsquery_text, struct.pack("<IBB10x", 1, 2, 9), "tsquery operator 9"),
        (tsquery_text, struct.pack("<IB11x", 1, 3), "tsquery item of kind 3"),
        (hstore_text, struct.pack("<I", 0x80000009), "hstore of 9 pairs in 4 bytes"),
        (hstore_text, struct.pack("<III", 0x80000001, 9, 9), "hstore entry from 12 to 21 of 12"),
        (hstore_text, struct.pack("<III", 1, 9, 9), "hstore in the format of Postgres 8.4"),
        (jsonpath_text, struct.pack("<I", 7), "jsonpath of version 7, expected 1"),
        (jsonpath_text, struct.pack("<IIII", 1, 29, 0, 0xFFFFFFFF) * 2, "inside of an item|circle"),
        (polygon_text, struct.pack("<i32x", 1 << 30), "1073741824 points in 0 bytes"),
        (ltree_text, struct.pack("<HxxH", 1, 9), "label of 9 bytes at byte 4 of 6"),
        (sparsevec_text, struct.pack("<iii", 5, -1, 0), "sparse vector of -1 numbers in 12 bytes"),
        (snapshot_text, struct.pack("<IQQ", 9, 1, 1), "snapshot of 9 running transactions in 20"),
    ],
)
def test_counts_and_lengths_are_checked(
    read: Callable[[bytes], str], data: bytes, message: str
) -> None:
    with pytest.raises(DatumError, match=message):
        read(data)


def test_ranges_and_composite_values_are_checked() -> None:
    bound = Bound(4, 4, bytes.hex)
    with pytest.raises(DatumError, match="range of 0 bytes, expected at least 5"):
        range_text(b"", bound)
    with pytest.raises(DatumError, match="a value of 4 bytes begins at byte 4 of 6"):
        range_text(struct.pack("<IHB", 3904, 7, 2), bound)
    with pytest.raises(DatumError, match="multirange of 1073741824 ranges in 8 bytes"):
        multirange_text(struct.pack("<II", 4451, 1 << 30), bound)
    with pytest.raises(DatumError, match="has 3 attributes, but the catalog has 1 for its type"):
        composite_text(struct.pack("<iI6xHHB", -1, 1, 3, 0, 24), [FIELD])
    with pytest.raises(DatumError, match="the header of a composite value has 7 bytes"):
        composite_json(struct.pack("<iI6xHHB", -1, 1, 1, 0, 7), [FIELD])


def test_a_composite_value_that_is_older_than_its_type() -> None:
    """Attributes that it lacks are NULL."""
    data = struct.pack("<iI6xHHBxi", -1, 1, 1, 0, 24, 7)
    assert composite_text(data, [FIELD, FIELD]) == "(07000000,)"
    assert composite_json(data, [FIELD, FIELD]) == '{"a":07000000,"a":null}'


def test_a_tsquery_of_many_terms() -> None:
    """Longer than Python's stack is deep."""
    count = 5000
    operator = struct.pack("<BBhI4x", 2, 2, 0, 2)
    operand = struct.pack("<BB?xII", 1, 0, False, 0, 1)
    items = (operator + operand) * (count - 1) + operand
    text = tsquery_text(struct.pack("<I", 2 * count - 1) + items + b"a\0" * count)
    assert text == " & ".join(["'a'"] * count)


def test_a_length_that_no_compression_reaches() -> None:
    for method in (0, 1):
        value = struct.pack("<II", 12 << 2 | 2, (1 << 30) - 1 | method << 30) + b"abcd"
        with pytest.raises(DatumError, match="compressed bytes cannot be a value of 1073741823"):
            plain_varlena(value)


FIELD = Field("a", 4, 4, False, bytes.hex, bytes.hex)
