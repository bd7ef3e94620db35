"""The SQL queries of clients that follow WAL and monitor it, such as barman: text <-> values.

    SELECT 1
    SELECT setting FROM pg_settings WHERE name = 'wal_segment_size'
    SELECT slot_name, active, restart_lsn FROM pg_replication_slots
      WHERE slot_type = 'physical' AND slot_name = 'barman'
    SELECT (pg_has_role(CURRENT_USER, 'pg_monitor', 'USAGE') OR (
      pg_has_role(CURRENT_USER, 'pg_read_all_settings', 'USAGE')
      AND pg_has_role(CURRENT_USER, 'pg_read_all_stats', 'USAGE')))
    SET application_name TO barman


Law: these five statements and no others, because a server that only has the WAL can answer each of
them truthfully. They are compared word by word, ignoring case and white space.
Source: barman 3.19, `postgres.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class SelectOne:
    """Whether the server answers."""


@dataclass(frozen=True, slots=True)
class SelectSetting:
    """The value of a parameter in its own unit: bytes, seconds."""

    name: str


@dataclass(frozen=True, slots=True)
class SelectSlot:
    """Whether a physical slot is active, and its restart_lsn."""

    name: str


@dataclass(frozen=True, slots=True)
class SelectMayMonitor:
    """Whether the user may read the views that monitoring needs."""


@dataclass(frozen=True, slots=True)
class SetApplicationName:
    """The new application_name of the client."""

    name: str


MonitoringQuery: TypeAlias = (
    SelectOne | SelectSetting | SelectSlot | SelectMayMonitor | SetApplicationName
)

_HAS_ROLE = "pg_has_role(CURRENT_USER, '{}', 'USAGE')"
_HAS_ROLES = (
    f"({_HAS_ROLE.format('pg_monitor')} OR ({_HAS_ROLE.format('pg_read_all_settings')}"
    f" AND {_HAS_ROLE.format('pg_read_all_stats')}))"
)
_SLOT = "SELECT slot_name, active, restart_lsn FROM pg_replication_slots"

#: $ stands for a quoted text, % for a quoted text or a word
_STATEMENTS: Mapping[str, Callable[..., MonitoringQuery]] = {
    "SELECT 1": SelectOne,
    "SELECT setting FROM pg_settings WHERE name = $": SelectSetting,
    f"{_SLOT} WHERE slot_type = 'physical' AND slot_name = $": SelectSlot,
    f"SELECT {_HAS_ROLES}": SelectMayMonitor,
    "SET application_name TO %": SetApplicationName,
}
_WORD = re.compile(r"\s*+(\w++|'(?:[^']|'')*+'|\S)")
_VALUES = {"$": re.compile(r"'.*'", re.DOTALL), "%": re.compile(r"\w+|'.*'", re.DOTALL)}


def parse_monitoring_query(text: str) -> MonitoringQuery | None:
    """Returns None if the text is none of the statements."""
    words = _words(text.rstrip().removesuffix(";"))
    for pattern, make in _PATTERNS:
        values = _values(pattern, words)
        if values is not None:
            return make(*values)
    return None


def _words(text: str) -> list[str]:
    return [match[1] for match in _WORD.finditer(text)]


def _values(pattern: list[str], words: list[str]) -> list[str] | None:
    if len(pattern) != len(words):
        return None
    values = []
    for expected, word in zip(pattern, words, strict=True):
        if expected in _VALUES:
            if not _VALUES[expected].fullmatch(word):
                return None
            values.append(word[1:-1].replace("''", "'") if word.startswith("'") else word)
        elif expected.lower() != word.lower():
            return None
    return values


_PATTERNS = [(_words(statement), make) for statement, make in _STATEMENTS.items()]
