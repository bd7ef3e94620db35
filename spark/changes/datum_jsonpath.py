"""`jsonpath` as text.

    | version 1, is lax 1 bit: 4 | items |
    item | kind 1 | to a multiple of 4 | distance of the next item 4, or 0 | content |

Distances of other items count from the item that has them; 0 means none. Items follow those that
refer to them. Source: Postgres `jsonpath.h`, `jsonpath.c` (printJsonPathItem).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

from quorum_wal.spark.changes.datum_jsonb import json_string
from quorum_wal.spark.changes.datum_numeric import numeric_text
from quorum_wal.spark.changes.datum_varlena import DatumError, plain_varlena

_U32 = struct.Struct("<I")
_VERSION, _IS_LAX = 1, 0x80000000
#: a kind and a distance, without padding between them
_ITEM_SIZE_MIN = 5
_PAIR = struct.Struct("<II")
_REGEX = struct.Struct("<III")
_LAST = 0xFFFFFFFF
_FLAGS = ((0x01, "i"), (0x02, "s"), (0x04, "m"), (0x08, "x"), (0x10, "q"))


class _Kind(IntEnum):
    """`JsonPathItemType`, whose numbers never change."""

    NULL = 0
    STRING = 1
    NUMERIC = 2
    BOOL = 3
    AND = 4
    OR = 5
    NOT = 6
    IS_UNKNOWN = 7
    EQUAL = 8
    NOT_EQUAL = 9
    LESS = 10
    GREATER = 11
    LESS_OR_EQUAL = 12
    GREATER_OR_EQUAL = 13
    ADD = 14
    SUB = 15
    MUL = 16
    DIV = 17
    MOD = 18
    PLUS = 19
    MINUS = 20
    ANY_ARRAY = 21
    ANY_KEY = 22
    INDEX_ARRAY = 23
    ANY = 24
    KEY = 25
    CURRENT = 26
    ROOT = 27
    VARIABLE = 28
    FILTER = 29
    EXISTS = 30
    TYPE = 31
    SIZE = 32
    ABS = 33
    FLOOR = 34
    CEILING = 35
    DOUBLE = 36
    DATETIME = 37
    KEY_VALUE = 38
    SUBSCRIPT = 39
    LAST = 40
    STARTS_WITH = 41
    LIKE_REGEX = 42
    BIGINT = 43
    BOOLEAN = 44
    DATE = 45
    DECIMAL = 46
    INTEGER = 47
    NUMBER = 48
    STRING_METHOD = 49
    TIME = 50
    TIME_TZ = 51
    TIMESTAMP = 52
    TIMESTAMP_TZ = 53


_OPERATORS = {
    _Kind.AND: "&&",
    _Kind.OR: "||",
    _Kind.EQUAL: "==",
    _Kind.NOT_EQUAL: "!=",
    _Kind.LESS: "<",
    _Kind.GREATER: ">",
    _Kind.LESS_OR_EQUAL: "<=",
    _Kind.GREATER_OR_EQUAL: ">=",
    _Kind.ADD: "+",
    _Kind.SUB: "-",
    _Kind.MUL: "*",
    _Kind.DIV: "/",
    _Kind.MOD: "%",
    _Kind.STARTS_WITH: "starts with",
}
_PRIORITIES: dict[int, int] = {
    _Kind.OR: 0,
    _Kind.AND: 1,
    _Kind.ADD: 3,
    _Kind.SUB: 3,
    _Kind.MUL: 4,
    _Kind.DIV: 4,
    _Kind.MOD: 4,
    _Kind.PLUS: 5,
    _Kind.MINUS: 5,
    **dict.fromkeys(
        (
            _Kind.EQUAL, _Kind.NOT_EQUAL, _Kind.LESS, _Kind.GREATER, _Kind.LESS_OR_EQUAL,
            _Kind.GREATER_OR_EQUAL, _Kind.STARTS_WITH,
        ),
        2,
    ),
}  # fmt: skip
_PRIORITY_MAX = 6
_KINDS = frozenset(_Kind)
_WORDS = {
    _Kind.NULL: "null",
    _Kind.ANY_ARRAY: "[*]",
    _Kind.CURRENT: "@",
    _Kind.ROOT: "$",
    _Kind.LAST: "last",
    _Kind.TYPE: ".type()",
    _Kind.SIZE: ".size()",
    _Kind.ABS: ".abs()",
    _Kind.FLOOR: ".floor()",
    _Kind.CEILING: ".ceiling()",
    _Kind.DOUBLE: ".double()",
    _Kind.KEY_VALUE: ".keyvalue()",
    _Kind.BIGINT: ".bigint()",
    _Kind.BOOLEAN: ".boolean()",
    _Kind.DATE: ".date()",
    _Kind.INTEGER: ".integer()",
    _Kind.NUMBER: ".number()",
    _Kind.STRING_METHOD: ".string()",
}
#: what stands around the only argument, which a method may lack
_UNARY = {
    _Kind.NOT: ("!(", ")"),
    _Kind.IS_UNKNOWN: ("(", ") is unknown"),
    _Kind.FILTER: ("?(", ")"),
    _Kind.EXISTS: ("exists (", ")"),
    _Kind.DATETIME: (".datetime(", ")"),
    _Kind.TIME: (".time(", ")"),
    _Kind.TIME_TZ: (".time_tz(", ")"),
    _Kind.TIMESTAMP: (".timestamp(", ")"),
    _Kind.TIMESTAMP_TZ: (".timestamp_tz(", ")"),
}


def jsonpath_text(data: bytes) -> str:
    """The output of jsonpath_out. Raises DatumError, struct.error, RecursionError."""
    (header,) = _U32.unpack_from(data)
    if header & ~_IS_LAX != _VERSION:
        raise DatumError(f"jsonpath of version {header & ~_IS_LAX}, expected {_VERSION}")
    path = _Path(data[_U32.size :])
    return ("" if header & _IS_LAX else "strict ") + "".join(path.chain(0, is_enclosed=True))


@dataclass(slots=True)
class _Item:
    at: int
    kind: _Kind
    next: int
    #: where the content of the kind begins
    content: int


class _Path:
    """The items of one value. Each is printed once, so the work is limited by their number."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._unread = len(data) // _ITEM_SIZE_MIN

    def chain(self, at: int, *, is_enclosed: bool) -> Iterator[str]:
        """An item, and the accessors that follow it."""
        item = self._item(at)
        yield from self._print(item, is_key=False, is_enclosed=is_enclosed)
        while item.next:
            item = self._item(item.at + item.next)
            yield from self._print(item, is_key=True, is_enclosed=True)

    def _item(self, at: int) -> _Item:
        if self._unread == 0:
            raise DatumError("jsonpath items refer to each other in a circle")
        self._unread -= 1
        (kind,) = self._bytes(at, 1)
        if kind not in _KINDS:
            raise DatumError(f"jsonpath item of kind {kind}")
        link = at + 1 + -(at + 1) % _U32.size
        (following,) = _U32.unpack_from(self._data, link)
        return _Item(at, _Kind(kind), following, link + _U32.size)

    def _print(self, item: _Item, *, is_key: bool, is_enclosed: bool) -> Iterator[str]:
        kind, content = item.kind, item.content
        if kind in _WORDS:
            yield _WORDS[kind]
        elif kind in _OPERATORS:
            left, right = _PAIR.unpack_from(self._data, content)
            yield "(" if is_enclosed else ""
            yield from self._operand(item, left)
            yield f" {_OPERATORS[kind]} "
            yield from self._operand(item, right)
            yield ")" if is_enclosed else ""
        elif kind in _UNARY:
            opening, closing = _UNARY[kind]
            yield opening
            yield from self._argument(item, content)
            yield closing
        elif kind in (_Kind.PLUS, _Kind.MINUS):
            (distance,) = _U32.unpack_from(self._data, content)
            yield "(" if is_enclosed else ""
            yield "+" if kind is _Kind.PLUS else "-"
            yield from self._operand(item, distance)
            yield ")" if is_enclosed else ""
        elif kind is _Kind.LIKE_REGEX:
            yield from self._regex(item, content, is_enclosed=is_enclosed)
        elif kind is _Kind.INDEX_ARRAY:
            yield from self._subscripts(item, content)
        elif kind is _Kind.DECIMAL:
            yield from self._decimal(item, content)
        else:
            yield self._scalar(item, content, is_key=is_key)

    def _scalar(self, item: _Item, content: int, *, is_key: bool) -> str:
        dot = "." if is_key else ""
        match item.kind:
            case _Kind.STRING:
                return json_string(self._string(content))
            case _Kind.VARIABLE:
                return "$" + json_string(self._string(content))
            case _Kind.KEY:
                return dot + json_string(self._string(content))
            case _Kind.ANY_KEY:
                return dot + "*"
            case _Kind.ANY:
                return dot + self._levels(content)
            case _Kind.BOOL:
                return "true" if self._bytes(content, 1)[0] else "false"
            case _Kind.NUMERIC:
                (header,) = _U32.unpack_from(self._data, content)
                number = numeric_text(plain_varlena(self._bytes(content, header >> 2)))
                return f"({number})" if item.next else number
        raise DatumError(f"jsonpath item {item.kind.name} outside of its place")

    def _operand(self, item: _Item, distance: int) -> Iterator[str]:
        at = item.at + distance
        kinds = (self._bytes(at, 1)[0], item.kind)
        operand, operator = (_PRIORITIES.get(kind, _PRIORITY_MAX) for kind in kinds)
        yield from self.chain(at, is_enclosed=operand <= operator)

    def _argument(self, item: _Item, content: int) -> Iterator[str]:
        (distance,) = _U32.unpack_from(self._data, content)
        if distance:
            yield from self.chain(item.at + distance, is_enclosed=False)

    def _decimal(self, item: _Item, content: int) -> Iterator[str]:
        yield ".decimal("
        yield from self._argument(item, content)
        if _U32.unpack_from(self._data, content + _U32.size)[0]:
            yield ","
            yield from self._argument(item, content + _U32.size)
        yield ")"

    def _subscripts(self, item: _Item, content: int) -> Iterator[str]:
        (count,) = _U32.unpack_from(self._data, content)
        pairs = self._bytes(content + _U32.size, _PAIR.size * count)
        yield "["
        for number, (begin, end) in enumerate(_PAIR.iter_unpack(pairs)):
            yield "," if number else ""
            yield from self.chain(item.at + begin, is_enclosed=False)
            if end:
                yield " to "
                yield from self.chain(item.at + end, is_enclosed=False)
        yield "]"

    def _regex(self, item: _Item, content: int, *, is_enclosed: bool) -> Iterator[str]:
        flags, distance, length = _REGEX.unpack_from(self._data, content)
        yield "(" if is_enclosed else ""
        yield from self._operand(item, distance)
        pattern = self._bytes(content + _REGEX.size, length)
        yield f" like_regex {json_string(pattern.decode())}"
        if flags:
            yield f' flag "{"".join(letter for bit, letter in _FLAGS if flags & bit)}"'
        yield ")" if is_enclosed else ""

    def _levels(self, content: int) -> str:
        first, last = _PAIR.unpack_from(self._data, content)
        if (first, last) == (0, _LAST):
            return "**"
        ends = ["last" if each == _LAST else str(each) for each in (first, last)]
        return f"**{{{ends[0]}}}" if first == last else f"**{{{' to '.join(ends)}}}"

    def _string(self, at: int) -> str:
        (length,) = _U32.unpack_from(self._data, at)
        return self._bytes(at + _U32.size, length).decode()

    def _bytes(self, at: int, length: int) -> bytes:
        found = self._data[at : at + length]
        if len(found) != length:
            raise DatumError(f"jsonpath ends at byte {len(self._data)}, inside of an item")
        return found
