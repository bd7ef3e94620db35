"""`float4` and `float8` as text, with as few digits as distinguish a number from its neighbours.

    51654644      51654648      51654652         float4: neighbours
         |-- ( ------|------ ) --|               5.165465e+07 is at (, so 5.1654648e+07 is shown

Law: the text lies inside of the half-way points, never on one, where a reader must round to even.
Numpy and Python accept such texts. Only a number without a fraction can have a half-way point that
is as short. Source: Postgres `d2s.c`, `f2s.c` (ryu, STRICTLY_SHORTEST 0).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from quorum_wal.spark.changes.datum_varlena import DatumError

#: bits of the mantissa, with the hidden one; fixed point ends where all decimals are exact
_FLOAT4 = 24, 6
_FLOAT8 = 53, 15
#: the exponent at which fixed point begins
_EXPONENT_MIN = -4
#: up to here Arrow prints no exponent: below Postgres's limit of float4, and below its own
_ARROW_MAX = {"<f4": 1e6, "<f8": 1e10}
_ARROW_MIN = 1e-4


def float4_text(data: bytes) -> str:
    return _text(np.frombuffer(data, "<f4")[0], *_FLOAT4)


def float8_text(data: bytes) -> str:
    return _text(np.frombuffer(data, "<f8")[0], *_FLOAT8)


def float4_texts(data: bytes, count: int) -> list[str]:
    """The texts of `count` numbers, which are all of the data. Raises DatumError."""
    return _texts(data, count, "<f4", float4_text)


def float8_texts(data: bytes, count: int) -> list[str]:
    """The texts of `count` numbers, which are all of the data. Raises DatumError."""
    return _texts(data, count, "<f8", float8_text)


def _texts(data: bytes, count: int, stored: str, text: Callable[[bytes], str]) -> list[str]:
    """Arrow finds the same shortest digits, and is faster."""
    size = np.dtype(stored).itemsize
    if len(data) != size * count:
        raise DatumError(f"{count} numbers of {size} bytes in {len(data)} bytes")
    values = np.frombuffer(data, stored)
    sizes = np.abs(values)
    is_fixed = (values == 0) | (sizes >= _ARROW_MIN) & (sizes < _ARROW_MAX[stored])
    texts = pa.array(values).cast(pa.string()).to_pylist()
    return [
        printed.removesuffix(".0") if fixed else text(data[size * i : size * (i + 1)])
        for i, (printed, fixed) in enumerate(zip(texts, is_fixed.tolist(), strict=True))
    ]


def _text(value: Any, mantissa_bits: int, decimals: int) -> str:
    """Uses fixed point from 1e-4 to below 10**decimals."""
    if not np.isfinite(value):
        return "NaN" if np.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if abs(value) >= 1 << mantissa_bits:
        return ("-" if value < 0 else "") + _integer_text(int(abs(value)), mantissa_bits)
    mantissa, _, exponent = np.format_float_scientific(value, trim="-", exp_digits=2).partition("e")
    if _EXPONENT_MIN <= int(exponent) < decimals:
        return np.format_float_positional(value, trim="-")
    return f"{mantissa}e{exponent}"


def _integer_text(number: int, mantissa_bits: int) -> str:
    """The text of a float that is at least 2 ** mantissa_bits."""
    half_gap = 1 << number.bit_length() - mantissa_bits - 1
    # Doubled, because the gap below a power of two is half as wide.
    low, high = 2 * (number - half_gap), 2 * (number + half_gap)
    if number & number - 1 == 0:
        low += half_gap
    digits = str(_shortest_between(low, 2 * number, high) // 2)
    tail = digits[1:].rstrip("0")
    return f"{digits[0]}{'.' if tail else ''}{tail}e+{len(digits) - 1:02d}"


def _shortest_between(low: int, number: int, high: int) -> int:
    """The number inside of (low, high) whose half ends with the most zeros; of several the one
    closest to `number`; of two equally close ones, the one with the even last digit."""
    unit: int = 2 * 10 ** len(str(number))
    while True:
        count = number // unit
        inside = [each for each in (count, count + 1) if low < each * unit < high]
        if inside:
            return unit * min(inside, key=lambda each: (abs(each * unit - number), each & 1))
        unit //= 10
