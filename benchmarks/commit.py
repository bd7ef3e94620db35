"""`commit`: throughput and latency of small commits that wait for a quorum.

Four setups on one Postgres, one attached at a time: ours, the peer, the peer once more (the
control), and no synchronous standby at all (what the machine can do).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks import pgbench
from benchmarks.primary import Primary
from benchmarks.rounds import Spread, Verdict, interleaved, paired_ratios, samples_of
from benchmarks.setups import LocalOnly, ReceiveWalQuorum, SafekeeperQuorum, Setup, attached
from benchmarks.usage import read_usage

SCALE = 20
CLIENTS = (1, 8, 32)
# The first change of a page after a checkpoint logs all of it; after this nearly all are done.
WARM_UP_SECONDS = 20
WARM_UP_CLIENTS = 8
# A first second of prepared statements, cold caches and new segments, not measured.
SETTLE_SECONDS = 1

OURS, PEER, CONTROL, LOCAL, OTHER = "ours", "peer", "peer again", "local only", "other"
COLUMNS = (
    "clients",
    "setup",
    "TPS",
    "TPS / peer",
    "p50 ms",
    "p99 ms",
    "p99 / peer",
    "CPU us/commit",
    "switches/commit",
)
TPS_RATIO_MIN = {1: 0.9}
TPS_RATIO_MIN_CONCURRENT = 1.0
P99_RATIO_MAX = 1.0


@dataclass(frozen=True, slots=True)
class CommitSample:
    """One measurement. `cpu_us` and `switches` are per commit, of all that is not a backend: the
    walsenders, and the receivers or the proposer and its safekeepers."""

    setup: str
    clients: int
    round: int
    tps: float
    p50_ms: float
    p99_ms: float
    cpu_us: float
    switches: float


def setups(checkout: Path | None) -> list[Setup]:
    """In the order of the table. With `checkout`, ours of that one too."""
    return [
        SafekeeperQuorum(OURS),
        ReceiveWalQuorum(PEER),
        ReceiveWalQuorum(CONTROL),
        LocalOnly(LOCAL),
        *([SafekeeperQuorum(OTHER, checkout)] if checkout is not None else []),
    ]


def measure(
    primary: Primary,
    directory: Path,
    measured: Sequence[Setup],
    clients: Sequence[int],
    rounds: int,
    seconds: int,
) -> Iterator[CommitSample]:
    """Samples as they are taken; a round measures all setups with the same number of clients."""
    pgbench.initialize(primary.postgres, SCALE)
    primary.execute("CHECKPOINT")
    pgbench.run(primary.postgres, WARM_UP_CLIENTS, WARM_UP_SECONDS)
    for count in clients:
        for number, setup in interleaved(measured, rounds):
            with attached(primary, setup, directory / "copies"):
                yield _sample(primary, setup, count, number, seconds)


def _sample(
    primary: Primary, setup: Setup, clients: int, number: int, seconds: int
) -> CommitSample:
    pgbench.run(primary.postgres, clients, SETTLE_SECONDS)
    pids = [*primary.walsender_pids(), *(process.pid for process in setup.processes)]
    before = read_usage(pids)
    result = pgbench.run(primary.postgres, clients, seconds)
    used = read_usage(pids) - before
    return CommitSample(
        setup=setup.name,
        clients=clients,
        round=number,
        tps=result.tps,
        p50_ms=result.p50_ms,
        p99_ms=result.p99_ms,
        cpu_us=used.cpu_seconds * 1e6 / result.transactions,
        switches=used.context_switches / result.transactions,
    )


def table(samples: Sequence[CommitSample]) -> list[list[str]]:
    """Medians of each setup, and the spread of its ratios to the peer of the same round."""
    rows = [list(COLUMNS)]
    for clients in dict.fromkeys(s.clients for s in samples):
        alike = [s for s in samples if s.clients == clients]
        for setup in dict.fromkeys(s.setup for s in samples):
            own = samples_of(alike, setup)
            medians = (
                Spread.of([getattr(s, name) for s in own]).median
                for name in ("tps", "p50_ms", "p99_ms", "cpu_us", "switches")
            )
            tps, p50, p99, cpu, switches = medians
            tps_ratio, p99_ratio = (
                paired_ratios(alike, name, setup, PEER).format(2) for name in ("tps", "p99_ms")
            )
            row = [str(clients), setup, f"{tps:.0f}", tps_ratio, f"{p50:.2f}", f"{p99:.2f}"]
            rows.append([*row, p99_ratio, f"{cpu:.0f}", f"{switches:.1f}"])
    return rows


def verdicts(samples: Sequence[CommitSample]) -> list[Verdict]:
    """Two a number of clients: throughput, and latency where it hurts."""
    found = []
    for clients in dict.fromkeys(s.clients for s in samples):
        alike = [s for s in samples if s.clients == clients]
        limit = TPS_RATIO_MIN.get(clients, TPS_RATIO_MIN_CONCURRENT)
        for name, words, bound, at_least in (
            ("tps", f"TPS >= {limit} x peer", limit, True),
            ("p99_ms", f"p99 <= {P99_RATIO_MAX} x peer", P99_RATIO_MAX, False),
        ):
            measured = paired_ratios(alike, name, OURS, PEER)
            control = paired_ratios(alike, name, CONTROL, PEER)
            claim = f"{words} at {clients} client{'s' if clients > 1 else ''}"
            found.append(Verdict(claim, measured, bound, at_least, control))
    return found
