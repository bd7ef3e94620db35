"""Random workloads: a mirror equals the tables on the primary, copy after copy, batch after batch.

python tests/spark/random_mirrors.py --pg-major 15 --wal-level replica --seeds 0-50

With --batch-bytes 1MB the stream has many batches, which leave pages for each other.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import click
from mirror_workload import Workload
from mirror_world import assert_equal, create_tables

from quorum_wal.pg_fixtures.postgres import Postgres
from quorum_wal.pg_fixtures.standby import make_standby
from quorum_wal.pg_server.binaries import find_postgres
from quorum_wal.spark.mirror.mirror_stream import MirrorSettings, MirrorStream
from quorum_wal.spark.mirror.selection import Selection
from quorum_wal.spark.session import new_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SEGMENT_BYTES = 1 << 20
PREPARED_MAX = 16
WHILE_COPIED, LATER, BATCHES = 80, 25, 2
PAUSE_SECONDS = 1.0
#: The copy may take longer than the 30 seconds after which replay ends a query that has its lock.
STANDBY_SETTINGS = {"max_standby_streaming_delay": -1}


def settings(
    postgres: Postgres, url: Path, *, batch_bytes: str = "512MB", **more: object
) -> MirrorSettings:
    """Of a mirror of schema `shop`, from the server's own WAL. `batch_bytes` limits the WAL of a
    batch, as an option of the stream."""
    return MirrorSettings(
        url=str(url),
        source={"path": str(postgres.pg_wal), "max_bytes_per_batch": batch_bytes},
        dsn=postgres.dsn(),
        selection=Selection(("shop.*",), ("shop.tmp_*",)),
        **more,
    )


def run_once(session: SparkSession, postgres: Postgres, url: Path, **more: object) -> int:
    """Returns how many changes were applied."""
    counts: list[int] = []
    MirrorStream(settings(postgres, url, **more)).run(
        session,
        interval=None,
        on_applied=lambda applied: counts.append(applied.rows),
        is_stopping=lambda: False,
    )
    return sum(counts)


def run_seed(
    session: SparkSession,
    postgres: Postgres,
    root: Path,
    seed: int,
    standby: Postgres | None = None,
    batches: int = BATCHES,
    **more: object,
) -> None:
    """The first copy is taken while clients write, from the standby, if there is one. Prepared
    transactions stay open over the end of a batch."""
    mirror = root / "mirror"
    load = Workload(postgres, Random(seed + 1))
    is_taken = threading.Event()

    def write() -> None:
        load.run(WHILE_COPIED)
        # The copy may wait for a lock of a prepared transaction.
        while not is_taken.wait(PAUSE_SECONDS):
            load.finish()

    writer = threading.Thread(target=write)
    writer.start()
    try:
        taking = replace(settings(postgres, mirror), dsn=(standby or postgres).dsn())
        version, is_new = MirrorStream(taking).begin()
    finally:
        is_taken.set()
        writer.join()
    assert is_new
    assert version.tables
    for number in range(1 + batches):
        if number == batches:
            load.finish()
        if number > 0:
            load.run(LATER)
        run_once(session, postgres, mirror, **more)
        load.free_tables()  # for the comparison, which reads them
        assert_equal(postgres, mirror)


def prepare(postgres: Postgres, seed: int) -> None:
    """Rows before the first copy."""
    create_tables(postgres)
    Workload(postgres, Random(seed)).run(40)


@click.command()
@click.option("--pg-major", type=int, default=None)
@click.option("--wal-level", type=click.Choice(["logical", "replica"]), default="logical")
@click.option("--standby", is_flag=True, help="Take the first copy from a standby.")
@click.option("--batch-bytes", default="512MB", help="WAL of a batch; small: many batches.")
@click.option("--seeds", default="0-20", help="FIRST-LAST, without the last.")
def main(pg_major: int | None, wal_level: str, standby: bool, batch_bytes: str, seeds: str) -> None:
    session = new_session("random mirrors", "local[2,4]", {"spark.sql.shuffle.partitions": "2"})
    session.sparkContext.setLogLevel("OFF")
    failed = 0
    for seed in range(*map(int, seeds.split("-"))):
        root = Path(tempfile.mkdtemp(prefix="mirror-"))
        root.chmod(0o755)
        server = Postgres(
            find_postgres(pg_major),
            root / "primary",
            settings={
                "wal_level": wal_level, "wal_keep_size": "1GB", "autovacuum": False,
                "max_prepared_transactions": PREPARED_MAX,
            },
            wal_seg_size=SEGMENT_BYTES,
        )  # fmt: skip
        name = f"{server.binaries.major} {wal_level} seed {seed}"
        try:
            with server:
                prepare(server, seed)
                if standby:
                    path = root / "standby"
                    with make_standby(server, path, server.dsn(), **STANDBY_SETTINGS) as copy:
                        run_seed(session, server, root, seed, copy, batch_bytes=batch_bytes)
                else:
                    run_seed(session, server, root, seed, batch_bytes=batch_bytes)
        except Exception as error:
            failed += 1
            click.echo(f"{name}: {type(error).__name__}: {error}\nin {root}")
            continue
        click.echo(f"{name}: equal")
        shutil.rmtree(root)
    session.stop()
    raise SystemExit(1 if failed else 0)


if __name__ == "__main__":
    main()
