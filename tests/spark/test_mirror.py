"""A mirror equals the tables on the primary, whatever is changed, and whatever is killed."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pytest
from mirror_world import Workload, create_tables, mirrored_rows, rows_in_postgres

from quorum_wal.pg_fixtures.postgres import Postgres
from quorum_wal.spark.mirror.mirror_stream import MirrorSettings, MirrorStream
from quorum_wal.spark.mirror.selection import Selection

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MIRRORED = ("shop.orders", "shop.items", "shop.log", "shop.parts_n", "shop.parts_s")


def settings(postgres: Postgres, url: Path, **more: object) -> MirrorSettings:
    return MirrorSettings(
        url=str(url),
        source={"path": str(postgres.pg_wal)},
        dsn=postgres.dsn(),
        selection=Selection(("shop.*",), ("shop.tmp_*",)),
        **more,
    )


def run_once(session: SparkSession, postgres: Postgres, url: Path) -> int:
    """Returns how many changes were applied."""
    counts: list[int] = []
    MirrorStream(session, settings(postgres, url)).run(
        interval=None,
        on_applied=lambda applied: counts.append(applied.rows),
        is_stopping=lambda: False,
    )
    return sum(counts)


def assert_equal(postgres: Postgres, url: Path) -> None:
    for table in MIRRORED:
        assert mirrored_rows(url, table) == rows_in_postgres(postgres, table), table


@pytest.mark.parametrize("wal_level", ["logical", "replica"])
def test_random_changes_while_it_is_taken_and_later(
    session: SparkSession, wal_server: Callable[..., Postgres], tmp_path: Path, wal_level: str
) -> None:
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    mirror = tmp_path / "mirror"
    with wal_server(tmp_path / "data", wal_level=wal_level) as postgres:
        create_tables(postgres)
        Workload(postgres, Random(seed)).run(50)
        writer = threading.Thread(target=Workload(postgres, Random(seed + 1)).run, args=(300,))
        writer.start()
        version, is_new = MirrorStream(session, settings(postgres, mirror)).begin()
        assert is_new
        assert sum(table.rows for table in version.tables) > 0
        writer.join()
        run_once(session, postgres, mirror)
        assert_equal(postgres, mirror)
        assert run_once(session, postgres, mirror) == 0
        Workload(postgres, Random(seed + 2)).run(30)
        assert run_once(session, postgres, mirror) > 0
        assert_equal(postgres, mirror)
