"""`messages=true`: what pg_logical_emit_message() wrote, against pgoutput where it can decode."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pgoutput
import pytest
from changed_logs import MIB, SETTINGS, ChangedLog
from decoding import Row, read, read_all
from wal_files import WalFiles

from quorum_wal.pg_fixtures.postgres import Postgres
from quorum_wal.pgwal.lsn import Lsn
from quorum_wal.spark.changes.catalog_snapshot import take_catalog
from quorum_wal.spark.changes.change_reader import ChangeOptions, restart_lsn
from quorum_wal.spark.errors import WalInputError
from quorum_wal.spark.inputs.folder_input import FolderInput

EMIT = "SELECT pg_logical_emit_message(%s, %s, %s::text)"
EMIT_BYTES = "SELECT pg_logical_emit_message(%s, %s, %s::bytea)"
LONG = "long " * 100_000

#: (transactional, prefix, encoding, content), in the order of (commit_lsn, lsn)
EXPECTED = [
    (True, "outbox", "text", '{"order": 1}'),
    (False, "log", "text", "in a transaction that is rolled back"),
    (False, "", "text", "in a transaction that commits"),
    (True, "outbox", "text", "after an insert: ünicode"),
    (True, "outbox", "text", "of a subtransaction"),
    (True, "bytes", "hex", "\\xff00fe"),
    (True, "empty", "text", ""),
    (True, "prepared", "text", "of a prepared transaction"),
    (False, "long", "text", LONG),
    (True, "slow", "text", "before the others began"),
]


def write_messages(postgres: Postgres) -> None:
    postgres.execute("CREATE TABLE orders (id int PRIMARY KEY)")
    with postgres.connect(autocommit=False) as slow, postgres.connect(autocommit=False) as other:
        slow.execute(EMIT, (True, "slow", "before the others began"))
        postgres.execute(EMIT, (True, "outbox", '{"order": 1}'))
        other.execute(EMIT, (True, "outbox", "rolled back"))
        other.execute(EMIT, (False, "log", "in a transaction that is rolled back"))
        other.rollback()
        other.execute("INSERT INTO orders VALUES (1)")
        other.execute(EMIT, (False, "", "in a transaction that commits"))
        other.execute(EMIT, (True, "outbox", "after an insert: ünicode"))
        other.execute("SAVEPOINT a")
        other.execute(EMIT, (True, "outbox", "of a subtransaction"))
        other.execute("SAVEPOINT b")
        other.execute(EMIT, (True, "outbox", "rolled back to a savepoint"))
        other.execute("ROLLBACK TO b")
        other.execute(EMIT_BYTES, (True, "bytes", b"\xff\x00\xfe"))
        other.execute(EMIT, (True, "empty", ""))
        other.commit()
        other.execute(EMIT, (True, "prepared", "of a prepared transaction"))
        other.execute("PREPARE TRANSACTION 'two phases'")
        other.commit()
        postgres.execute("COMMIT PREPARED 'two phases'")
        postgres.execute(EMIT, (False, "long", LONG))
        slow.commit()
    with postgres.connect(dbname="template1") as elsewhere:
        elsewhere.execute(EMIT, (True, "elsewhere", "of another database"))
    postgres.execute("INSERT INTO orders VALUES (2)")


@pytest.fixture(params=["logical", "replica"])
def wal_level(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def log(
    postgres_factory: Callable[..., Postgres], wal_level: str
) -> tuple[ChangedLog, list[tuple[Any, ...]]]:
    """The log, and the messages in it that pgoutput shows."""
    postgres = postgres_factory(settings={**SETTINGS, "wal_level": wal_level}, wal_seg_size=MIB)
    if wal_level == "logical":
        pgoutput.create_slot(postgres)
    postgres.execute("CHECKPOINT")
    begin_lsn = int(postgres.flush_lsn())
    write_messages(postgres)
    messages = decoded_messages(postgres) if wal_level == "logical" else []
    catalog = take_catalog(postgres.dsn())
    postgres.stop()
    wal_input = FolderInput(str(postgres.pg_wal))
    end_lsn = wal_input.newest_lsn()
    return ChangedLog(wal_input, begin_lsn, end_lsn, (catalog, catalog), []), messages


def decoded_messages(postgres: Postgres) -> list[tuple[Any, ...]]:
    """(end LSN, transactional, prefix, content) of pgoutput, in its order."""
    found = []
    for (data,) in postgres.execute(
        "SELECT data FROM pg_logical_slot_get_binary_changes('oracle', NULL, NULL,"
        " 'proto_version', '1', 'publication_names', 'everything', 'messages', 'true')"
    ):
        if data[:1] == b"M":
            flags, lsn = struct.unpack_from("!BQ", data, 1)
            prefix, rest = data[10:].split(b"\0", 1)
            found.append((lsn, flags & 1 == 1, prefix.decode(), rest[4:]))
    return found


def parts_of(row: Row) -> tuple[Any, ...]:
    new = json.loads(row["new"])
    return new["transactional"], new["prefix"], new["encoding"], new["content"]


def content_of(row: Row) -> bytes:
    _, _, encoding, content = parts_of(row)
    return bytes.fromhex(content[2:]) if encoding == "hex" else str(content).encode()


@pytest.mark.parametrize("pg_binaries", [15, 18], indirect=True)
def test_messages(log: tuple[ChangedLog, list[tuple[Any, ...]]], wal_level: str) -> None:
    """Their order, their columns, any split of the WAL, and the slot of a stream."""
    changed, expected = log
    rows = read_all(changed, messages=True)
    found = [row for row in rows if row["operation"] == "message"]
    assert [parts_of(row) for row in found] == EXPECTED
    if wal_level == "logical":
        assert [parts for _, *parts in expected] == [
            [*parts_of(row)[:2], content_of(row)] for row in found
        ]
        # pgoutput shows the end of the record
        ends = [lsn for lsn, *_ in expected]
        assert all(
            row["lsn"] < end < row["lsn"] + MIB for row, end in zip(found, ends, strict=True)
        )
    for row in found:
        names = ("schema", "table", "key", "old", "ctid", "unchanged", "detail")
        assert [row[name] for name in names] == [None] * len(names)
        is_transactional = parts_of(row)[0]
        assert (row["xid"] is not None) is is_transactional
        assert (row["commit_time"] is not None) is is_transactional
        assert (row["commit_lsn"] > row["lsn"]) is is_transactional
        assert is_transactional or row["commit_lsn"] == row["lsn"]
    places = [(row["commit_lsn"], row["lsn"], row["seq"]) for row in rows]
    assert places == sorted(set(places))
    assert [row for row in rows if row["operation"] != "message"] == read_all(changed)
    assert read_all(changed, messages=True, memory_bytes=1000) == rows
    assert_any_split(changed, rows)
    assert_slot(changed, found)


def assert_any_split(log: ChangedLog, rows: list[Row]) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    inner = random.Random(seed).sample(range(log.begin_lsn, log.end_lsn), 10)
    places = [row["commit_lsn"] for row in rows if row["commit_lsn"] == row["lsn"]]
    cuts = sorted({log.begin_lsn, *inner, *places, log.end_lsn})
    pairs = list(pairwise(cuts))
    assert [row for pair in pairs for row in read(log, *pair, messages=True)] == rows, cuts


def assert_slot(log: ChangedLog, found: list[Row]) -> None:
    """It keeps the WAL of an open transaction that has only written a message."""
    slow, other = found[-1], found[0]
    assert slow["lsn"] < other["commit_lsn"] < slow["commit_lsn"]
    options = ChangeOptions(log.catalogs[0], messages=True)
    assert restart_lsn(log.wal_input, other["commit_lsn"], options) <= slow["lsn"]


@pytest.mark.parametrize("pg_binaries", [16], indirect=True)
@pytest.mark.parametrize("wal_level", ["logical"], indirect=True)
def test_damaged_messages(log: tuple[ChangedLog, list[tuple[Any, ...]]]) -> None:
    """A checksum that is right, and sizes that are not, are an error that names the place."""
    changed, _ = log
    files = WalFiles(Path(changed.wal_input.path))
    rows = read_all(changed, messages=True)
    lsn = next(row["lsn"] for row in rows if row["operation"] == "message")
    for at, mask in ((4, 2), (8, 1), (10, 1), (15, 128), (16, 1), (23, 128), (30, 1)):
        records = files.records(changed.begin_lsn, changed.end_lsn)
        damaged = next(record for record in records if record.lsn == lsn)
        damaged.flip(damaged.main_at + at, mask)
        damaged.seal()
        files.put(damaged)
        with pytest.raises(WalInputError, match=f"message at {Lsn(lsn)} "):
            read_all(changed, messages=True)
        files.restore()
    assert read_all(changed, messages=True)
