"""`qsync`: the cost of a transaction that is prepared, waits for its quorum, and is committed.

The same transactions from the same Python clients end in several ways, in turns:

    sync, sync again      COMMIT that waits by synchronous_standby_names: the reference, and control
    qsync durable         until a quorum also has COMMIT PREPARED
    qsync visible         until a quorum has PREPARE, and the transaction is visible
    two-phase, sync       PREPARE and COMMIT PREPARED, which wait by synchronous_standby_names
    two-phase, no quorum  PREPARE and COMMIT PREPARED on the primary alone
    local only            COMMIT on the primary alone

All but the last two use a proposer and three safekeepers. Clients are processes with a few threads
each; the table shows their processor time.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import msgspec

from benchmarks import pgbench
from benchmarks.commit import SCALE, WARM_UP_CLIENTS, WARM_UP_SECONDS
from benchmarks.namespaces import LOOPBACK
from benchmarks.network import PROPOSER
from benchmarks.primary import Primary
from benchmarks.qsync_load import LoadResult
from benchmarks.rounds import (
    Spread,
    Verdict,
    interleaved,
    paired_differences,
    paired_ratios,
    samples_of,
)
from benchmarks.setups import ATTACH_TIMEOUT, LocalOnly, SafekeeperQuorum, Setup, attached
from benchmarks.usage import Usage, read_usage
from quorum_wal.pg_fixtures.ports import free_port
from quorum_wal.pg_fixtures.proposer import ProposerProcess
from quorum_wal.pg_fixtures.waiting import wait_until

CLIENTS = (1, 8, 32)
PROCESSES_MAX = 8
SETTLE_SECONDS = 1.0
DECIDING_TIMEOUT = 60.0
PREPARED_MAX = 100
WAL_LEVEL = "logical"  # for the coordinator's stream
RUN_MARGIN_SECONDS = 60.0

SYNC, CONTROL = "sync", "sync again"
DURABLE, VISIBLE = "qsync durable", "qsync visible"
#: The two statements, which wait for the quorum as COMMIT does: the least cost of any protocol.
TWO_PHASE_SYNC = "two-phase, sync"
TWO_PHASE, LOCAL = "two-phase, no quorum", "local only"
TPS_RATIO_MIN = 0.6
#: The time until a quorum has PREPARE, minus a commit of the reference, which also waits.
WAIT_MORE_MS_MAX = 1.0
WAIT_CLIENTS = 8
COLUMNS = (
    "clients",
    "setup",
    "TPS",
    "TPS / sync",
    "end p50 ms",
    "end p99 ms",
    "wait p50 ms",
    "wait p99 ms",
    "us a transaction: clients",
    "proposer",
    "safekeepers",
)


@dataclass(frozen=True, slots=True)
class QsyncSample:
    """One measurement. The end lasts from the last statement to the outcome. The wait is its part
    in WAIT_LSN, until a quorum has PREPARE; 0 without one. Processor times are per transaction."""

    setup: str
    clients: int
    round: int
    tps: float
    end_p50_ms: float
    end_p99_ms: float
    wait_p50_ms: float
    wait_p99_ms: float
    clients_us: float
    proposer_us: float
    safekeepers_us: float


class Measured:
    """A setup, and the way in which its transactions end."""

    def __init__(self, name: str, setup: Setup, mode: str) -> None:
        self.name = name
        self.setup = setup
        self.mode = mode

    @property
    def coordinator(self) -> str:
        return self.setup.address if isinstance(self.setup, QsyncQuorum) else ""


class QsyncQuorum(SafekeeperQuorum):
    """Commits do not wait in the server; clients ask the coordinator for a quorum."""

    standby_names = ""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.address = ""

    def new_proposer(
        self, primary: Primary, directory: Path, arguments: Sequence[str] = ()
    ) -> ProposerProcess:
        port = free_port()
        self.address = f"{primary.network.address(PROPOSER)}:{port}"
        coordinator = ("--qsync", f"{LOOPBACK}:{port}")  # becomes the proposer's address there
        return super().new_proposer(primary, directory, [*arguments, *coordinator])

    def wait_ready(self, primary: Primary) -> None:
        proposer = self.proposer
        assert proposer is not None
        proposer.wait_streaming(ATTACH_TIMEOUT)  # no commit has waited for it
        super().wait_ready(primary)
        wait_until(
            lambda: proposer.status()["qsync"]["refuses"] is None,
            DECIDING_TIMEOUT,
            "the coordinator to admit transactions",
        )


def measured() -> list[Measured]:
    """In the order of the table."""
    return [
        Measured(SYNC, SafekeeperQuorum(SYNC), "commit"),
        Measured(CONTROL, SafekeeperQuorum(CONTROL), "commit"),
        Measured(DURABLE, QsyncQuorum(DURABLE), "durable"),
        Measured(VISIBLE, QsyncQuorum(VISIBLE), "visible"),
        Measured(TWO_PHASE_SYNC, SafekeeperQuorum(TWO_PHASE_SYNC), "two_phase"),
        Measured(TWO_PHASE, LocalOnly(TWO_PHASE), "two_phase"),
        Measured(LOCAL, LocalOnly(LOCAL), "commit"),
    ]


def measure(
    primary: Primary, directory: Path, clients: Sequence[int], rounds: int, seconds: int
) -> Iterator[QsyncSample]:
    """Yields each sample when it is taken. A round measures all setups with the same clients."""
    pgbench.initialize(primary.postgres, SCALE)
    primary.execute("CHECKPOINT")
    pgbench.run(primary.postgres, WARM_UP_CLIENTS, WARM_UP_SECONDS)
    for count in clients:
        for number, each in interleaved(measured(), rounds):
            with attached(primary, each.setup, directory / "copies"):
                yield _sample(primary, each, count, number, seconds)


def _sample(
    primary: Primary, each: Measured, clients: int, number: int, seconds: int
) -> QsyncSample:
    run_load(primary, each, clients, SETTLE_SECONDS)
    before = _usage(each.setup)
    results = run_load(primary, each, clients, seconds)
    used = {kind: usage - before[kind] for kind, usage in _usage(each.setup).items()}
    count = sum(len(result.total_us) for result in results)
    ends = sorted(us for result in results for us in result.end_us)
    waits = sorted(us for result in results for us in result.wait_us) or [0]
    return QsyncSample(
        setup=each.name,
        clients=clients,
        round=number,
        tps=count / seconds,
        end_p50_ms=ends[len(ends) // 2] / 1000,
        end_p99_ms=ends[len(ends) * 99 // 100] / 1000,
        wait_p50_ms=waits[len(waits) // 2] / 1000,
        wait_p99_ms=waits[len(waits) * 99 // 100] / 1000,
        clients_us=sum(result.cpu_seconds for result in results) * 1e6 / count,
        proposer_us=used["proposer"].cpu_seconds * 1e6 / count,
        safekeepers_us=used["safekeeper"].cpu_seconds * 1e6 / count,
    )


def run_load(primary: Primary, each: Measured, clients: int, seconds: float) -> list[LoadResult]:
    """Starts all processes of clients at the same moment."""
    processes = min(clients, PROCESSES_MAX)
    counts = [clients // processes + (n < clients % processes) for n in range(processes)]
    with ExitStack() as stack:
        running = [
            stack.enter_context(
                subprocess.Popen(
                    [
                        *(sys.executable, "-m", "benchmarks.qsync_load", each.mode),
                        *(primary.postgres.dsn(), each.coordinator or "none:1"),
                        *map(str, (count, seconds, SCALE, number)),
                    ],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                )
            )
            for number, count in enumerate(counts)
        ]
        for process in running:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
        for process in running:
            assert process.stdin is not None
            process.stdin.write(b"go\n")
            process.stdin.flush()
        outputs = [process.communicate(timeout=seconds + RUN_MARGIN_SECONDS) for process in running]
    return [msgspec.json.decode(output, type=LoadResult) for output, _ in outputs]


def _usage(setup: Setup) -> dict[str, Usage]:
    """The usage of each kind of process."""
    found = {"proposer": Usage(0, 0, 0), "safekeeper": Usage(0, 0, 0)}
    for process in setup.processes:
        found[process.name.split()[0]] += read_usage([process.pid])
    return found


def table(samples: Sequence[QsyncSample]) -> list[list[str]]:
    """Medians, and the spread of the ratios to the reference in the same round."""
    rows = [list(COLUMNS)]
    for clients in dict.fromkeys(s.clients for s in samples):
        alike = [s for s in samples if s.clients == clients]
        for setup in dict.fromkeys(s.setup for s in samples):
            own = samples_of(alike, setup)
            ratio = paired_ratios(alike, "tps", setup, SYNC).format(2)

            def median(name: str, decimals: int, own: Sequence[QsyncSample] = own) -> str:
                value = Spread.of([getattr(sample, name) for sample in own]).median
                return f"{value:.{decimals}f}" if value else ""

            rows.append(
                [
                    *(str(clients), setup, median("tps", 0), ratio),
                    *(median(f"{what}_ms", 2) for what in ("end_p50", "end_p99")),
                    *(median(f"{what}_ms", 2) for what in ("wait_p50", "wait_p99")),
                    *(median(f"{who}_us", 0) for who in ("clients", "proposer", "safekeepers")),
                ]
            )
    return rows


def verdicts(samples: Sequence[QsyncSample]) -> list[Verdict]:
    """Throughput for each number of clients and setup, and the wait for each setup."""
    found = []
    for clients in dict.fromkeys(s.clients for s in samples):
        alike = [s for s in samples if s.clients == clients]
        control = paired_ratios(alike, "tps", CONTROL, SYNC)
        for setup in (DURABLE, VISIBLE):
            claim = f"{setup}: TPS >= {TPS_RATIO_MIN} x sync at {clients} clients"
            ratio = paired_ratios(alike, "tps", setup, SYNC)
            found.append(Verdict(claim, ratio, TPS_RATIO_MIN, True, control))
        if clients == WAIT_CLIENTS:
            found += [_verdict_of_wait(alike, setup) for setup in (DURABLE, VISIBLE)]
    return found


def _verdict_of_wait(samples: Sequence[QsyncSample], setup: str) -> Verdict:
    """The wait, compared with a whole commit through synchronous_standby_names in its round."""
    claim = f"{setup}: the wait is at most {WAIT_MORE_MS_MAX:g} ms longer than a commit of sync"
    more = paired_differences(samples, "wait_p50_ms", setup, SYNC, "end_p50_ms")
    control = paired_differences(samples, "end_p50_ms", CONTROL, SYNC)
    claim += f" at {WAIT_CLIENTS} clients"
    return Verdict(claim, more, WAIT_MORE_MS_MAX, False, control, " ms")
