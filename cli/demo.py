"""`sk demo`: kill the parts of a cluster while clients commit, and check that no row is lost.

    kill -9 of one safekeeper      commits go on
    kill -9 of a second one        commits wait, none is lost
    both back                      commits resume, both catch up, byte for byte
    kill -9 of the proposer        commits wait; a new one goes on in a new term
    kill -9 of Postgres            it recovers, the proposer attaches again

Each step waits for its condition, not for a time. Law: the demo passes only if no acknowledged row
is lost and all copies of the WAL have the same bytes.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import click

from quorum_wal.cli.demo_view import DemoView, print_result
from quorum_wal.cli.output import CommandError, ExitCode
from quorum_wal.cli.playground import playground
from quorum_wal.pg_fixtures.cluster import QuorumCluster
from quorum_wal.pg_fixtures.errors import FixtureError
from quorum_wal.pg_fixtures.ledger import Ledger, LedgerReport
from quorum_wal.pg_fixtures.safekeeper import SafekeeperProcess
from quorum_wal.pg_fixtures.waiting import wait_until
from quorum_wal.pg_fixtures.wal_comparison import WalComparison, find_segments
from quorum_wal.pg_server.program import run_program
from quorum_wal.pgwal.lsn import Lsn

CLIENTS = 8
PAYLOAD_BYTES = 1000
# Small, so that a short demo crosses many segment boundaries.
WAL_SEG_SIZE = 1 << 20
# Commits wait if none has returned for this long.
SILENCE_SECONDS = 1.0
# Deadline of one condition, on a slow machine.
TIMEOUT_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Step:
    """One row of the table of results."""

    at_seconds: float
    action: str
    result: str
    acknowledged: int


@dataclass(frozen=True, slots=True)
class DemoResult:
    """The final checks. `records` is the number of records that pg_waldump read, per safekeeper."""

    ledger: LedgerReport
    comparison: WalComparison
    compared_up_to: Lsn
    records: dict[str, int]
    latency_ms: float

    @property
    def ok(self) -> bool:
        return self.ledger.ok and len(set(self.records.values())) == 1


class Demo:
    """The scenario. `steps` and `doing` may be read by the view's thread while it runs."""

    def __init__(self, root: Path, pg_major: int | None, rows: int) -> None:
        self.cluster = QuorumCluster(root, pg_major=pg_major, wal_seg_size=WAL_SEG_SIZE)
        self.ledger = Ledger(
            self.cluster.postgres.dsn(),
            clients=CLIENTS,
            payload_bytes=PAYLOAD_BYTES,
            pause_seconds=0,
        )
        self.rows = rows  # to be acknowledged in every step in which commits go on
        self.steps: list[Step] = []
        self.doing = ""
        self.on_step: Callable[[Step], None] = lambda step: None
        self._started_at = time.monotonic()

    @property
    def elapsed_seconds(self) -> float:
        return time.monotonic() - self._started_at

    def run(self) -> DemoResult:
        """Raises PgServerError if a step does not have the expected result."""
        postgres = f"Postgres {self.cluster.postgres.binaries.version}"
        _, second, third = self.cluster.safekeepers
        self.doing = f"start {postgres}, three safekeepers, a proposer"
        begun = self.elapsed_seconds
        with self.cluster:
            self._done(begun, "the proposer streams, commits wait for the quorum")
            with self.ledger:
                self._step(f"{CLIENTS} clients commit rows", self._commits_go_on)
                self._step(f"kill -9 {third.name}", lambda: self._kill_one(third))
                self._step(f"kill -9 {second.name} too", lambda: self._kill_another(second))
                self._step("start both again", lambda: self._start_again(second, third))
                self._step("kill -9 the proposer", self._kill_proposer)
                self._step("start a proposer", self._start_proposer)
                self._step("kill -9 Postgres", self._kill_postgres)
                self._step("start Postgres", self._start_postgres)
                self._step("stop the clients", self._quiesce)
            self.doing = "check the rows and the WAL"
            return self._check()

    def _step(self, action: str, work: Callable[[], str]) -> None:
        self.doing = action
        begun = self.elapsed_seconds
        self._done(begun, work())

    def _done(self, begun: float, result: str) -> None:
        step = Step(begun, self.doing, result, self.ledger.acknowledged)
        self.steps.append(step)
        self.on_step(step)

    # ---- steps: each returns a text with its result

    def _commits_go_on(self) -> str:
        began = time.monotonic()
        self.ledger.wait_for_progress(self.rows, TIMEOUT_SECONDS)
        rate = self.rows / (time.monotonic() - began)
        return f"{self.rows} rows more acknowledged, {rate:.0f} a second"

    def _resume(self) -> str:
        before, began = self.ledger.acknowledged, time.monotonic()
        wait_until(lambda: self.ledger.acknowledged > before, TIMEOUT_SECONDS, "a commit")
        waited = time.monotonic() - began
        self.ledger.wait_for_progress(self.rows, TIMEOUT_SECONDS)
        return f"commits resume after {waited:.1f} s"

    def _wait_silence(self) -> str:
        """Wait until no commit is acknowledged: clients wait in COMMIT, or cannot connect."""
        wait_until(
            lambda: self.ledger.last_ack_age >= SILENCE_SECONDS,
            TIMEOUT_SECONDS,
            "the commits to stop",
        )
        waiting = self.ledger.in_flight
        return f"commits wait: none returned for {SILENCE_SECONDS:g} s, {waiting} are waiting"

    def _kill_one(self, safekeeper: SafekeeperProcess) -> str:
        safekeeper.kill()
        return f"commits go on with 2 of 3: {self._commits_go_on()}"

    def _kill_another(self, safekeeper: SafekeeperProcess) -> str:
        safekeeper.kill()
        wait_until(
            lambda: not self.cluster.proposer.status()["quorum"]["ok"],
            TIMEOUT_SECONDS,
            "the proposer to report that the quorum is lost",
        )
        return self._wait_silence()

    def _start_again(self, *safekeepers: SafekeeperProcess) -> str:
        for safekeeper in safekeepers:
            safekeeper.start()
        resumed = self._resume()
        up_to = self._flush_everywhere()
        self.cluster.compare_wal(up_to)
        self.ledger.resume()
        return f"{resumed}; both have caught up, equal bytes up to {up_to}"

    def _kill_proposer(self) -> str:
        self.cluster.proposer.kill()
        return self._wait_silence()

    def _start_proposer(self) -> str:
        self.cluster.proposer.start()
        resumed = self._resume()
        return f"term {self._term()}: {resumed}"

    def _kill_postgres(self) -> str:
        self.cluster.postgres.crash()
        errors = self.ledger.errors
        wait_until(
            lambda: self.ledger.errors > errors, TIMEOUT_SECONDS, "the clients to get an error"
        )
        return f"no connection for {CLIENTS} clients"

    def _start_postgres(self) -> str:
        self.cluster.postgres.start(TIMEOUT_SECONDS)
        resumed = self._resume()
        return f"recovered, term {self._term()}: {resumed}"

    def _term(self) -> int:
        return int(self.cluster.proposer.status()["node_id"]["term"])

    def _quiesce(self) -> str:
        up_to = self._flush_everywhere()
        return f"all three safekeepers have flushed {up_to}"

    def _flush_everywhere(self) -> Lsn:
        """Pause the clients, and wait until every safekeeper has flushed their WAL."""
        self.ledger.pause()
        self.ledger.wait_idle(TIMEOUT_SECONDS)
        up_to = self.cluster.postgres.flush_lsn()
        self.cluster.wait_flushed(up_to, TIMEOUT_SECONDS)
        return up_to

    # ---- the final checks

    def _check(self) -> DemoResult:
        up_to = self._flush_everywhere()
        comparison = self.cluster.compare_wal(up_to)
        return DemoResult(
            ledger=self.ledger.verify(),
            comparison=comparison,
            compared_up_to=up_to,
            records={s.name: self._waldump(s, up_to) for s in self.cluster.safekeepers},
            latency_ms=self.ledger.latency_percentile(50) * 1000,
        )

    def _waldump(self, safekeeper: SafekeeperProcess, up_to: Lsn) -> int:
        """The number of records that pg_waldump reads. It fails at the first invalid record."""
        timeline = safekeeper.timeline()
        assert timeline is not None
        segments = find_segments(safekeeper.data_dir, timeline["wal_seg_size"])
        folder = next(iter(segments.values())).parent
        program = self.cluster.postgres.binaries.program("pg_waldump")
        bounds = (f"--start={timeline['start_lsn']}", f"--end={up_to}")
        output = run_program([program, f"--path={folder}", *bounds, "--stats"]).stdout
        total = re.search(r"^Total\s+(\d+)", output, re.MULTILINE)
        if total is None:
            raise FixtureError(f"pg_waldump printed no total for {safekeeper.name}")
        return int(total[1])


