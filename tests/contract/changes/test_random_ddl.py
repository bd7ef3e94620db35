"""Random DDL between random changes of rows, with one snapshot of the catalog at the beginning."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from changed_logs import MIB, SETTINGS, ChangedLog
from decoding import read
from ledger import Ledger, assert_rows

from quorum_wal.pg_fixtures.postgres import Postgres
from quorum_wal.spark.changes.catalog_snapshot import take_catalog
from quorum_wal.spark.inputs.folder_input import FolderInput

STEPS = 150
#: type: a value, made of a number
TYPES: dict[str, Callable[[int], str]] = {
    "int": str,
    "bigint": lambda n: str(n << 33),
    "text": lambda n: f"'{'t' * (n % 40)}{n}'",
    "numeric(8, 2)": lambda n: f"{n}.25",
    "boolean": lambda n: "true" if n % 2 else "false",
    "date": lambda n: f"date '2024-01-01' + {n % 1000}",
    "int[]": lambda n: f"'{{{n},NULL}}'",
    "public.mood": lambda n: ("'sad'", "'happy'")[n % 2],
}
#: what a type can become
LATER = {
    "int": "bigint",
    "bigint": "text",
    "boolean": "text",
    "date": "text",
    "public.mood": "text",
}


@dataclass
class Model:
    """The tables of the server: the types of their columns after `id`, by name."""

    tables: dict[str, dict[str, str]] = field(default_factory=dict)


class Client:
    """Takes random steps. Transactions end at random, too."""

    def __init__(self, ledger: Ledger, rng: random.Random) -> None:
        self._ledger = ledger
        self._rng = rng
        self._model = Model()
        self._before: Model | None = None
        self._number = 0

    def run(self, steps: int) -> None:
        for _ in range(3):
            self._create()
        for _ in range(steps):
            self._rng.choice(self._choices())()
        if self._before is not None:
            self._commit()

    def _choices(self) -> list[Callable[[], None]]:
        rows = 3 * [self._insert, self._insert, self._update, self._delete]
        ddl = [
            self._create, self._drop, self._add, self._add, self._drop_column, self._rename,
            self._rename_column, self._retype, self._truncate,
        ]  # fmt: skip
        if self._before is None:
            return [*rows, *ddl, self._begin, self._begin, self._rewrite_files]
        return [*rows, *ddl, self._commit, self._commit, self._rollback]

    def _name(self) -> str:
        self._number += 1
        return f"x{self._number}"

    def _table(self) -> str:
        if not self._model.tables:
            self._create()
        return self._rng.choice(sorted(self._model.tables))

    def _value(self, type_name: str) -> str:
        number = self._rng.randrange(1, 1000)
        return "NULL" if self._rng.random() < 0.2 else TYPES[type_name](number)

    # ---- steps

    def _create(self) -> None:
        table = f"public.{self._name()}"
        names = [self._name() for _ in range(self._rng.randrange(3))]
        columns = {name: self._rng.choice(sorted(TYPES)) for name in names}
        definitions = "".join(f", {name} {kind}" for name, kind in columns.items())
        self._ledger.do(f"CREATE TABLE {table} (id int PRIMARY KEY{definitions})")
        self._model.tables[table] = columns

    def _drop(self) -> None:
        if len(self._model.tables) > 4:
            table = self._table()
            self._ledger.do(f"DROP TABLE {table}")
            del self._model.tables[table]

    def _add(self) -> None:
        table, name, kind = self._table(), self._name(), self._rng.choice(sorted(TYPES))
        default = f" DEFAULT {self._value(kind)}" if self._rng.random() < 0.6 else ""
        self._ledger.do(f"ALTER TABLE {table} ADD {name} {kind}{default}")
        self._model.tables[table][name] = kind

    def _column(self) -> tuple[str, str] | None:
        table = self._table()
        columns = sorted(self._model.tables[table])
        return (table, self._rng.choice(columns)) if columns else None

    def _drop_column(self) -> None:
        if found := self._column():
            table, name = found
            self._ledger.do(f"ALTER TABLE {table} DROP {name}")
            del self._model.tables[table][name]

    def _rename_column(self) -> None:
        if found := self._column():
            table, old = found
            new, columns = self._name(), self._model.tables[table]
            self._ledger.do(f"ALTER TABLE {table} RENAME {old} TO {new}")
            self._model.tables[table] = {
                new if name == old else name: kind for name, kind in columns.items()
            }

    def _retype(self) -> None:
        found = self._column()
        if found and (kind := LATER.get(self._model.tables[found[0]][found[1]])):
            table, name = found
            self._ledger.do(f"ALTER TABLE {table} ALTER {name} DROP DEFAULT")
            self._ledger.rewrite(f"ALTER TABLE {table} ALTER {name} TYPE {kind}", table)
            self._model.tables[table][name] = kind

    def _rename(self) -> None:
        old, new = self._table(), self._name()
        self._ledger.do(f"ALTER TABLE {old} RENAME TO {new}")
        self._model.tables[f"public.{new}"] = self._model.tables.pop(old)

    def _truncate(self) -> None:
        self._ledger.truncate(self._table())

    def _rewrite_files(self) -> None:
        catalogs = ("pg_catalog.pg_class", "pg_catalog.pg_attribute", "pg_catalog.pg_type")
        table = self._rng.choice([self._table(), *catalogs])
        self._ledger.do(self._rng.choice([f"VACUUM FULL {table}", f"VACUUM {table}", "CHECKPOINT"]))

    def _insert(self) -> None:
        table = self._table()
        self._number += 1
        values = "".join(f", {self._value(kind)}" for kind in self._model.tables[table].values())
        self._ledger.insert(table, f"VALUES ({self._number}{values})")

    def _update(self) -> None:
        if found := self._column():
            table, name = found
            value = self._value(self._model.tables[table][name])
            self._ledger.update(table, f"{name} = {value} WHERE id % 3 = {self._rng.randrange(3)}")

    def _delete(self) -> None:
        self._ledger.delete(self._table(), f"id % 7 = {self._rng.randrange(7)}")

    def _begin(self) -> None:
        self._before = copy.deepcopy(self._model)
        self._ledger.begin()

    def _commit(self) -> None:
        self._ledger.commit()
        self._before = None

    def _rollback(self) -> None:
        self._ledger.rollback()
        assert self._before is not None
        self._model, self._before = self._before, None


@pytest.fixture
def rng() -> random.Random:
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    return random.Random(seed)


@pytest.mark.parametrize(
    ("pg_binaries", "wal_level"),
    [(15, "logical"), (16, "replica"), (18, "replica")],
    indirect=["pg_binaries"],
)
def test_rows_are_those_of_the_ledger(
    postgres_factory: Callable[..., Postgres], wal_level: str, rng: random.Random
) -> None:
    postgres = postgres_factory(settings={**SETTINGS, "wal_level": wal_level}, wal_seg_size=MIB)
    postgres.execute("CREATE TYPE public.mood AS ENUM ('sad', 'happy')")
    begin_lsn = int(postgres.flush_lsn())
    catalog = take_catalog(postgres.dsn())
    ledger = Ledger(postgres)
    Client(ledger, rng).run(STEPS)
    ledger.connection.close()
    postgres.stop()
    wal_input = FolderInput(str(postgres.pg_wal))
    log = ChangedLog(wal_input, begin_lsn, wal_input.newest_lsn(), (catalog, catalog), [])
    assert_rows(read(log, begin_lsn, log.end_lsn, catalog), ledger.entries)
