"""Damaged WAL: a query returns the true rows or an error. With dead_letter or pass, a row that
could not be decoded accounts for each row that is not true.

Each kind of damage is done at a first, a middle and a last place of it, for wal_level logical and
replica. With damage in the middle the WAL is read in many ranges with little memory, so that
changes go through pieces of a temporary file. `damage_kinds.py` says what cannot be noticed.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest
from changed_logs import MIB, SETTINGS
from damage_kinds import (
    BELOW_THE_CHECKSUM,
    COMMIT,
    DELETE,
    IN_IMAGES,
    INSERT,
    MESSAGE,
    MULTI_INSERT,
    RUNNING,
    UPDATES,
    Damage,
    Files,
)
from damage_law import Place, Row, assert_accounted, is_undecoded, place_of
from wal_files import PAGE, Record, WalFiles

from quorum_wal.pg_fixtures.postgres import Postgres
from quorum_wal.pgwal.lsn import format_lsn
from quorum_wal.spark.changes.catalog import Catalog
from quorum_wal.spark.changes.catalog_snapshot import take_catalog
from quorum_wal.spark.changes.change_reader import ChangeOptions, read_changes
from quorum_wal.spark.changes.change_spill import MEMORY_BYTES
from quorum_wal.spark.changes.earlier_changes import EarlierChanges
from quorum_wal.spark.changes.undecoded_rows import OnUnknown, UndecodedPolicy
from quorum_wal.spark.errors import SparkWalError, UndecodedChange
from quorum_wal.spark.inputs.folder_input import FolderInput
from quorum_wal.spark.inputs.wal_reader import OnDamage, WalRange

PARTS = 3
#: bytes; a transaction of some changes needs more
LITTLE_MEMORY = 6000
EMIT = "SELECT pg_logical_emit_message(%s, 'events', %s::text)"
PASS = UndecodedPolicy(OnUnknown.PASS)


@dataclass(frozen=True, slots=True)
class World:
    """Three parts of WAL with every kind of record, each with a segment of its own. A transaction
    is open from the first part to the last one."""

    wal: WalFiles
    catalog: Catalog
    part_lsns: list[int]
    end_lsn: int
    files: Files
    truth: dict[Place, Row]

    @property
    def begin_lsn(self) -> int:
        return self.part_lsns[0]

    def read(
        self, cuts: list[int], on_damage: OnDamage = OnDamage.FAIL, **options: Any
    ) -> list[Row]:
        """What the ranges between the cuts give, as the tasks of one query."""
        chosen = {"catalog": self.catalog, "undecoded": PASS, "messages": True, **options}
        changes = ChangeOptions(**chosen)
        wal_input = FolderInput(str(self.wal.folder))
        parts = [WalRange(*cut, self.end_lsn) for cut in pairwise(cuts)]
        known = EarlierChanges(wal_input, changes, on_damage).of_tasks(parts)
        return [
            row
            for part, earlier in zip(parts, known, strict=True)
            for batch in read_changes(wal_input, part, earlier.options(changes), on_damage)
            for row in batch.to_pylist()
        ]

    def whole(self) -> list[int]:
        return [self.begin_lsn, self.end_lsn]

    def split(self) -> list[int]:
        return [*self.part_lsns, self.end_lsn]

    def check(
        self, where: str, on_damage: OnDamage = OnDamage.FAIL, *, is_split: bool = False
    ) -> bool:
        """The law, in one range, or in many and with little memory. Returns whether rows were
        read."""
        try:
            if is_split:
                found = self.read(self.split(), on_damage, memory_bytes=LITTLE_MEMORY)
            else:
                found = self.read(self.whole(), on_damage)
        except SparkWalError:
            return False
        assert_accounted(found, self.truth, where)
        assert_strict(found, self.truth, where)
        return True


def assert_strict(found: list[Row], truth: dict[Place, Row], where: str) -> None:
    """on_unknown=fail gives the truth, or an error at the first row that is not decoded."""
    if not any(map(is_undecoded, found)):
        assert {place_of(row): row for row in found} == truth, where
        assert len(found) == len(truth), where


@pytest.fixture
def rng() -> random.Random:
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    return random.Random(seed)


@pytest.fixture(scope="module", params=["logical", "replica"])
def made_world(
    request: pytest.FixtureRequest, initdb_template: Any, pg_binaries: Any,
    tmp_path_factory: pytest.TempPathFactory,
) -> World:  # fmt: skip
    folder = tmp_path_factory.mktemp("damage")
    folder.chmod(0o755)
    settings = {
        **SETTINGS, "wal_level": request.param, "checkpoint_timeout": "1h",
        "wal_compression": "off",
    }  # fmt: skip
    postgres = Postgres(
        pg_binaries, folder / "data", settings=settings, wal_seg_size=MIB,
        template=initdb_template(pg_binaries, MIB),
    )  # fmt: skip
    with postgres:
        return write_world(postgres)


def write_world(postgres: Postgres) -> World:
    for statement in (
        "CREATE TYPE mood AS ENUM ('sad', 'happy')",
        "CREATE TABLE t (id int PRIMARY KEY, n int, s text NOT NULL, m mood, b text)",
        "ALTER TABLE t ALTER b SET STORAGE EXTERNAL",
        "CREATE TABLE u (id int PRIMARY KEY)",
        "CREATE TABLE v (id int PRIMARY KEY)",
        "CREATE TABLE w (id int PRIMARY KEY)",
    ):
        postgres.execute(statement)
    catalog, part_lsns = take_catalog(postgres.dsn()), []
    with postgres.connect(autocommit=False) as slow:
        for number in range(PARTS):
            part_lsns.append(write_part(postgres, slow, number, catalog.wal_level))
            catalog = catalog.merged(take_catalog(postgres.dsn()))
        slow.commit()
    postgres.execute("INSERT INTO t VALUES (999, 0, 'e', 'sad')")
    postgres.stop()
    wal = WalFiles(postgres.pg_wal)
    table = catalog.table_named("public.t")
    end_lsn = wal.wal_input.newest_lsn()
    files = Files(table.relfilenode, table.toast_relfilenode)
    world = World(wal, catalog, part_lsns, end_lsn, files, {})
    world.truth.update({place_of(row): row for row in world.read(world.whole())})
    return world


def write_part(postgres: Postgres, slow: Any, number: int, wal_level: str) -> int:
    """Returns the start of its first segment, which begins with a list of open transactions."""
    postgres.execute("SELECT pg_switch_wal()")
    postgres.execute("CHECKPOINT")
    begin_lsn = int(postgres.flush_lsn()) // MIB * MIB
    slow.execute("INSERT INTO v VALUES (%s)", (number,))
    slow.execute(EMIT, (True, f"of part {number}"))
    base = 100 * number
    with postgres.connect() as connection:
        for id_ in range(base, base + 6):
            connection.execute("INSERT INTO t VALUES (%s, 7, 'abc', 'happy')", (id_,))
        connection.execute("CHECKPOINT")
        for id_ in range(base, base + 3):
            connection.execute("UPDATE t SET n = n + 1 WHERE id = %s", (id_,))
            connection.execute("UPDATE t SET s = s || 'x' WHERE id = %s", (id_,))
        connection.execute("DELETE FROM t WHERE id = %s", (base + 3,))
        connection.execute("DELETE FROM t WHERE id = %s", (base + 4,))
        connection.execute(
            "INSERT INTO t VALUES (%s, 0, 'big', 'sad',"
            " (SELECT string_agg(md5(g::text), '') FROM generate_series(1, 200) g))",
            (base + 6,),
        )
        connection.execute("UPDATE t SET b = reverse(b) WHERE id = %s", (base + 6,))
        with connection.cursor().copy("COPY t (id, n, s) FROM STDIN") as copy:
            for id_ in range(base + 10, base + 40):
                copy.write_row((id_, id_, f"copied {id_}"))
        connection.execute(f"BEGIN; INSERT INTO t VALUES ({base + 50}, 0, 's', 'sad')")
        connection.execute(f"SAVEPOINT a; INSERT INTO u VALUES ({base + 1})")
        connection.execute(EMIT, (True, "of a subtransaction"))
        connection.execute("RELEASE a; COMMIT")
        connection.execute(EMIT, (False, "alone"))
        if wal_level == "logical":  # at replica level it is not in the WAL
            connection.execute("TRUNCATE u, w")
        connection.execute("CHECKPOINT")
    return begin_lsn


@pytest.fixture
def world(made_world: World) -> Iterator[World]:
    """Undamaged again after each test."""
    yield made_world
    made_world.wal.restore()


def places(world: World, kinds: Any, applies: Callable[[Record], bool]) -> list[Record]:
    """A first, a middle and a last record."""
    found = [
        record
        for record in world.wal.records(world.begin_lsn, world.end_lsn)
        if record.kind in kinds and applies(record)
    ]
    return [found[0], found[len(found) // 2], found[-1]] if found else []


def test_the_truth(world: World) -> None:
    """It is what was written, and no row of it is in doubt."""
    rows = list(world.truth.values())
    logical = world.catalog.wal_level == "logical"
    counts = Counter(row["operation"] for row in rows)
    assert counts == {
        "insert": PARTS * (6 + 1 + 30 + 1 + 1 + 1) + 1,
        "update": PARTS * 7,
        "delete": PARTS * 2,
        "message": PARTS * 3,
        **({"truncate": PARTS * 2} if logical else {}),
    }
    assert not any(map(is_undecoded, rows))
    for memory_bytes in (LITTLE_MEMORY, MEMORY_BYTES):
        assert world.read(world.split(), memory_bytes=memory_bytes) == rows
        assert world.read(world.whole(), memory_bytes=memory_bytes) == rows


@pytest.mark.parametrize("damage", [*BELOW_THE_CHECKSUM, *IN_IMAGES], ids=lambda each: each.name)
def test_a_record_that_lies(world: World, damage: Damage) -> None:
    """Its checksum is right, as if the server had written it. The first place is that of one of the
    levels, and the last place that of the other one: the levels differ in which records there are
    and in whether pages are followed, wherever a record is."""
    level = world.catalog.wal_level
    found = places(world, damage.kinds, lambda record: damage.applies(record, world.files))
    if not found:
        assert level in NOT_WRITTEN.get(damage.name, ())
        return
    is_only_level = damage.name in NOT_WRITTEN or (damage in IN_IMAGES and level == "replica")
    for number, record in enumerate(found):
        if number == (0 if level == "logical" else 2) and not is_only_level:
            continue
        damage.change(record)
        record.seal()
        world.wal.put(record)
        where = f"{damage.name} in record {number} at {format_lsn(record.lsn)}"
        world.check(where, is_split=number == 1)
        world.wal.restore()


#: kinds of records that one of the levels does not write
NOT_WRITTEN = {
    "more tables": ("replica",),
    "fewer tables": ("replica",),
    "no common begin": ("logical",),
    "common bytes": ("logical",),
}

#: records of each of these are damaged in any byte
KINDS = (
    INSERT, *UPDATES, DELETE, MULTI_INSERT, COMMIT, RUNNING, MESSAGE,
)  # fmt: skip


def test_any_byte_of_a_record(world: World, rng: random.Random) -> None:
    """Its checksum is wrong: nothing is decoded of it or of what follows."""
    for kind in KINDS:
        for number, record in enumerate(places(world, (kind,), lambda record: True)):
            at = rng.randrange(len(record.data))
            record.flip(at, 1 << rng.randrange(8))
            world.wal.put(record)
            where = f"byte {at} of record {kind} at {format_lsn(record.lsn)}"
            assert not world.check(where), where
            world.check(where, OnDamage.SKIP, is_split=number == 1)
            world.wal.restore()


def test_any_byte_of_a_record_that_lies(world: World, rng: random.Random) -> None:
    """A value may be another one, but no error is one of the decoder's own."""
    for kind in KINDS:
        for record in places(world, (kind,), lambda record: True):
            for _ in range(3):
                record.flip(rng.randrange(24, len(record.data)), 1 << rng.randrange(8))
            record.seal()
            world.wal.put(record)
            with suppress(SparkWalError):
                world.read(world.whole())
            world.wal.restore()