@click.command()
@click.option(
    "--dir",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder to run in and to keep; must be new or empty.  [default: a temporary folder]",
)
@click.option(
    "--pg-major", type=click.IntRange(13, 18), metavar="N", help="Major version of Postgres."
)
@click.option(
    "--rows",
    type=click.IntRange(1),
    metavar="N",
    default=1000,
    show_default=True,
    help="Rows that must be acknowledged after each fault.",
)
@click.pass_context
def demo(context: click.Context, dir: Path | None, pg_major: int | None, rows: int) -> None:
    """Kill the parts of a running cluster, and check that no acknowledged row is lost.

    Starts Postgres, three safekeepers and a proposer on this machine. Clients commit rows while the
    demo kills one part after the other with kill -9. Takes less than a minute. Exits with 1 if an
    acknowledged row is lost or the copies of the WAL differ.
    """
    if dir is not None and dir.exists() and any(dir.iterdir()):
        raise CommandError(f'directory "{dir}" is not empty', "Choose a new one.")
    try:
        with playground(dir) as root:
            scenario = Demo(root, pg_major, rows)
            with DemoView(scenario):
                result = scenario.run()
            print_result(scenario, result)
            if not result.ok:
                raise FixtureError(f"the demo failed: {result.ledger}")
    except KeyboardInterrupt:
        click.echo("interrupted; all processes have ended", err=True)
        context.exit(ExitCode.INTERRUPTED)
