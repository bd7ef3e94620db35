"""What a preflight has found: one sentence, how bad it is, and the command that mends it. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum


class Level(Enum):
    OK = "ok"
    WARN = "warn"
    FAIL = "FAIL"


@dataclass(frozen=True, slots=True)
class Finding:
    """`remedy` is what to run, or to do; "" when all is well."""

    check: str
    level: Level
    text: str
    remedy: str = ""

    @property
    def sentence(self) -> str:
        return ": ".join(filter(None, (self.check, self.text, self.remedy)))


def ok(check: str, text: str) -> Finding:
    return Finding(check, Level.OK, text)


def warn(check: str, text: str, remedy: str) -> Finding:
    return Finding(check, Level.WARN, text, remedy)


def fail(check: str, text: str, remedy: str) -> Finding:
    return Finding(check, Level.FAIL, text, remedy)


def alter_system(name: str, value: str, *, restart: bool = False) -> str:
    """How a setting is changed; `value` as it stands in postgresql.conf, without the quotes."""
    then = "then restart the primary" if restart else "SELECT pg_reload_conf();"
    escaped = value.replace("'", "''")
    return f"ALTER SYSTEM SET {name} = '{escaped}'; {then}"


def quoted(identifier: str) -> str:
    """As SQL wants it."""
    if re.fullmatch(r"[a-z_][a-z0-9_]*", identifier):
        return identifier
    escaped = identifier.replace('"', '""')
    return f'"{escaped}"'
