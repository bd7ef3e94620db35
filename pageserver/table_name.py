"""`TableName`: which table, as a user writes it: `database.schema.table`.

shop.public.orders        folded to lower case, as in SQL
shop.public."Orders"      as it is; "" inside is one "
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from pageserver.errors import TableNameError

_PART = re.compile(r'"(?P<quoted>(?:[^"\0]|"")+)"|(?P<plain>[^".\0]+)')
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
        parts, at = [], 0
        while found := _PART.match(text, at):
            quoted = found["quoted"]
            parts.append(
                found["plain"].strip().lower() if quoted is None else quoted.replace('""', '"')
            )
            at = found.end()
            if at == len(text) or text[at] != ".":
                break
            at += 1
        if at != len(text) or len(parts) != 3 or not all(parts):
            raise TableNameError(f"{text!r} is no name of a table", hint=_HINT)
        return cls(*parts)

    def __str__(self) -> str:
        """So that parse() has the same."""
        return ".".join(map(quote_name, (self.database, self.schema, self.table)))


def quote_name(name: str) -> str:
    """As SQL and the patterns of pg_dump read it, always in quotes."""
    return '"' + name.replace('"', '""') + '"'
