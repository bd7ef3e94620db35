"""A finding of a preflight: one sentence, its level, and the command that fixes it. Pure."""

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
    """`remedy` is the command or action that fixes it; "" if there is nothing to fix."""

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
    """The statement that changes a setting. `value` is as in postgresql.conf, without the
    quotes."""
    then = "then restart the primary" if restart else "SELECT pg_reload_conf();"
    escaped = value.replace("'", "''")
    return f"ALTER SYSTEM SET {name} = '{escaped}'; {then}"


def quoted(identifier: str) -> str:
    """`identifier` as SQL requires it."""
    if re.fullmatch(r"[a-z_][a-z0-9_]*", identifier):
        return identifier
    escaped = identifier.replace('"', '""')
    return f'"{escaped}"'
