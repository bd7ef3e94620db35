"""`mirror`: how far a mirror of pgbench's accounts is behind, under 2,000 updates a second.

`sk spark mirror` runs at local[2] with its defaults, and reads the server's own pg_wal. pgbench
updates one random account in each transaction, at a fixed rate. The lag is sampled twice a second:
the time since the last commit in the newest version of the mirror. The primary makes a checkpoint
every minute: with wal_level replica, a batch reads back to the last one.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from benchmarks import pgbench
from benchmarks.primary import Primary
from benchmarks.rounds import Spread, Verdict
from benchmarks.setups import checkout_env, checkouts
from benchmarks.usage import TICKS_PER_SECOND
from quorum_wal.objectstore.store import open_store
from quorum_wal.pg_fixtures.data_directory import Setting
from quorum_wal.pg_fixtures.errors import FixtureError
from quorum_wal.pg_fixtures.processes import SK
from quorum_wal.pg_server.binaries import PostgresBinaries
from quorum_wal.spark.mirror.version import Version, Versions

SCALE = 10
UPDATES_PER_SECOND = 2000
SECONDS_MIN = 180
LAG_SECONDS_MAX = 10.0
WAL_LEVELS = ("logical", "replica")
COLUMNS = (
    "wal_level", "updates/s", "lag p50, s", "lag p95, s", "lag max, s", "s a batch",
    "CPU, cores",
)  # fmt: skip

SETTINGS: dict[str, Setting] = {
    "checkpoint_timeout": "1min",
    "wal_keep_size": "16GB",
    "synchronous_commit": False,
}
SCRIPT = f"""\\set aid random(1, {SCALE * 100_000})
UPDATE pgbench_accounts SET abalance = abalance + 1 WHERE aid = :aid;
"""
START_SECONDS_MAX = 300.0
SAMPLE_SECONDS = 0.5
CLIENTS = 4


@dataclass(frozen=True, slots=True)
class MirrorSample:
    """One run. `lags` are seconds, in the order of time; `cores` is the CPU time of the command and
    its workers, divided by the time."""

    setup: str
    round: int
    updates_per_second: float
    lags: tuple[float, ...] = field(repr=False)
    batches: int
    seconds: float
    cores: float

    def percentile(self, part: float) -> float:
        ordered = sorted(self.lags)
        return ordered[min(len(ordered) - 1, int(len(ordered) * part))]


def measure(
    binaries: PostgresBinaries, directory: Path, seconds: int, against: Path | None = None
) -> Iterator[MirrorSample]:
    """Yields each sample when it is taken. The command of `against` runs after ours."""
    for wal_level in WAL_LEVELS:
        folder = directory / wal_level
        folder.mkdir()
        primary = Primary(binaries, folder)
        primary.postgres.configure(wal_level=wal_level, **SETTINGS)
        with primary:
            pgbench.initialize(primary.postgres, SCALE)
            for setup, checkout in checkouts(against).items():
                name = wal_level if checkout is None else f"{wal_level}, {setup}"
                own = folder / setup
                own.mkdir()
                with _mirror(primary, own, checkout_env(checkout)) as process:
                    yield _sample(primary, own, process, name, max(seconds, SECONDS_MIN))


def _sample(
    primary: Primary, folder: Path, process: subprocess.Popen[str], name: str, seconds: int
) -> MirrorSample:
    versions = Versions(open_store(str(folder / "mirror")))
    script = folder / "update.sql"
    script.write_text(SCRIPT)
    first, updates = _newest(versions), _updates(primary)
    with ThreadPoolExecutor(1) as pool:
        clients = pool.submit(
            primary.postgres.pgbench, "--no-vacuum", f"--file={script}",
            f"--rate={UPDATES_PER_SECOND}", f"--client={CLIENTS}", f"--time={seconds}",
        )  # fmt: skip
        while (begin := _newest(versions)).commit_time == first.commit_time:
            _check(process)
            time.sleep(SAMPLE_SECONDS)
        began, before, lags = time.monotonic(), _cpu_seconds(process), []
        while not clients.done():
            newest = _newest(versions)
            assert newest.commit_time is not None
            lags.append((datetime.now(UTC) - newest.commit_time).total_seconds())
            _check(process)
            time.sleep(SAMPLE_SECONDS)
        took = time.monotonic() - began
        clients.result()
    return MirrorSample(
        name, 0, (_updates(primary) - updates) / seconds, tuple(lags),
        newest.number - begin.number, took, (_cpu_seconds(process) - before) / took,
    )  # fmt: skip


@contextmanager
def _mirror(
    primary: Primary, folder: Path, env: Mapping[str, str]
) -> Iterator[subprocess.Popen[str]]:
    """The command, after the first copy and the first batch."""
    command = [
        *SK, "spark", "mirror", "--into", str(folder / "mirror"),
        "--path", str(primary.postgres.pg_wal), "--dsn", primary.postgres.dsn(),
        "--table", "public.pgbench_accounts", "--master", "local[2]",
    ]  # fmt: skip
    with (folder / "mirror.log").open("w") as log:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True,
            env={**os.environ, **env},
        )  # fmt: skip
    try:
        assert process.stdout is not None
        process.stdout.readline()
        primary.execute("UPDATE pgbench_accounts SET abalance = abalance WHERE aid = 1")
        if not process.stdout.readline().startswith("version"):
            raise FixtureError(f"the mirror ended: {(folder / 'mirror.log').read_text()}")
        yield process
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def _newest(versions: Versions) -> Version:
    found = versions.newest()
    if found is None or found.commit_time is None:
        raise FixtureError("the mirror has no batch")
    return found


def _check(process: subprocess.Popen[str]) -> None:
    if process.poll() is not None:
        raise FixtureError("the mirror ended")


def _updates(primary: Primary) -> int:
    ((total,),) = primary.execute("SELECT sum(abalance) FROM pgbench_accounts")
    return int(total)


def _cpu_seconds(process: subprocess.Popen[str]) -> float:
    """Of all processes of its session, with their children that have ended."""
    ticks = 0
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if os.getsid(int(path.name)) != process.pid:
                continue
            fields = (path / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has ended
        ticks += sum(map(int, fields[11:15]))  # utime stime cutime cstime
    return ticks / TICKS_PER_SECOND


def table(samples: Sequence[MirrorSample]) -> list[list[str]]:
    rows = [list(COLUMNS)]
    for each in samples:
        lags = [each.percentile(part) for part in (0.5, 0.95, 1.0)]
        rows.append(
            [
                each.setup,
                f"{each.updates_per_second:,.0f}",
                *(f"{lag:.1f}" for lag in lags),
                f"{each.seconds / max(1, each.batches):.1f}",
                f"{each.cores:.2f}",
            ]
        )
    return rows


def verdicts(samples: Sequence[MirrorSample]) -> list[Verdict]:
    return [
        Verdict(
            f"the greatest lag of a mirror, wal_level {each.setup}",
            Spread.of([max(each.lags)]),
            LAG_SECONDS_MAX,
            at_least=False,
            unit=" s",
        )
        for each in samples
        if each.setup in WAL_LEVELS
    ]
