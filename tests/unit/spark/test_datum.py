"""Stored values as text: values that a server rarely stores, and damage."""

from __future__ import annotations

import random
import re
import struct
from collections.abc import Callable
from decimal import Decimal, localcontext

import numpy as np
import pytest

from quorum_wal.spark.changes.catalog import Type
from quorum_wal.spark.changes.datum import Datums
from quorum_wal.spark.changes.datum_array import Element, array_json, array_text
from quorum_wal.spark.changes.datum_float import float4_text, float8_text
from quorum_wal.spark.changes.datum_jsonb import jsonb_text
from quorum_wal.spark.changes.datum_numeric import numeric_text
from quorum_wal.spark.changes.datum_varlena import (
    DatumError,
    decompress_pglz,
    parse_pointer,
    plain_varlena,
)

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
        Type(4, "point_like", "b", 0, 16, 8, False, {}),
        Type(5, "_point_like", "a", 4, -1, 8, False, {}),
        Type(6, "pair", "c", 0, -1, 8, False, {}),
    ]
    datums = Datums({each.oid: each for each in types})
    assert datums.base_oid(3) == 1
    for oid in (1, 3):
        reader = datums.reader(oid)
        assert reader is not None
        assert reader.json(struct.pack("<I", 7)) == '"happy"'
        with pytest.raises(ValueError, match="no enum label with oid 8"):
            reader.text(struct.pack("<I", 8))
    assert datums.reader(2) is not None
    assert [datums.reader(oid) for oid in (4, 5, 6, 99)] == [None] * 4
