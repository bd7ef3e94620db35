"""A workload determined by a seed: all kinds of statements that change files, in any order, some in
transactions left open.

`steps` lists its statements, for the message of a failure. A statement may fail, for example on a
table of an aborted transaction. A server that ends is an error.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import psycopg

from quorum_wal.pg_fixtures.postgres import Postgres

INDEX_KINDS = {
    "btree": "(k)", "hash": "(t)", "gin": "(a)", "gist": "(p)", "brin": "(k)", "spgist": "(t)",
}  # fmt: skip


class RandomWorkload:
    """A workload on one server. `new_folder` creates a folder for a tablespace."""

    def __init__(self, server: Postgres, seed: int, new_folder: Callable[[str], Path]) -> None:
        self._server = server
        self._random = random.Random(seed)
        self._new_folder = new_folder
        self._tables: list[str] = []
        self._databases: list[str] = []
        self._spaces: list[str] = []
        self._prepared: list[str] = []
        self._numbers = iter(range(1, 1_000_000))
        self._open: psycopg.Connection | None = None
        self.steps: list[str] = []
        self._kinds: list[tuple[int, Callable[[], None]]] = [
            (6, self._create_table), (12, self._insert), (8, self._update), (6, self._delete),
            (4, self._create_index), (6, self._vacuum), (3, self._truncate), (2, self._drop_table),
            (3, self._rewrite), (3, self._toast), (2, self._unlogged), (2, self._sequence),
            (2, self._large_object), (2, self._matview), (3, self._lock_rows), (3, self._prepare),
            (3, self._end_prepared), (2, self._database), (1, self._drop_database),
            (2, self._tablespace), (2, self._move), (2, self._catalogs), (2, self._partitions),
            (3, self._leave_open), (3, self._end_open), (1, self._abort), (1, self._crash),
        ]  # fmt: skip

    def run(self, steps: int) -> None:
        """Runs this number of steps."""
        kinds = [kind for weight, kind in self._kinds for _ in range(weight)]
        for _ in range(steps):
            self._random.choice(kinds)()

    def close(self) -> None:
        """Rolls back open transactions."""
        if self._open is not None:
            self._open.close()
            self._open = None

    def move_to(self, server: Postgres) -> None:
        """Continues on a promoted standby."""
        self.close()
        self.steps.append("-- promotion")
        self._server = server

    def settings(self) -> dict[str, str | bool]:
        """Settings for the running server, which knows its compression methods."""
        ((known,),) = self._server.execute(
            "SELECT coalesce(enumvals, ARRAY['off', 'on']) FROM pg_settings"
            " WHERE name = 'wal_compression'"
        )
        return {
            "wal_compression": self._random.choice(known),
            "wal_log_hints": self._random.random() < 0.3,
            "full_page_writes": self._random.random() < 0.9,
        }

    def init_options(self) -> list[str]:
        """Options of initdb."""
        if self._random.random() < 0.5:
            return ["--data-checksums"]
        return ["--no-data-checksums"] if self._server.binaries.major >= 18 else []

    # ---- running statements

    def _do(self, *statements: str, database: str = "postgres") -> bool:
        """Runs each statement in its own transaction. Returns False if one failed."""
        self.steps += statements
        try:
            with psycopg.connect(self._server.dsn(dbname=database), autocommit=True) as connection:
                connection.execute("SET lock_timeout = '300ms'")
                for statement in statements:
                    connection.execute(statement)
        except psycopg.Error as error:
            self.steps[-1] += f"  -- {error.diag.message_primary or error}"
            return False
        return True

    def _table(self) -> str:
        if not self._tables:
            self._create_table()
        return self._random.choice(self._tables) if self._tables else "pg_class_is_no_table"

    def _rows(self) -> int:
        return self._random.choice((1, 20, 300, 3000))

    # ---- statements

    def _create_table(self) -> None:
        name = f"t{next(self._numbers)}"
        key = self._random.choice(("", " PRIMARY KEY"))
        if self._do(
            f"CREATE TABLE {name} (k serial{key}, v int, t text, a int[], p point)",
            self._insert_into(name),
        ):
            self._tables.append(name)

    def _insert_into(self, name: str) -> str:
        return (
            f"INSERT INTO {name} (v, t, a, p) SELECT g, md5(g::text), ARRAY[g % 7, g % 11],"
            f" point(g % 100, g % 91) FROM generate_series(1, {self._rows()}) g"
        )

    def _insert(self) -> None:
        self._do(self._insert_into(self._table()))

    def _update(self) -> None:
        column = self._random.choice(("v = v + 1", "t = t || 'x'", "a = a || v % 5"))
        self._do(f"UPDATE {self._table()} SET {column} WHERE v % {self._random.randint(1, 9)} = 0")

    def _delete(self) -> None:
        low = self._random.randint(0, 3000)
        self._do(f"DELETE FROM {self._table()} WHERE v > {low}")

    def _create_index(self) -> None:
        kind, columns = self._random.choice(list(INDEX_KINDS.items()))
        how = self._random.choice(("", "CONCURRENTLY "))
        self._do(f"CREATE INDEX {how}ON {self._table()} USING {kind} {columns}")

    def _vacuum(self) -> None:
        options = self._random.choice(("", "(FREEZE) ", "(FULL) ", "(ANALYZE) "))
        self._do(f"VACUUM {options}{self._table()}")

    def _truncate(self) -> None:
        self._do(f"TRUNCATE {self._table()}", self._insert_into(self._table()))

    def _drop_table(self) -> None:
        table = self._table()
        if self._do(f"DROP TABLE {table}"):
            self._tables.remove(table)

    def _rewrite(self) -> None:
        table = self._table()
        self._do(
            self._random.choice(
                (
                    f"ALTER TABLE {table} ALTER v TYPE bigint",
                    f"ALTER TABLE {table} ADD c{next(self._numbers)} float DEFAULT random()",
                    f"REINDEX TABLE {table}",
                    f"CLUSTER {table} USING {table}_pkey",
                )
            )
        )

    def _toast(self) -> None:
        self._do(
            f"INSERT INTO {self._table()} (v, t) SELECT g, (SELECT string_agg(md5(random()::text),"
            f" '') FROM generate_series(1, {self._random.choice((100, 900))}))"
            f" FROM generate_series(1, {self._random.choice((1, 15))}) g"
        )

    def _unlogged(self) -> None:
        name = f"u{next(self._numbers)}"
        self._do(
            f"CREATE UNLOGGED TABLE {name} AS SELECT g k, md5(g::text) t"
            f" FROM generate_series(1, {self._rows()}) g",
            f"CREATE INDEX ON {name} (k)",
            *([f"ALTER TABLE {name} SET LOGGED"] if self._random.random() < 0.5 else []),
        )

    def _sequence(self) -> None:
        name = f"s{next(self._numbers)}"
        self._do(f"CREATE SEQUENCE {name}", f"SELECT nextval('{name}') FROM generate_series(1, 99)")

    def _large_object(self) -> None:
        self._do(f"SELECT lo_from_bytea(0, decode(repeat('ab', {self._rows()}), 'hex'))")

    def _matview(self) -> None:
        name = f"m{next(self._numbers)}"
        self._do(
            f"CREATE MATERIALIZED VIEW {name} AS SELECT * FROM {self._table()}",
            f"REFRESH MATERIALIZED VIEW {name}",
        )

    def _lock_rows(self) -> None:
        self._do(
            f"SELECT 1 FROM {self._table()} WHERE v < 40 FOR"
            f" {self._random.choice(('UPDATE', 'SHARE', 'KEY SHARE'))}"
        )

    def _prepare(self) -> None:
        gid = f"g{next(self._numbers)}"
        table = self._table()
        if self._do(
            f"BEGIN; {self._insert_into(table)}; CREATE TABLE p{gid} (a int);"
            f" PREPARE TRANSACTION '{gid}'"
        ):
            self._prepared.append(gid)

    def _end_prepared(self) -> None:
        if self._prepared:
            gid = self._prepared.pop(self._random.randrange(len(self._prepared)))
            self._do(f"{self._random.choice(('COMMIT', 'ROLLBACK'))} PREPARED '{gid}'")

    def _database(self) -> None:
        name = f"d{next(self._numbers)}"
        strategies = ("",)
        if self._server.binaries.major >= 15:
            strategies = (" STRATEGY file_copy", " STRATEGY wal_log")
        sources = ["template1", *self._databases]
        if self._do(
            f"CREATE DATABASE {name} TEMPLATE {self._random.choice(sources)}"
            f"{self._random.choice(strategies)}"
        ):
            self._databases.append(name)
            self._do(
                "CREATE TABLE here AS SELECT g FROM generate_series(1, 500) g",
                "CREATE INDEX ON here (g)",
                database=name,
            )

    def _drop_database(self) -> None:
        if self._databases:
            name = self._random.choice(self._databases)
            if self._do(f"DROP DATABASE {name}"):
                self._databases.remove(name)

    def _tablespace(self) -> None:
        name = f"ts{next(self._numbers)}"
        if self._do(f"CREATE TABLESPACE {name} LOCATION '{self._new_folder(name)}'"):
            self._spaces.append(name)
            self._do(f"CREATE TABLE in_{name} TABLESPACE {name} AS SELECT generate_series(1, 400)")

    def _move(self) -> None:
        space = self._random.choice([*self._spaces, "pg_default"])
        if self._databases and self._random.random() < 0.5:
            self._do(
                f"ALTER DATABASE {self._random.choice(self._databases)} SET TABLESPACE {space}"
            )
        else:
            self._do(f"ALTER TABLE {self._table()} SET TABLESPACE {space}")

    def _catalogs(self) -> None:
        table = self._random.choice(("pg_class", "pg_attribute", "pg_type", "pg_proc"))
        self._do(f"VACUUM {self._random.choice(('FULL ', ''))}{table}")

    def _partitions(self) -> None:
        name = f"r{next(self._numbers)}"
        self._do(
            f"CREATE TABLE {name} (k int, t text) PARTITION BY RANGE (k)",
            f"CREATE TABLE {name}_1 PARTITION OF {name} FOR VALUES FROM (0) TO (200)",
            f"CREATE TABLE {name}_2 PARTITION OF {name} FOR VALUES FROM (200) TO (9999)",
            f"INSERT INTO {name} SELECT g, md5(g::text) FROM generate_series(0, 500) g",
            f"ALTER TABLE {name} DETACH PARTITION {name}_1",
        )

    def _leave_open(self) -> None:
        """Leaves a transaction with DDL open, possibly across a cut."""
        if self._open is not None:
            return
        table = self._table()
        statements = self._random.choice(
            (
                [f"CREATE TABLE o{next(self._numbers)} AS SELECT generate_series(1, 900) g"],
                [f"TRUNCATE {table}", self._insert_into(table)],
                [f"ALTER TABLE {table} ALTER v TYPE bigint", self._insert_into(table)],
                [f"DROP TABLE {table}"],
                ["SAVEPOINT one", self._insert_into(table), "ROLLBACK TO one"],
            )
        )
        self.steps += ["BEGIN (left open)", *statements]
        self._open = psycopg.connect(self._server.dsn())
        try:
            self._open.execute("SET lock_timeout = '300ms'")
            for statement in statements:
                self._open.execute(statement)
        except psycopg.Error as error:
            self.steps[-1] += f"  -- {error}"
            self._open.close()
            self._open = None

    def _end_open(self) -> None:
        if self._open is not None:
            end = self._random.choice(("COMMIT", "ROLLBACK"))
            self.steps.append(f"{end} (of what was left open)")
            self._open.execute(end)
            self._open.close()
            self._open = None

    def _abort(self) -> None:
        self._do(f"BEGIN; {self._insert_into(self._table())}; ROLLBACK")

    def _crash(self) -> None:
        self.steps.append("-- kill -9 of the server")
        self.close()
        self._server.crash()
        self._server.start()
