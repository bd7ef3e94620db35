"""`sk demo`: real clients on a real Postgres while its parts are killed; then the reckoning.

    kill -9 of one safekeeper      commits go on
    kill -9 of a second one        commits wait, none is lost
    both back                      commits resume, both catch up, byte for byte
    kill -9 of the proposer        commits wait; a new one goes on in a new term
    kill -9 of Postgres            it recovers, the proposer attaches again

Every step waits for what it says, not for a time. Law: it passes only if no acknowledged row is
lost and the WAL of all is the same bytes.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import click

from quorum_wal.cli.demo_view import DemoView, print_outcome
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
# Small, so that a short demo crosses the ends of many.
WAL_SEG_SIZE = 1 << 20
# So long no commit may return before the demo says that they wait.
SILENCE_SECONDS = 1.0
# For one condition, on the slowest machine that is worth a demo.
TIMEOUT_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Step:
    """One row of the outcome."""

    at_seconds: float
    action: str
    result: str
    acknowledged: int


@dataclass(frozen=True, slots=True)
class Reckoning:
    """`records` is what pg_waldump read from each safekeeper."""

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
            self.cluster.postgres.dsn(), clients=CLIENTS, payload_bytes=PAYLOAD_BYTES
        )
        self.rows = rows  # to be acknowledged in every step that lets commits go on
        self.steps: list[Step] = []
        self.doing = ""
        self.on_step: Callable[[Step], None] = lambda step: None
        self._started_at = time.monotonic()

    @property
    def elapsed_seconds(self) -> float:
        return time.monotonic() - self._started_at

    def run(self) -> Reckoning:
        """Raises PgServerError at the first thing that does not come as it should."""
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
                self._step("let the clients end", self._quiesce)
            self.doing = "reckon"
            return self._reckon()

    def _step(self, action: str, work: Callable[[], str]) -> None:
        self.doing = action
        begun = self.elapsed_seconds
        self._done(begun, work())

    def _done(self, begun: float, result: str) -> None:
        step = Step(begun, self.doing, result, self.ledger.acknowledged)
        self.steps.append(step)
        self.on_step(step)

    # ---- steps: each returns what was seen

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
        """All clients wait in COMMIT, or cannot connect; nothing is acknowledged."""
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
            "the proposer to notice that the quorum is lost",
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
        wait_until(lambda: self.ledger.errors > errors, TIMEOUT_SECONDS, "the clients to notice")
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
        """Pause the clients, and wait until every safekeeper has what they wrote."""
        self.ledger.pause()
        self.ledger.wait_idle(TIMEOUT_SECONDS)
        up_to = self.cluster.postgres.flush_lsn()
        self.cluster.wait_flushed(up_to, TIMEOUT_SECONDS)
        return up_to

    # ---- the reckoning

    def _reckon(self) -> Reckoning:
        up_to = self._flush_everywhere()
        comparison = self.cluster.compare_wal(up_to)
        return Reckoning(
            ledger=self.ledger.verify(),
            comparison=comparison,
            compared_up_to=up_to,
            records={s.name: self._waldump(s, up_to) for s in self.cluster.safekeepers},
            latency_ms=self.ledger.latency_percentile(50) * 1000,
        )

    def _waldump(self, safekeeper: SafekeeperProcess, up_to: Lsn) -> int:
        """The number of records that pg_waldump reads; it fails at the first bad one."""
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
    help="Where to run it, and to keep everything; must be new or empty. Default: a temporary one.",
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
    help="Rows to see acknowledged after each fault.",
)
@click.pass_context
def demo(context: click.Context, dir: Path | None, pg_major: int | None, rows: int) -> None:
    """Kill the parts of a running cluster, and prove that nothing acknowledged is lost.

    Postgres, three safekeepers and a proposer are started on this machine, clients commit rows, and
    one part after the other is killed with kill -9. Takes less than a minute. Exits with 1 if
    anything is lost or differs.
    """
    if dir is not None and dir.exists() and any(dir.iterdir()):
        raise CommandError(f'directory "{dir}" is not empty', "Choose a new one.")
    try:
        with playground(dir) as root:
            scenario = Demo(root, pg_major, rows)
            with DemoView(scenario):
                reckoning = scenario.run()
            print_outcome(scenario, reckoning)
            if not reckoning.ok:
                raise FixtureError(f"the demo failed: {reckoning.ledger}")
    except KeyboardInterrupt:
        click.echo("interrupted; everything has ended", err=True)
        context.exit(ExitCode.INTERRUPTED)
