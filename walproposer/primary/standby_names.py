"""Parses synchronous_standby_names as Postgres does: how many of which standbys must confirm. Pure.

    a, b              FIRST 1 (a, b)    the first of them that streams
    2 (a, b, c)       FIRST 2 (...)     the first two that stream
    ANY 2 (a, b, c)                     any two
    *                                   any standby that streams

Sources: Postgres `replication/syncrep_gram.y`, `syncrep_scanner.l`, and SyncRepGetStandbyPriority
in `syncrep.c`: names are compared without regard to case, quoted or not, and a `*`, quoted or not,
matches every application_name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from quorum_wal.walproposer.errors import Refusal

ANY_NAME = "*"

_TOKEN = re.compile(
    r'(?P<space>[ \t\n\r\f\v]+)|"(?P<quoted>(?:[^"]|"")*)"'
    # A range up to the last character takes as long to compile as importing ten modules.
    r"|(?P<word>(?:[A-Za-z_]|[^\x00-\x7f])(?:[A-Za-z0-9_$]|[^\x00-\x7f])*)"
    r"|(?P<number>[0-9]+)|(?P<sign>[*,()])"
)
_COUNT_DIGITS_MAX = 9


class Method(Enum):
    PRIORITY = "FIRST"
    QUORUM = "ANY"


@dataclass(frozen=True, slots=True)
class StandbyNames:
    """`count` standbys must confirm. Several clients may use the same name."""

    method: Method
    count: int
    names: tuple[str, ...]

    def matches(self, application_name: str) -> bool:
        return any(_is_same(name, application_name) for name in self.names)

    def others(self, application_name: str) -> tuple[str, ...]:
        """The names that other clients may use; a `*` allows any client."""
        return tuple(
            name for name in self.names if name == ANY_NAME or not _is_same(name, application_name)
        )


def parse_standby_names(value: str) -> StandbyNames | None:
    """None if the value is empty: then no commit waits. Raises Refusal for a value that Postgres
    does not accept."""
    if not value:
        return None
    tokens = list(_tokens(value))
    match tokens:
        case [("keyword", method), ("number", count), ("sign", "("), *names, ("sign", ")")]:
            return StandbyNames(Method(method), _count(count, value), _names(names, value))
        case [("number", count), ("sign", "("), *names, ("sign", ")")]:
            return StandbyNames(Method.PRIORITY, _count(count, value), _names(names, value))
        case names:
            return StandbyNames(Method.PRIORITY, 1, _names(names, value))


def one_of(value: str) -> tuple[str, ...]:
    """The names in synchronous_standby_names, if one of them must confirm; else ()."""
    rule = parse_standby_names(value)
    return rule.names if rule is not None and rule.count == 1 else ()


def names_us(value: str, application_name: str) -> bool:
    """Whether the value names this application_name explicitly, and not only with `*`."""
    rule = parse_standby_names(value)
    return rule is not None and len(rule.others(application_name)) < len(rule.names)


def _tokens(value: str) -> Iterator[tuple[str, str]]:
    """The tokens of the grammar: (keyword|name|number|sign, text)."""
    position = 0
    while position < len(value):
        match = _TOKEN.match(value, position)
        if match is None:
            raise _not_understood(value)
        position = match.end()
        text = match[match.lastgroup or 0]
        match match.lastgroup:
            case "quoted":
                yield "name", text.replace('""', '"')
            case "word" if text.upper() in (Method.PRIORITY.value, Method.QUORUM.value):
                yield "keyword", text.upper()
            case "word":
                yield "name", text
            case "sign" if text == ANY_NAME:
                yield "name", text
            case "number" | "sign" as kind:
                yield kind, text
            case _:
                pass  # space


def _names(tokens: list[tuple[str, str]], value: str) -> tuple[str, ...]:
    """Names, or numbers as names, separated by commas."""
    names, commas = tokens[::2], tokens[1::2]
    are_names = all(kind in ("name", "number") for kind, _ in names)
    if len(names) != len(commas) + 1 or not are_names or set(commas) - {("sign", ",")}:
        raise _not_understood(value)
    return tuple(text for _, text in names)


def _count(digits: str, value: str) -> int:
    if len(digits) > _COUNT_DIGITS_MAX or int(digits) == 0:
        raise _not_understood(value)
    return int(digits)


def _not_understood(value: str) -> Refusal:
    return Refusal(f"invalid synchronous_standby_names: {value}")


def _is_same(name: str, application_name: str) -> bool:
    """pg_strcasecmp folds ASCII. Whether it folds more depends on the server's locale."""
    return name == ANY_NAME or _folded(name) == _folded(application_name)


def _folded(name: str) -> bytes:
    return name.encode(errors="surrogatepass").lower()
