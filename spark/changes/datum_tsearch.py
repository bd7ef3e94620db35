"""`tsvector` and `tsquery` as text.

    tsvector  | lexemes 4 | entries 4 each | lexemes, each with its positions if it has some |
    entry     | has positions 1 bit, length 11 bits, place 20 bits |
    positions | to a multiple of 2 | count 2 | weight 2 bits, position 14 bits, each 2 |
    tsquery   | items 4 | items 12 each | operands, each ends with a zero |
    operand   | 1: 1 | weights 1 | is a prefix 1 | 5 | length 12 bits, place 20 bits |
    operator  | 2: 1 | NOT 1, AND 2, OR 3, PHRASE 4: 1 | distance 2 | left operand 4 | 4 |

A tsquery is in prefix notation: an operator, its right operand, its left operand. Places count from
the end of the entries or items. Source: Postgres `ts_type.h`, `tsvector.c` (tsvectorout),
`tsquery.c` (infix).
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import NamedTuple

from quorum_wal.spark.changes.datum_varlena import DatumError

_U32 = struct.Struct("<I")
_U16 = struct.Struct("<H")
_ITEM_SIZE = 12
_OPERAND = struct.Struct("<xB?5xI")
_OPERATOR = struct.Struct("<xBh8x")
_VALUE, _OPERATION = 1, 2
_WEIGHTS = ("", "C", "B", "A")
_PREFIX_WEIGHTS = ((8, "A"), (4, "B"), (2, "C"), (1, "D"))


class _Operator(IntEnum):
    NOT = 1
    AND = 2
    OR = 3
    PHRASE = 4


#: the higher, the stronger; an operand is the strongest
_PRIORITY = {_Operator.OR: 1, _Operator.AND: 2, _Operator.PHRASE: 3, _Operator.NOT: 4}
_OPERAND_PRIORITY = 5


class _Term(NamedTuple):
    text: str
    priority: int

    def within(self, priority: int) -> str:
        return f"( {self.text} )" if self.priority < priority else self.text


def tsvector_text(data: bytes) -> str:
    """The output of tsvectorout. Raises DatumError, struct.error."""
    entries, lexemes = _split(data, _U32.size, "tsvector")
    parts, total = [], 0
    for (entry,) in _U32.iter_unpack(entries):
        length, begin = entry >> 1 & 0x7FF, entry >> 12
        total += length
        if begin + length > len(lexemes) or total > len(lexemes):
            raise DatumError(f"lexeme from {begin} to {begin + length} of {len(lexemes)} bytes")
        text = _quoted(lexemes[begin : begin + length])
        parts.append(text + _positions(lexemes, begin + length) if entry & 1 else text)
    return " ".join(parts)


def _positions(lexemes: bytes, at: int) -> str:
    at += at % 2
    (count,) = _U16.unpack_from(lexemes, at)
    stored = lexemes[at + _U16.size : at + _U16.size * (1 + count)]
    if len(stored) != _U16.size * count:
        raise DatumError(f"{count} positions begin at byte {at} of {len(lexemes)}")
    places = (f"{place & 0x3FFF}{_WEIGHTS[place >> 14]}" for (place,) in _U16.iter_unpack(stored))
    return ":" + ",".join(places)


def tsquery_text(data: bytes) -> str:
    """The output of tsqueryout. Raises DatumError, struct.error."""
    items, operands = _split(data, _ITEM_SIZE, "tsquery")
    terms: list[_Term] = []
    total = 0
    # Backwards: both operands come before their operator, the right one last.
    for at in range(len(items) - _ITEM_SIZE, -1, -_ITEM_SIZE):
        item = items[at : at + _ITEM_SIZE]
        if item[0] == _VALUE:
            total += _OPERAND.unpack(item)[2] & 0xFFF
            if total > len(operands):
                raise DatumError(f"operands of {total} bytes in {len(operands)}")
            terms.append(_operand(item, operands))
        elif item[0] == _OPERATION:
            _operate(item, terms)
        else:
            raise DatumError(f"tsquery item of kind {item[0]}")
    if len(terms) > 1:
        raise DatumError(f"tsquery of {len(terms)} terms without an operator")
    return terms[0].text if terms else ""


def _operand(item: bytes, operands: bytes) -> _Term:
    weights, is_prefix, place = _OPERAND.unpack(item)
    begin, length = place >> 12, place & 0xFFF
    if begin + length > len(operands):
        raise DatumError(f"operand from {begin} to {begin + length} of {len(operands)} bytes")
    marks = "*" if is_prefix else ""
    marks += "".join(letter for bit, letter in _PREFIX_WEIGHTS if weights & bit)
    text = _quoted(operands[begin : begin + length])
    return _Term(f"{text}:{marks}" if marks else text, _OPERAND_PRIORITY)


def _operate(item: bytes, terms: list[_Term]) -> None:
    """Replaces the operands at the end of `terms` by the operation."""
    code, distance = _OPERATOR.unpack(item)
    if code not in _PRIORITY:
        raise DatumError(f"tsquery operator {code}")
    operator = _Operator(code)
    priority = _PRIORITY[operator]
    if len(terms) < (1 if operator is _Operator.NOT else 2):
        raise DatumError("a tsquery operator has no operand")
    right = terms.pop()
    if operator is _Operator.NOT:
        terms.append(_Term("!" + right.within(priority), priority))
        return
    symbol = "&" if operator is _Operator.AND else "|"
    # `a <-> (b <-> c)` is not `a <-> b <-> c`.
    right_priority = priority
    if operator is _Operator.PHRASE:
        symbol = "<->" if distance == 1 else f"<{distance}>"
        right_priority += right.priority == priority
    left = terms.pop().within(priority)
    terms.append(_Term(f"{left} {symbol} {right.within(right_priority)}", priority))


def _split(data: bytes, size: int, name: str) -> tuple[bytes, bytes]:
    """The entries of this size, whose count comes first; and what follows them."""
    (count,) = _U32.unpack_from(data)
    end = _U32.size + size * count
    if end > len(data):
        raise DatumError(f"{name} of {count} entries in {len(data)} bytes")
    return data[_U32.size : end], data[end:]


def _quoted(text: bytes) -> str:
    return "'" + text.decode().replace("\\", "\\\\").replace("'", "''") + "'"
