"""`TableName`: which table, as a user writes it: `database.schema.table`.

shop.public.orders        folded to lower case, as in SQL
shop.public."Orders"      as it is; "" inside is one "
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from pageserver.errors import TableNameError

_PART = r'("(?:[^"\0]|"")+"|[^".\0]+)'
_NAME = re.compile(rf"{_PART}\.{_PART}\.{_PART}")
_HINT = 'Write database.schema.table, and names with dots or capitals in double quotes: "Orders".'


@dataclass(frozen=True, slots=True)
class TableName:
    """Each part as the catalogs have it."""

    database: str
    schema: str
    table: str

    @classmethod
    def parse(cls, text: str) -> TableName:
        """Raises TableNameError."""
        found = _NAME.fullmatch(text)
        parts = [_unquoted(part) for part in found.groups()] if found else []
        if not parts or not all(parts):
            raise TableNameError(f"{text!r} is no name of a table", hint=_HINT)
        return cls(*parts)

    def __str__(self) -> str:
        """So that parse() has the same."""
        return ".".join(map(quote_name, (self.database, self.schema, self.table)))


def _unquoted(part: str) -> str:
    if part.startswith('"'):
        return part[1:-1].replace('""', '"')
    return part.strip().lower()


def quote_name(name: str) -> str:
    """As SQL and the patterns of pg_dump read it, always in quotes."""
    return '"' + name.replace('"', '""') + '"'
