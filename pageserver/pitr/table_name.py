"""`TableName`: a table name as written by a user: `database.schema.table`.

shop.public.orders        folded to lower case, as in SQL
shop.public."Orders"      unchanged; "" inside stands for one "
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from quorum_wal.pageserver.errors import TableNameError

_PART = r'("(?:[^"\0]|"")+"|[^".\0]+)'
_NAME = re.compile(rf"{_PART}\.{_PART}\.{_PART}")
_HINT = 'Write database.schema.table. Put names with dots or capitals in double quotes: "Orders".'


@dataclass(frozen=True, slots=True)
class TableName:
    """Each part as stored in the catalogs."""

    database: str
    schema: str
    table: str

    @classmethod
    def parse(cls, text: str) -> TableName:
        """Raises TableNameError."""
        found = _NAME.fullmatch(text)
        parts = [_unquoted(part) for part in found.groups()] if found else []
        if not parts or not all(parts):
            raise TableNameError(f"{text!r} is not a valid table name", hint=_HINT)
        return cls(*parts)

    def __str__(self) -> str:
        """Text that parse() accepts and converts back to an equal name."""
        return ".".join(map(quote_name, (self.database, self.schema, self.table)))


def _unquoted(part: str) -> str:
    if part.startswith('"'):
        return part[1:-1].replace('""', '"')
    return part.strip().lower()


def quote_name(name: str) -> str:
    """Quoted for SQL and for patterns of pg_dump, always in double quotes."""
    return '"' + name.replace('"', '""') + '"'
