"""`ServerPages`: reads pages of a running server from shared buffers, with pageinspect.

    LSN | page | page | .. | LSN        all records of a page as read lie before the second LSN;
    before                   end        all its records before the first LSN are applied

A page is read under its lock, and the records of its changes are inserted under that lock. On a
standby a record counts as replayed slightly after it has changed its pages. There the end is the
position after one more record was replayed, or when no more is replayed.

Laws. It only runs queries, outside of transactions, and waits for no lock longer than LOCK_MS. The
query for a page also returns the relation's file, while the relation is locked.
Sources: Postgres `contrib/pageinspect/rawpage.c`, `XLogInsertRecord` in `xlog.c`,
`ApplyWalRecord` in `xlogrecovery.c`.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import psycopg
from psycopg import sql

from quorum_wal.pageserver.checks.check_report import Skip
from quorum_wal.pageserver.checks.visibility_bits import are_bits_valid, bits_of
from quorum_wal.pageserver.errors import PageserverError, ServerUnreachable
from quorum_wal.pageserver.layers.fork import DEFAULT_TABLESPACE, Fork, ForkKind
from quorum_wal.pgwal.lsn import Lsn

LOCK_MS = 200
#: attempts to confirm visibility map bits that seem wrong
READ_ATTEMPTS = 3
#: On a standby: limit for the replay of one record, once it has begun to change pages.
REPLAY_SECONDS, REPLAY_POLL_SECONDS = 1.0, 0.02

_RELATIONS = """
SELECT c.oid, quote_ident(n.nspname) || '.' || quote_ident(c.relname), c.relpersistence::text,
    pg_relation_filepath(c.oid), pg_relation_filenode(c.oid), CASE WHEN c.reltablespace = 0
        THEN (SELECT dattablespace FROM pg_database WHERE datname = current_database())
        ELSE c.reltablespace END,
    CASE WHEN c.relisshared THEN 0
        ELSE (SELECT oid FROM pg_database WHERE datname = current_database()) END,
    coalesce(pg_relation_size(c.oid, 'main'), 0) / 8192,
    coalesce(pg_relation_size(c.oid, 'vm'), 0) / 8192,
    coalesce(pg_relation_size(c.oid, 'fsm'), 0) / 8192
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'i', 't', 'm', 'S') AND c.relpersistence <> 't'
    AND pg_relation_filenode(c.oid) IS NOT NULL
    AND (%(wanted)s::oid[] IS NULL OR c.oid = ANY (%(wanted)s::oid[]))
ORDER BY c.oid
"""
#: a table, its indexes, its TOAST table and the index of that table
_FAMILY = """
WITH family AS (SELECT to_regclass(%s)::oid AS oid
    UNION SELECT reltoastrelid FROM pg_class WHERE oid = to_regclass(%s))
SELECT oid FROM family WHERE oid <> 0
UNION SELECT indexrelid FROM pg_index JOIN family ON indrelid = oid
"""
_FORK_NAMES = {ForkKind.MAIN: "main", ForkKind.VM: "vm"}


@dataclass(frozen=True, slots=True)
class ServedFork:
    """A fork of a logged relation. `path`: pg_relation_filepath(), with the fork's suffix."""

    fork: Fork
    oid: int
    relation: str
    path: str
    length: int


@dataclass(frozen=True, slots=True)
class Inventory:
    """The forks that can be checked, and the number of pages that cannot."""

    forks: dict[Fork, ServedFork]
    skipped: Counter[Skip]


@dataclass(slots=True)
class Batch:
    """`pages` were read in [before_lsn, end_lsn]. `refused`: the server's error for a page that it
    could not read. `skipped`: pages that were not read."""

    before_lsn: int
    end_lsn: int = 0
    pages: dict[tuple[Fork, int], bytes] = field(default_factory=dict)
    refused: dict[tuple[Fork, int], str] = field(default_factory=dict)
    skipped: dict[tuple[Fork, int], Skip] = field(default_factory=dict)


