"""Prints stored values as JSON and as text in compiled loops, for the most frequent types.

    {"id":7,"name":"x","paid":true}    a row: the names of the columns include quotes and `:`

Law: the output equals that of `datum.py` for the same bytes; `is_printable` is False for values
that it cannot print. Nothing here checks the room, which `room_of` has computed. Source: Postgres
`json.c`.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from quorum_wal.walrecords.byte_copy import copy_bytes
from quorum_wal.walrecords.loads import Bytes, Int, Numbers, lent, load_u16, load_u32, load_u64

#: kinds of columns; NO_KIND: only `datum.py` prints it; floats are printed by Arrow
(
    NO_KIND, INT2, INT4, INT8, OID, BOOL, TEXT, RAW, DATE, TIMESTAMP, TIMESTAMPTZ, NUMERIC, UUID,
    BYTEA, FLOAT4, FLOAT8,
) = range(16)  # fmt: skip

#: states of a cell: PRINT by its kind, NULL, COPY an existing text, OMIT
PRINT, NULL, COPY, OMIT = range(4)

_SECOND = 1_000_000
_DAY = 86_400 * _SECOND
#: 2000-01-01 in days since 0000-03-01; the days of the years 1 and 9999
_EPOCH, DAY_MIN, DAY_MAX = 730_425, -730_119, 2_921_939

#: the greatest length of a block's number, a line's number, and what is around them
PLACE_ROOM = 10 + 5 + 3
#: the greatest length of a number or time, with quotes
_ROOM = 96
_WEIGHT_MAX, _SCALE_MAX = 8, 32

_HEX = np.frombuffer(b"0123456789abcdef", np.uint8)
#: the character after the backslash; 0: no escape; 1: \u00XX
_ESCAPES = np.array([1] * 32 + [0] * 224, np.uint8)
for _byte, _letter in zip(b'\b\f\n\r\t"\\', b'bfnrt"\\', strict=True):
    _ESCAPES[_byte] = _letter
_QUOTE, _COLON, _DASH, _DOT, _ZERO, _BACKSLASH = b'":-.0\\'


@njit(cache=True, nogil=True)
def is_printable(kind: Int, data: Bytes, at: Int, length: Int) -> bool:
    if kind == DATE:
        return bool(DAY_MIN <= np.int64(np.int32(load_u32(data, at))) <= DAY_MAX)
    if kind in (TIMESTAMP, TIMESTAMPTZ):
        return bool(DAY_MIN <= np.int64(load_u64(data, at)) // _DAY <= DAY_MAX)
    if kind == NUMERIC:
        weight, scale, begin = _numeric_head(data, at, length)
        return bool(begin > 0 and -_WEIGHT_MAX <= weight <= _WEIGHT_MAX and scale <= _SCALE_MAX)
    if kind in (TEXT, RAW):
        return bool(_is_text(data, at, length))
    return bool(kind not in (NO_KIND, FLOAT4, FLOAT8))


@njit(cache=True, nogil=True)
def _is_text(data: Bytes, at: Int, length: Int) -> bool:
    """Whether it is UTF-8 without a zero byte, as all text of a UTF-8 database is (RFC 3629)."""
    end = at + length
    while at < end:
        if at + 8 <= end and _is_ascii(load_u64(data, at)):
            at += 8
            continue
        first = data[at]
        if first < 0x80:
            if first == 0:
                return False
            at += 1
            continue
        size = np.int64(2 if first < 0xE0 else 3 if first < 0xF0 else 4)
        if first < 0xC2 or first > 0xF4 or at + size > end:
            return False
        second = data[at + 1]
        if (first == 0xE0 and second < 0xA0) or (first == 0xED and second > 0x9F):
            return False
        if (first == 0xF0 and second < 0x90) or (first == 0xF4 and second > 0x8F):
            return False
        for i in range(1, size):
            if data[at + i] & 0xC0 != 0x80:
                return False
        at += size
    return True


@njit(cache=True, nogil=True)
def _is_ascii(letters: Int) -> bool:
    """Whether all eight bytes are from 1 to 127: none borrows its high bit, and none has it."""
    borrowed = letters - np.uint64(0x0101010101010101)
    return bool((letters | borrowed) & np.uint64(0x8080808080808080) == 0)


@njit(cache=True, nogil=True)
def room_of(
    kinds: Numbers, names: Numbers, state: Numbers, length: Numbers, begin: Int, end: Int
) -> Int:
    """An upper limit of the bytes for rows [begin, end); `names` are the lengths of the names."""
    room = np.int64(0)
    for i in range(begin, end):
        room += 2
        for column in range(len(kinds)):
            room += names[column] + 1
            if state[column, i] == COPY or kinds[column] == RAW:
                room += length[column, i] + 4
            elif kinds[column] == TEXT:
                room += 6 * length[column, i] + 4
            elif kinds[column] == BYTEA:
                room += 2 * length[column, i] + 8
            else:
                room += _ROOM
    return room


@njit(cache=True, nogil=True)
def print_rows(
    kinds: Numbers, names: Bytes, name_at: Numbers, data: Bytes, texts: Bytes, state: Numbers,
    at: Numbers, length: Numbers, begin: Int, end: Int, out: Bytes, offsets: Numbers,
) -> None:  # fmt: skip
    """One JSON object for each row; row i is out[offsets[i - begin] : offsets[i - begin + 1]]."""
    names, data, texts, out = lent(names), lent(data), lent(texts), lent(out)
    to = np.int64(0)
    for i in range(begin, end):
        offsets[i - begin] = to
        out[to] = 123  # {
        to += 1
        is_first = True
        for column in range(len(kinds)):
            if state[column, i] == OMIT:
                continue
            if not is_first:
                out[to] = 44  # ,
                to += 1
            is_first = False
            size = name_at[column + 1] - name_at[column]
            copy_bytes(out, to, names, name_at[column], size)
            to = _print_cell(
                kinds[column], state[column, i], True, data, texts,
                at[column, i], length[column, i], out, to + size,
            )  # fmt: skip
        out[to] = 125  # }
        to += 1
    offsets[end - begin] = to


@njit(cache=True, nogil=True)
def print_texts(
    kind: Int, data: Bytes, texts: Bytes, state: Numbers, at: Numbers, length: Numbers,
    begin: Int, end: Int, out: Bytes, offsets: Numbers,
) -> None:  # fmt: skip
    """One column as plain text; NULL and omitted values are empty."""
    data, texts, out = lent(data), lent(texts), lent(out)
    to = np.int64(0)
    for i in range(begin, end):
        offsets[i - begin] = to
        if state[i] == PRINT or state[i] == COPY:
            to = _print_cell(kind, state[i], False, data, texts, at[i], length[i], out, to)
    offsets[end - begin] = to


@njit(cache=True, nogil=True)
def print_places(
    block: Numbers, line: Numbers, is_there: Numbers, out: Bytes, offsets: Numbers
) -> None:
    """Each place as Postgres prints a ctid: `(block,line)`. Needs PLACE_ROOM bytes for each."""
    out = lent(out)
    to = np.int64(0)
    for i in range(len(block)):
        offsets[i] = to
        if is_there[i]:
            out[to] = 40  # (
            to = _write_integer(block[i], out, to + 1)
            out[to] = 44  # ,
            to = _write_integer(line[i], out, to + 1)
            out[to] = 41  # )
            to += 1
    offsets[len(block)] = to


@njit(cache=True, nogil=True)
def _print_cell(
    kind: Int, state: Int, quotes: bool, data: Bytes, texts: Bytes, at: Int, length: Int,
    out: Bytes, to: Int,
) -> Int:  # fmt: skip
    if state == NULL:
        for letter in (110, 117, 108, 108):
            out[to] = letter
            to += 1
        return to
    if state == COPY:
        copy_bytes(out, to, texts, at, length)
        return to + length
    if kind in (INT2, INT4, INT8, NUMERIC):
        return _write_number(kind, data, at, length, out, to)
    if kind == BOOL:
        return _write_bool(data[at] != 0, quotes, out, to)
    if kind == RAW or (kind == TEXT and not quotes):
        copy_bytes(out, to, data, at, length)
        return to + length
    if quotes:
        out[to] = _QUOTE
        to += 1
    if kind == TEXT:
        to = _write_escaped(data, at, length, out, to)
    elif kind == OID:
        to = _write_integer(np.int64(load_u32(data, at)), out, to)
    elif kind == DATE:
        to = _write_date(np.int64(np.int32(load_u32(data, at))), out, to)
    elif kind == UUID:
        to = _write_uuid(data, at, out, to)
    elif kind == BYTEA:
        to = _write_bytea(data, at, length, quotes, out, to)
    else:
        to = _write_timestamp(np.int64(load_u64(data, at)), kind, quotes, out, to)
    if quotes:
        out[to] = _QUOTE
        to += 1
    return to


@njit(cache=True, nogil=True)
def _write_number(kind: Int, data: Bytes, at: Int, length: Int, out: Bytes, to: Int) -> Int:
    if kind == INT4:
        return _write_integer(np.int64(np.int32(load_u32(data, at))), out, to)
    if kind == INT8:
        return _write_integer(np.int64(load_u64(data, at)), out, to)
    if kind == INT2:
        return _write_integer(np.int64(np.int16(load_u16(data, at))), out, to)
    return _write_numeric(data, at, length, out, to)


@njit(cache=True, nogil=True)
def _write_bool(value: bool, quotes: bool, out: Bytes, to: Int) -> Int:
    if not quotes:
        out[to] = 116 if value else 102
        return to + 1
    if value:
        for letter in (116, 114, 117, 101):
            out[to] = letter
            to += 1
    else:
        for letter in (102, 97, 108, 115, 101):
            out[to] = letter
            to += 1
    return to


@njit(cache=True, nogil=True)
def _write_integer(value: Int, out: Bytes, to: Int) -> Int:
    rest = np.uint64(value)
    if value < 0:
        out[to] = _DASH
        to += 1
        rest = np.uint64(0) - rest
    size, power = 1, np.uint64(10)
    while size < 20 and rest >= power:
        size += 1
        power *= np.uint64(10)
        if size == 20:
            break
    return _write_digits(rest, size, out, to)


@njit(cache=True, nogil=True)
def _write_digits(value: Int, size: Int, out: Bytes, to: Int) -> Int:
    rest = np.uint64(value)
    for i in range(size - 1, -1, -1):
        tenth = rest // np.uint64(10)
        out[to + i] = _ZERO + np.int64(rest - tenth * np.uint64(10))
        rest = tenth
    return to + size


@njit(cache=True, nogil=True)
def _write_escaped(data: Bytes, at: Int, length: Int, out: Bytes, to: Int) -> Int:
    for i in range(at, at + length):
        byte = data[i]
        escape = _ESCAPES[byte]
        if escape == 0:
            out[to] = byte
            to += 1
            continue
        out[to] = _BACKSLASH
        if escape > 1:
            out[to + 1] = escape
            to += 2
            continue
        out[to + 1], out[to + 2], out[to + 3] = 117, _ZERO, _ZERO
        out[to + 4], out[to + 5] = _HEX[byte >> 4], _HEX[byte & 15]
        to += 6
    return to


@njit(cache=True, nogil=True)
def _write_hex(data: Bytes, at: Int, length: Int, out: Bytes, to: Int) -> Int:
    for i in range(at, at + length):
        out[to], out[to + 1] = _HEX[data[i] >> 4], _HEX[data[i] & 15]
        to += 2
    return to


@njit(cache=True, nogil=True)
def _write_bytea(data: Bytes, at: Int, length: Int, quotes: bool, out: Bytes, to: Int) -> Int:
    out[to] = out[to + 1] = _BACKSLASH
    to += 2 if quotes else 1
    out[to] = 120
    return _write_hex(data, at, length, out, to + 1)


@njit(cache=True, nogil=True)
def _write_uuid(data: Bytes, at: Int, out: Bytes, to: Int) -> Int:
    for begin, end in ((0, 4), (4, 6), (6, 8), (8, 10), (10, 16)):
        if begin:
            out[to] = _DASH
            to += 1
        to = _write_hex(data, at + begin, end - begin, out, to)
    return to


@njit(cache=True, nogil=True)
def _write_date(days: Int, out: Bytes, to: Int) -> Int:
    era, day = divmod(days + _EPOCH, 146_097)
    year = (day - day // 1460 + day // 36_524 - day // 146_096) // 365
    day -= 365 * year + year // 4 - year // 100
    month = (5 * day + 2) // 153  # March is 0
    day -= (153 * month + 2) // 5
    year += era * 400 + (1 if month >= 10 else 0)
    to = _write_digits(year, 4, out, to)
    out[to] = _DASH
    to = _write_digits((month + 2) % 12 + 1, 2, out, to + 1)
    out[to] = _DASH
    return _write_digits(day + 1, 2, out, to + 1)


@njit(cache=True, nogil=True)
def _write_timestamp(value: Int, kind: Int, is_json: bool, out: Bytes, to: Int) -> Int:
    days, microseconds = divmod(value, _DAY)
    to = _write_date(days, out, to)
    out[to] = 84 if is_json else 32  # T
    seconds, fraction = divmod(microseconds, _SECOND)
    to = _write_digits(seconds // 3600, 2, out, to + 1)
    out[to] = _COLON
    to = _write_digits(seconds // 60 % 60, 2, out, to + 1)
    out[to] = _COLON
    to = _write_digits(seconds % 60, 2, out, to + 1)
    if fraction:
        out[to] = _DOT
        to = _write_digits(fraction, 6, out, to + 1)
        while out[to - 1] == _ZERO:
            to -= 1
    if kind == TIMESTAMPTZ:
        out[to] = 43  # +
        to = _write_digits(0, 2, out, to + 1)
        if is_json:
            out[to] = _COLON
            to = _write_digits(0, 2, out, to + 1)
    return to


@njit(cache=True, nogil=True)
def _numeric_head(data: Bytes, at: Int, length: Int) -> tuple[Int, Int, Int]:
    """(weight, scale, offset of the digits, or 0 if it is not a finite number)"""
    nothing = np.int64(0)
    header = np.int64(load_u16(data, at))
    if header & 0xC000 == 0xC000 or length < 2:
        return nothing, nothing, nothing
    if header & 0x8000:
        weight = (header & 0x3F) - (0x40 if header & 0x40 else 0)
        return weight, (header & 0x1F80) >> 7, at + 2
    return np.int64(np.int16(load_u16(data, at + 2))), header & 0x3FFF, at + 4


@njit(cache=True, nogil=True)
def _write_numeric(data: Bytes, at: Int, length: Int, out: Bytes, to: Int) -> Int:
    header = np.int64(load_u16(data, at))
    weight, scale, begin = _numeric_head(data, at, length)
    digits = (at + length - begin) // 2
    if header & (0x2000 if header & 0x8000 else 0x4000):
        out[to] = _DASH
        to += 1
    if weight < 0:
        out[to] = _ZERO
        to += 1
    for group in range(weight + 1):
        digit = np.int64(load_u16(data, begin + 2 * group)) if group < digits else np.int64(0)
        to = _write_integer(digit, out, to) if group == 0 else _write_digits(digit, 4, out, to)
    if scale == 0:
        return to
    out[to] = _DOT
    to += 1
    end = to + scale
    for _ in range(-1 - weight):
        to = _write_digits(0, 4, out, to)
    group = max(weight + 1, np.int64(0))
    while to < end:
        digit = np.int64(load_u16(data, begin + 2 * group)) if group < digits else np.int64(0)
        to = _write_digits(digit, 4, out, to)
        group += 1
    return end
