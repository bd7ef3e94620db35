"""Transactions of several clients at once, with interleaved changes."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pgoutput
import pytest
from changed_logs import MIB, SETTINGS, ChangedLog
from comparing import assert_same
from decoding import Row, read, read_all

from quorum_wal.pg_fixtures.postgres import Postgres
from quorum_wal.spark.changes.catalog_snapshot import take_catalog
from quorum_wal.spark.inputs.folder_input import FolderInput

_SCRIPT = """
\\set id random(1, 200)
\\set end random(1, 4)
BEGIN;
INSERT INTO busy (n, t) VALUES (:id, repeat(md5(:id::text), 1 + :id % 90));
SAVEPOINT a;
UPDATE busy SET n = n + 1, t = t || 'x' WHERE id = :id;
\\if :end = 1
ROLLBACK TO a;
\\endif
SAVEPOINT b;
DELETE FROM busy WHERE id = :id + 1000;
\\if :end = 2
RELEASE b;
\\endif
UPDATE busy SET n = -n WHERE id = :id;
\\if :end = 3
ROLLBACK;
\\else
COMMIT;
\\endif
"""


@pytest.fixture
def rng() -> random.Random:
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    return random.Random(seed)


@pytest.mark.parametrize("pg_binaries", [18], indirect=True)
def test_same_changes(
    postgres_factory: Callable[..., Postgres], rng: random.Random, tmp_path: Path
) -> None:
    """Also in the same order; checkpoints and cuts fall between them."""
    script = tmp_path / "script.sql"
    script.write_text(_SCRIPT)
    postgres = postgres_factory(settings=SETTINGS, wal_seg_size=MIB)
    postgres.execute("CREATE TABLE busy (id serial PRIMARY KEY, n int, t text)")
    postgres.execute("ALTER TABLE busy REPLICA IDENTITY FULL")
    pgoutput.create_slot(postgres)
    begin_lsn = int(postgres.flush_lsn())
    for _ in range(2):
        postgres.pgbench("--no-vacuum", "--client=6", "--transactions=60", f"--file={script}")
        postgres.execute("CHECKPOINT")
    catalog = take_catalog(postgres.dsn())
    expected = pgoutput.decoded_changes(postgres)
    postgres.stop()
    wal_input = FolderInput(str(postgres.pg_wal))
    end_lsn = wal_input.newest_lsn()
    log = ChangedLog(wal_input, begin_lsn, end_lsn, (catalog, catalog), expected)
    rows = read_all(log)
    assert len(rows) > 700
    assert_interleaved(rows)
    for row, change in zip(rows, expected, strict=True):
        assert_same(row, change)
    cuts = [begin_lsn, *sorted(rng.sample(range(begin_lsn, end_lsn), 12)), end_lsn]
    assert [row for begin, end in pairwise(cuts) for row in read(log, begin, end)] == rows


def assert_interleaved(rows: list[Row]) -> None:
    """The transactions of the test run concurrently."""
    lsns = [row["lsn"] for row in rows]
    assert lsns != sorted(lsns)
    assert [row["commit_lsn"] for row in rows] == sorted(row["commit_lsn"] for row in rows)