class ServerPages:
    """Pages of the database that the DSN names, and of shared relations. Every method raises
    ServerUnreachable, PageserverError."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection
        self._schema = ""
        self.database = ""
        self.system_id = 0
        self.is_standby = False

    @classmethod
    @contextmanager
    def connect(cls, dsn: str) -> Iterator[ServerPages]:
        """Connects as a superuser."""
        with _server_errors():
            connection = psycopg.connect(dsn, autocommit=True, application_name="sk page check")
        with connection:
            found = cls(connection)
            found._begin()
            yield found

    def _begin(self) -> None:
        with _server_errors():
            self._connection.execute(f"SET lock_timeout = {LOCK_MS}")
            ((self.database, self.is_standby, is_superuser),) = self._rows(
                "SELECT current_database(), pg_is_in_recovery(),"
                " current_setting('is_superuser')::bool"
            )
            if not is_superuser:
                raise PageserverError(
                    "must be superuser to read pages of the server",
                    hint="Specify a superuser in the DSN.",
                )
            ((self.system_id,),) = self._rows("SELECT system_identifier FROM pg_control_system()")
            schemas = self._rows(
                "SELECT nspname FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace"
                " WHERE extname = 'pageinspect'"
            )
        if not schemas:
            raise PageserverError(
                f'extension pageinspect is not installed in database "{self.database}"',
                hint="Run CREATE EXTENSION pageinspect on the primary, even to check a standby.",
            )
        self._schema = schemas[0][0]

    def position(self) -> tuple[int, int]:
        """(timeline, position): the insert position of a primary, or a standby's last
        checkpoint."""
        with _server_errors():
            if self.is_standby:
                query = "SELECT timeline_id, redo_lsn::text FROM pg_control_checkpoint()"
                ((tli, lsn),) = self._rows(query)
                return int(tli), int(Lsn.parse(lsn))
            ((name, lsn),) = self._rows(
                "SELECT pg_walfile_name(lsn), lsn::text FROM pg_current_wal_insert_lsn() lsn"
            )
        return int(name[:8], 16), int(Lsn.parse(lsn))

    def inventory(self, table: str | None = None) -> Inventory:
        """Of all relations, or of one table with its indexes and its TOAST table."""
        with _server_errors():
            wanted = None
            if table is not None:
                wanted = [oid for (oid,) in self._rows(_FAMILY, (table, table))]
                if not wanted:
                    raise PageserverError(
                        f'relation {table} does not exist in database "{self.database}"',
                        hint="Specify it as schema.table.",
                    )
            skipped = Counter[Skip]()
            rows = self._relations(wanted, skipped)
        forks: dict[Fork, ServedFork] = {}
        for oid, name, persistence, path, number, tablespace, database, main, vm, fsm in rows:
            skipped[Skip.FREE_SPACE] += fsm
            if persistence == "u":
                skipped[Skip.UNLOGGED] += main + vm
                continue
            fork = Fork(tablespace or DEFAULT_TABLESPACE, database, number, ForkKind.MAIN)
            forks[fork] = ServedFork(fork, oid, name, path, main)
            if vm:
                of_vm = replace(fork, kind=ForkKind.VM)
                forks[of_vm] = ServedFork(of_vm, oid, name, f"{path}_vm", vm)
        return Inventory(forks, skipped)

    def _relations(self, wanted: list[int] | None, skipped: Counter[Skip]) -> list[tuple[Any, ...]]:
        """Relations that are not locked: the size functions need a lock."""
        try:
            return self._rows(_RELATIONS, {"wanted": wanted})
        except psycopg.errors.LockNotAvailable:
            pass  # at least one is locked: query each relation separately
        found = []
        pages = self._rows("SELECT oid, greatest(relpages, 1) FROM pg_class ORDER BY oid")
        for oid, count in pages:
            if wanted is None or oid in wanted:
                try:
                    found += self._rows(_RELATIONS, {"wanted": [oid]})
                except psycopg.errors.LockNotAvailable:
                    skipped[Skip.LOCKED] += count
        return found

    def read(self, wanted: Iterable[tuple[ServedFork, int]]) -> Batch:
        """Reads these pages as one batch."""
        with _server_errors():
            batch = Batch(self._lsn())
            for served, block in wanted:
                self._read_one(batch, served, block)
            batch.end_lsn = self._standby_end_lsn() if self.is_standby else self._lsn()
        return batch

    def are_bits_valid(self, served: ServedFork, block: int, heap_block: int) -> bool:
        """Whether the bits of a heap page in page `block` of its visibility map are valid now.

        A backend that clears them in the heap page clears them in the map before it releases the
        page lock. So the map is read after the heap page. The heap page is then read again, because
        VACUUM may have set the bits in the meantime.
        """
        heap = replace(served, fork=replace(served.fork, kind=ForkKind.MAIN))
        for _ in range(READ_ATTEMPTS):
            pages = [self._read_now(heap, heap_block), self._read_now(served, block)]
            pages.append(self._read_now(heap, heap_block))
            if pages[1] is None:
                return True  # dropped or truncated
            bits = bits_of(pages[1], heap_block)
            if are_bits_valid(bits, pages[0]) or are_bits_valid(bits, pages[2]):
                return True
        return False

    def _read_now(self, served: ServedFork, block: int) -> bytes | None:
        batch = Batch(0)
        with _server_errors():
            self._read_one(batch, served, block)
        return batch.pages.get((served.fork, block))

    def _read_one(self, batch: Batch, served: ServedFork, block: int) -> None:
        key = served.fork, block
        query = sql.SQL(
            "SELECT {}.get_raw_page(%s::oid::regclass::text, %s, %s), pg_relation_filenode(%s)"
        ).format(sql.Identifier(self._schema))
        arguments = (served.oid, _FORK_NAMES[served.fork.kind], block, served.oid)
        try:
            ((page, number),) = self._connection.execute(query, arguments, binary=True).fetchall()
        except psycopg.errors.DataCorrupted as error:
            batch.refused[key] = f"the server could not read it: {error.diag.message_primary}"
        except psycopg.errors.LockNotAvailable:
            batch.skipped[key] = Skip.LOCKED
        except (
            psycopg.errors.UndefinedTable,
            psycopg.errors.UndefinedFile,
            psycopg.errors.InvalidParameterValue,  # the file was truncated
            psycopg.errors.InvalidTextRepresentation,  # dropped: regclass returns the oid
            psycopg.errors.InvalidName,
        ):
            batch.skipped[key] = Skip.GONE
        else:
            if number == served.fork.number:
                batch.pages[key] = bytes(page)
            else:
                batch.skipped[key] = Skip.GONE

    def _lsn(self) -> int:
        function = "pg_last_wal_replay_lsn" if self.is_standby else "pg_current_wal_insert_lsn"
        ((lsn,),) = self._rows(f"SELECT {function}()::text")
        if lsn is None:
            raise PageserverError("the standby has not replayed anything yet")
        return int(Lsn.parse(lsn))

    def _standby_end_lsn(self) -> int:
        """A position after the record that may have been in replay."""
        return wait_next_position(self._lsn)

    def _rows(self, query: str, arguments: Any = None) -> list[tuple[Any, ...]]:
        return self._connection.execute(query, arguments).fetchall()


def wait_next_position(ask: Callable[[], int]) -> int:
    """The first position greater than the first answer, or that one after REPLAY_SECONDS."""
    first = ask()
    deadline = time.monotonic() + REPLAY_SECONDS
    while time.monotonic() < deadline:
        time.sleep(REPLAY_POLL_SECONDS)
        lsn = ask()
        if lsn > first:
            return lsn
    return first


@contextmanager
def _server_errors() -> Iterator[None]:
    """Raises ServerUnreachable for errors of the server and of the connection."""
    try:
        yield
    except psycopg.Error as error:
        words = " ".join(str(error).split())
        raise ServerUnreachable(f"could not query the server: {words}") from error
