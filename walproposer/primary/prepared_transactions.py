"""The transactions in pg_prepared_xacts: prepared, and neither committed nor rolled back. Those of
qsync are its limbo. The others belong to other programs; we only list them.

A standby shows none, whatever its WAL has: Postgres fills the view when recovery ends. Names are
read as bytes, because those of other programs need not be text in any encoding. Source: Postgres
`twophase.c` (pg_prepared_xact, RecoverPreparedTransactions).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import psycopg

_PREPARED = (
    "SELECT convert_to(gid, 'SQL_ASCII'), convert_to(database::text, 'SQL_ASCII'),"
    " convert_to(coalesce(owner::text, ''), 'SQL_ASCII'),"
    " greatest(extract(epoch FROM clock_timestamp() - prepared), 0)::float8"
    " FROM pg_prepared_xacts ORDER BY prepared, gid"
)


@dataclass(frozen=True, slots=True)
class PreparedTransaction:
    """A row of the view."""

    gid: str
    database: str
    owner: str
    age_seconds: float

    @property
    def is_ours(self) -> bool:
        """Whether it is of qsync."""
        from quorum_wal.qsync.gid import (
            Gid,  # imported here: a proposer that finds none does not need it
        )

        return Gid.is_ours(self.gid)

    def __str__(self) -> str:
        """In printable form."""
        gid = self.gid.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
        return (
            f"{gid}, database {self.database}, owner {self.owner}, "
            f"prepared {self.age_seconds:.0f} s ago"
        )


def read_prepared(connection: psycopg.Connection) -> tuple[PreparedTransaction, ...]:
    """The oldest first; none on a standby. Raises psycopg.Error."""
    rows = connection.execute(_PREPARED).fetchall()
    return tuple(
        PreparedTransaction(_text(gid), _text(database), _text(owner), age)
        for gid, database, owner, age in rows
    )


def _text(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")


def ours(prepared: Iterable[PreparedTransaction]) -> tuple[PreparedTransaction, ...]:
    """Those of qsync: the limbo."""
    return tuple(each for each in prepared if each.is_ours)


def prepared_before(
    prepared: Iterable[PreparedTransaction], tli: int
) -> tuple[PreparedTransaction, ...]:
    """The limbo that a server on timeline `tli` found when it was promoted. A gid has the timeline
    on which it was prepared, and no client can prepare on a server in recovery."""
    limbo = ours(prepared)
    if not limbo:
        return ()
    from quorum_wal.qsync.gid import Gid  # as above

    return tuple(each for each in limbo if Gid.parse(each.gid).tli < tli)