PAGE_DAMAGE = {
    "magic": (0, 1), "flags": (2, 0x02), "timeline": (4, 0x40), "address": (8, 0x20),
    "rest of a record": (16, 0x08), "padding": (20, 1),
}  # fmt: skip


@pytest.mark.parametrize("field", PAGE_DAMAGE)
def test_a_page_header(world: World, field: str) -> None:
    at, mask = PAGE_DAMAGE[field]
    last = world.end_lsn // PAGE * PAGE
    for number, lsn in enumerate((world.begin_lsn, world.part_lsns[1] + PAGE, last)):
        path = world.wal.segment(lsn)
        byte = path.read_bytes()[lsn % MIB + at]
        world.wal.put_bytes(lsn + at, bytes([byte ^ mask]))
        where = f"{field} of the page at {format_lsn(lsn)}"
        world.check(where)
        world.check(where, OnDamage.SKIP, is_split=number == 1)
        world.wal.restore()


SEGMENT_DAMAGE: dict[str, Callable[[bytes, bytes], bytes | None]] = {
    "missing": lambda content, other: None,
    "empty": lambda content, other: b"",
    "cut at a page": lambda content, other: content[:PAGE],
    "cut in a page": lambda content, other: content[: PAGE + 100],
    "zeroed": lambda content, other: bytes(len(content)),
    "zeroed from a page on": lambda content, other: content[:PAGE] + bytes(len(content) - PAGE),
    "another segment": lambda content, other: other,
    "of another server": lambda content, other: (
        content[:24] + (int.from_bytes(content[24:32], "little") ^ 1).to_bytes(8, "little")
        + content[32:]
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", SEGMENT_DAMAGE)
def test_a_segment(world: World, kind: str) -> None:
    """A first one, whose transactions go on later; one in the middle; and the last."""
    last = world.end_lsn // MIB * MIB
    for lsn in (world.begin_lsn, world.part_lsns[1], last):
        path, other = world.wal.segment(lsn), world.wal.segment(lsn - MIB)
        content = SEGMENT_DAMAGE[kind](path.read_bytes(), other.read_bytes())
        world.wal.put_segment(path, content)
        where = f"segment {kind} at {format_lsn(lsn)}"
        assert not world.check(where), where
        # Ranges before a lost last segment are as before.
        world.check(where, OnDamage.SKIP, is_split=lsn != last)
        world.wal.restore()


def test_wal_that_begins_in_the_middle(world: World) -> None:
    """The transaction that was open is not complete, and a note accounts for that."""
    for lsn in world.part_lsns[1:]:
        for path in sorted(world.wal.folder.iterdir()):
            if len(path.name) == 24 and path < world.wal.segment(lsn):
                world.wal.put_segment(path, None)
        cuts = [lsn, world.end_lsn]
        truth = {place: row for place, row in world.truth.items() if place[0] >= lsn}
        found = world.read(cuts)
        assert_accounted(found, truth, format_lsn(lsn))
        with pytest.raises(UndecodedChange, match="could not be decoded"):
            world.read(cuts, undecoded=UndecodedPolicy())
        world.wal.restore()
