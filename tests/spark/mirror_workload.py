"""A random workload for mirrors: all types, all ways to end a transaction, DDL between changes.

Some transactions stay prepared over later ones; `finish` ends them. A statement may fail, because
the server refuses it or a prepared transaction has its lock; then its transaction is rolled back.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import psycopg

from quorum_wal.pg_fixtures.postgres import Postgres

KEYS = 40
#: column of shop.kinds -> its type, and a value made of a number
KINDS = {
    "small": ("smallint", "{n}"),
    "single": ("real", "{n} * 0.5"),
    "exact": ("numeric", "{n}.250"),
    "ident": ("oid", "{n}"),
    "letter": ('"char"', "'c'"),
    "padded": ("char(5)", "'p{n}'"),
    "short": ("varchar(10)", "'v{n}'"),
    "span": ("interval", "'{n} days 01:02:03.5'"),
    "clock": ("time", "time '00:00' + interval '{n} minutes'"),
    "zoned": ("timetz", "'12:00:00+05:30'"),
    "uid": ("uuid", "md5('{n}')::uuid"),
    "address": ("inet", "'10.1.2.3/24'::inet + {n}"),
    "net": ("cidr", "'10.0.0.0/8'"),
    "mac": ("macaddr", "'08:00:2b:01:02:03'"),
    "bits": ("bit(5)", "'10101'"),
    "more_bits": ("bit varying", "'1101'"),
    "price": ("money", "{n}.5::numeric::money"),
    "lsn": ("pg_lsn", "'16/B374D848'::pg_lsn + {n}"),
    "extent": ("int4range", "int4range({n}, {n} + 5)"),
    "times": ("tstzrange", "tstzrange('2026-01-01', '2026-01-02')"),
    "extents": ("int4multirange", "int4multirange(int4range({n}, {n} + 2), int4range(500, 501))"),
    "words": ("tsvector", "to_tsvector('simple', 'a fat cat {n}')"),
    "query": ("tsquery", "'fat & cat'"),
    "place": ("point", "point({n}, 2)"),
    "area": ("box", "box(point({n}, 2), point(0, 0))"),
    "written": ("json", "'{{\"a\" : [{n}, null]}}'"),
    "path": ("jsonpath", "'$.a[*] ? (@ > {n})'"),
    "pair": ("shop.pair", "ROW({n}, 'a \"b\"')"),
    "pairs": ("shop.pair[]", "ARRAY[ROW({n}, NULL)]::shop.pair[]"),
    "states": ("shop.state[]", "ARRAY['new', NULL]::shop.state[]"),
    "part": ("shop.percent", "{n} % 100"),
    "numbers": ("numeric[]", "ARRAY[{n}.5, NULL]"),
    "grid": ("int[]", "ARRAY[[1, {n}], [3, 4]]"),
}
TYPES = (
    "CREATE TYPE shop.pair AS (n int, t text)",
    "CREATE DOMAIN shop.percent AS numeric(5, 2) CHECK (value <= 100)",
    "CREATE TABLE shop.kinds (id int PRIMARY KEY, "
    + ", ".join(f"{name} {kind}" for name, (kind, _) in KINDS.items())
    + ")",
)
#: the prepared transactions that have locked a table with TRUNCATE or ALTER TABLE
OF_LOCKING = """
SELECT DISTINCT gid FROM pg_prepared_xacts JOIN pg_locks AS own ON transactionid = transaction
JOIN pg_locks AS other USING (virtualtransaction)
WHERE other.pid IS NULL AND other.locktype = 'relation' AND other.mode = 'AccessExclusiveLock'
"""

#: tables that the workload alters
ALTERED = ("shop.orders", "shop.items", "shop.log", "shop.parts", "shop.kinds")
#: Its rows are only inserted: a mirror refuses updates without a key.
KEYLESS = "shop.log"
#: What the server may answer; any other error is one of the test.
REFUSED = (
    psycopg.errors.LockNotAvailable,
    psycopg.errors.UniqueViolation,
    psycopg.errors.UndefinedColumn,
    psycopg.errors.DuplicateColumn,
    psycopg.errors.UndefinedTable,
    psycopg.errors.DuplicateTable,
    psycopg.errors.UndefinedObject,
    psycopg.errors.ObjectInUse,
)


class Workload:
    """Random transactions on one server. `clients_dsn` is used instead of the server's own.
    Without `alters`, no table changes its definition, and no transaction stays prepared."""

    def __init__(
        self,
        postgres: Postgres,
        rng: Random,
        clients_dsn: str | None = None,
        *,
        alters: bool = True,
    ) -> None:
        self._dsn = clients_dsn or postgres.dsn()
        self._alters = alters
        self._rng = rng
        self._number = rng.randrange(1, 1 << 20) << 8
        self._connection: psycopg.Connection[Any] | None = None

    def run(self, transactions: int) -> None:
        with self._connected():
            for _ in range(transactions):
                self._do(self._rng.choice((self._transact,) * 12 + (self._maintain,)))
                if self._rng.random() < 0.4:
                    self._end_prepared()

    def free_tables(self) -> None:
        """Ends the prepared transactions that lock a table even for readers."""
        with self._connected():
            for (gid,) in self._execute(OF_LOCKING).fetchall():
                self._execute(f"ROLLBACK PREPARED '{gid}'")

    def finish(self) -> None:
        """Ends all prepared transactions."""
        with self._connected():
            while self._end_prepared():
                pass

    def _connected(self) -> psycopg.Connection[Any]:
        self._connection = psycopg.connect(self._dsn, autocommit=True)
        self._execute("SET lock_timeout = '60ms'; SET client_min_messages = 'error'")
        return self._connection

    def _execute(self, statement: str) -> psycopg.Cursor[Any]:
        assert self._connection is not None
        return self._connection.execute(statement.encode())

    def _do(self, step: Callable[[], None]) -> None:
        try:
            step()
        except REFUSED:
            self._execute("ROLLBACK")

    # ---- transactions

    def _transact(self) -> None:
        rng = self._rng
        self._execute("BEGIN")
        is_altering = self._alters and rng.random() < 0.08
        for _ in range(rng.randint(1, 4)):
            self._change()
            if is_altering:
                self._execute(self._alteration())
            if rng.random() < 0.15:
                self._subtransaction(depth=rng.randint(1, 3))
        chance = rng.random()
        if chance < 0.12:
            self._execute("ROLLBACK")
        elif chance < 0.25 and self._alters and not is_altering:
            self._execute(f"PREPARE TRANSACTION 'w{self._next()}'")
        else:
            self._execute("COMMIT")

    def _subtransaction(self, depth: int) -> None:
        self._execute(f"SAVEPOINT s{depth}")
        self._change()
        if depth > 1:
            self._subtransaction(depth - 1)
        end = self._rng.choice(("ROLLBACK TO", "ROLLBACK TO", "RELEASE"))
        self._execute(f"{end} s{depth}")
        self._change()

    def _end_prepared(self) -> bool:
        """Ends one. Returns whether there was one."""
        names = self._execute("SELECT gid FROM pg_prepared_xacts ORDER BY gid").fetchall()
        if not names:
            return False
        end = self._rng.choice(("COMMIT", "COMMIT", "ROLLBACK"))
        self._execute(f"{end} PREPARED '{self._rng.choice(names)[0]}'")
        return True

    def _change(self) -> None:
        if self._rng.random() < 0.1:
            self._copy()
        else:
            self._execute(self._statement())

    def _copy(self) -> None:
        """COPY writes several rows with one record."""
        rng, number = self._rng, self._next()
        table, line = rng.choice(
            (("shop.log (at, line)", "2026-11-26 11:00:00\tc {}\n"),
             ("shop.items (order_id, name, amount)", f"{number}\tcopied {{}}\t0.5\n"))
        )  # fmt: skip
        freeze = ""
        if rng.random() < 0.2:
            self._execute(f"TRUNCATE {table.split()[0]}")
            freeze = " (FREEZE)"
        assert self._connection is not None
        statement = f"COPY {table} FROM STDIN{freeze}".encode()
        with self._connection.cursor() as cursor, cursor.copy(statement) as copied:
            copied.write("".join(line.format(n) for n in range(rng.randint(1, 30))))

    def _maintain(self) -> None:
        """New files with the same rows."""
        table = self._rng.choice(("orders", "items", "log", "parts_n", "kinds"))
        statements = [f"VACUUM FULL shop.{table}", f"VACUUM (FREEZE) shop.{table}", "CHECKPOINT"]
        if table != "log":
            statements.append(f"CLUSTER shop.{table} USING {table}_pkey")
        self._execute(self._rng.choice(statements))

    # ---- statements

    def _next(self) -> int:
        self._number += 1
        return self._number

    def _statement(self) -> str:
        rng = self._rng
        key, other = rng.randrange(KEYS), rng.randrange(KEYS)
        big = f"repeat('{rng.randrange(1000)}', {rng.choice((5, 900))})"
        upsert = (
            f"INSERT INTO shop.orders (id, state, total, note, big, raw, tags, doc, ratio, flag)"
            f" VALUES ({key}, '{rng.choice(('new', 'paid', 'sent'))}', {rng.randrange(10**6)}.5,"
            f" 'a \"note\" {key}', {big}, '\\x00ff{key:02}', ARRAY['x', NULL, '{key}'],"
            f" '{{\"a\": [1, {key}.50]}}', {rng.random()}, {rng.choice(('true', 'NULL'))})"
            f" ON CONFLICT (id) DO UPDATE SET total = excluded.total, note = excluded.note"
        )
        choices = (
            upsert,
            upsert,
            f"UPDATE shop.orders SET note = note || '!' WHERE id % 7 = {key % 7}",
            f"UPDATE shop.orders SET id = {other} WHERE id = {key}"
            f" AND NOT EXISTS (SELECT FROM shop.orders WHERE id = {other})",
            f"UPDATE shop.orders SET big = {big}, ratio = 'NaN' WHERE id = {key}",
            f"DELETE FROM shop.orders WHERE id = {key}",
            f"INSERT INTO shop.items VALUES ({key}, 'it''s {other}', {rng.random()})"
            " ON CONFLICT DO NOTHING",
            f"UPDATE shop.items SET name = name || 'x', amount = amount + 1 WHERE order_id = {key}",
            f"DELETE FROM shop.items WHERE order_id = {key}",
            f"INSERT INTO shop.log VALUES ('2026-11-26 10:00:00.{key}', 'a {key}'), (NULL, NULL)",
            f"INSERT INTO shop.parts VALUES ({key}, '{rng.choice('ns')}', {other})"
            " ON CONFLICT (id, region) DO UPDATE SET n = excluded.n",
            f"UPDATE shop.parts SET region = 's' WHERE id = {key} AND region = 'n' AND NOT EXISTS"
            f" (SELECT FROM shop.parts WHERE id = {key} AND region = 's')",
            f"UPDATE shop.parts SET region = 'n', id = id + 1000 WHERE id = {key} AND region = 's'",
            f"INSERT INTO public.other VALUES ({key}) ON CONFLICT DO NOTHING",
            f"TRUNCATE {rng.choice(ALTERED)}" if rng.random() < 0.2 else "SELECT 1",
            self._kinds_row(key),
            self._kinds_row(key),
            f"UPDATE shop.kinds SET {self._kinds_values(3)} WHERE id % 5 = {key % 5}",
            f"DELETE FROM shop.kinds WHERE id = {key}",
        )
        return rng.choice(choices)

    def _kinds_values(self, count: int) -> str:
        rng = self._rng
        names = rng.sample(sorted(KINDS), count)
        return ", ".join(f"{name} = {self._kinds_value(name)}" for name in names)

    def _kinds_value(self, name: str) -> str:
        rng = self._rng
        return "NULL" if rng.random() < 0.2 else KINDS[name][1].format(n=rng.randrange(1, 100))

    def _kinds_row(self, key: int) -> str:
        values = ", ".join(self._kinds_value(name) for name in KINDS)
        return (
            f"INSERT INTO shop.kinds (id, {', '.join(KINDS)}) VALUES ({key}, {values})"
            f" ON CONFLICT (id) DO UPDATE SET pair = excluded.pair, small = excluded.small"
        )

    def _alteration(self) -> str:
        rng = self._rng
        table, number = rng.choice(ALTERED), self._next()
        column, extra = f"x{rng.randrange(4)}", f"shop.extra{rng.randrange(3)}"
        return rng.choice(
            (
                f"ALTER TABLE {table} ADD {column} int DEFAULT {number}",
                f"ALTER TABLE {table} ADD {column} text",
                f"ALTER TABLE {table} DROP COLUMN IF EXISTS {column}",
                f"ALTER TABLE {table} RENAME {column} TO x{rng.randrange(4)}",
                f"UPDATE {table if table != KEYLESS else ALTERED[0]} SET {column} = {number}",
                "ALTER TABLE shop.items ALTER amount TYPE numeric USING amount + 1",
                "ALTER TABLE shop.parts DETACH PARTITION shop.parts_n;"
                " ALTER TABLE shop.parts ATTACH PARTITION shop.parts_n FOR VALUES IN ('n')",
                f"ALTER TYPE shop.state ADD VALUE 'l{number}'",
                f"ALTER TABLE shop.orders REPLICA IDENTITY {rng.choice(('FULL', 'DEFAULT'))}",
                f"ALTER TABLE shop.log SET {rng.choice(('UNLOGGED', 'LOGGED'))}",
                f"CREATE TABLE {extra} (id int PRIMARY KEY, t text);"
                f" INSERT INTO {extra} SELECT n, 't' || n FROM generate_series(1, 20) n",
                f"ALTER TABLE {extra} RENAME TO extra{rng.randrange(3)}",
                f"UPDATE {extra} SET t = t || '{number}', id = id + 100 WHERE id % 3 = 0",
                f"DROP TABLE {extra}",
                f"TRUNCATE {rng.choice(ALTERED)}, shop.items",
            )
        )
