"""`commit`: throughput and latency of small commits that wait for a quorum.

Four setups on one Postgres, one attached at a time: ours, the peer, the peer again (the control),
and no synchronous standby (the limit of the machine); optionally also ours without the compiled
module, and another checkout. All use the same network.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks import pgbench
from benchmarks.network import PRIMARY
from benchmarks.primary import Primary
from benchmarks.rounds import Spread, Verdict, interleaved, paired_ratios, samples_of
from benchmarks.setups import (
    CONTROL,
    LOCAL,
    OTHER,
    OURS,
    PEER,
    LocalOnly,
    ReceiveWalQuorum,
    SafekeeperQuorum,
    Setup,
    attached,
)
from benchmarks.usage import Usage, read_usage

SCALE = 20
CLIENTS = (1, 8, 32)
# The first change of a page after a checkpoint logs the whole page; the warm-up changes most pages.
WARM_UP_SECONDS = 20
WARM_UP_CLIENTS = 8
# The first second is not measured: prepared statements, cold caches and new segments.
SETTLE_SECONDS = 1

INTERPRETED = "ours, interpreted"
BESIDE = "ours, proposer on the primary's host"
WALSENDER = "walsender"
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
TPS_RATIO_MIN = 1.0
P99_RATIO_MAX = 1.0


@dataclass(frozen=True, slots=True)
class Part:
    """The usage of all processes of one kind."""

    processes: int
    used: Usage


@dataclass(frozen=True, slots=True)
class CommitSample:
    """One measurement. `cpu_us` and `switches` are per commit, of all processes but the backends:
    walsenders, and receivers or proposer and safekeepers. `parts` are by kind, and include the
    process of the network."""

    setup: str
    clients: int
    round: int
    tps: float
    p50_ms: float
    p99_ms: float
    cpu_us: float
    switches: float
    transactions: int
    parts: dict[str, Part]


def setups(checkout: Path | None, *, interpreted: bool, is_delayed: bool) -> list[Setup]:
    """In the order of the table. With `checkout` also ours of that checkout; with `interpreted`
    also ours without the compiled module. On a network with a delay also ours without a delay
    between primary and proposer, where each packet has as far to go as the peer's."""
    return [
        SafekeeperQuorum(OURS),
        *([SafekeeperQuorum(INTERPRETED, interpreted=True)] if interpreted else []),
        *([SafekeeperQuorum(BESIDE, proposer_node=PRIMARY)] if is_delayed else []),
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
    """Yields each sample when it is taken. A round measures all setups with the same clients."""
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
    processes = pids(primary, setup)
    before = {kind: read_usage(of_kind) for kind, of_kind in processes.items()}
    result = pgbench.run(primary.postgres, clients, seconds)
    parts = {
        kind: Part(len(of_kind), read_usage(of_kind) - before[kind])
        for kind, of_kind in processes.items()
    }
    network = {process.name for process in primary.network.processes}
    used = sum((part.used for kind, part in parts.items() if kind not in network), Usage(0, 0, 0))
    return CommitSample(
        setup=setup.name,
        clients=clients,
        round=number,
        tps=result.tps,
        p50_ms=result.p50_ms,
        p99_ms=result.p99_ms,
        cpu_us=used.cpu_seconds * 1e6 / result.transactions,
        switches=used.context_switches / result.transactions,
        transactions=result.transactions,
        parts=parts,
    )


def pids(primary: Primary, setup: Setup) -> dict[str, list[int]]:
    """By kind: the first word of a process name such as `safekeeper 1`."""
    found: dict[str, list[int]] = {}
    for process in setup.processes:
        found.setdefault(process.name.split()[0], []).append(process.pid)
    found |= {process.name: [process.pid] for process in primary.network.processes}
    walsenders = primary.walsender_pids()
    return found | ({WALSENDER: walsenders} if walsenders else {})


def table(samples: Sequence[CommitSample]) -> list[list[str]]:
    """Medians of each setup, and the spread of its ratios to the peer in the same round."""
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


def cpu_table(samples: Sequence[CommitSample]) -> list[list[str]]:
    """CPU time per commit of each kind of process, summed over all rounds: a tick of 10 ms is much
    longer than a commit."""
    kinds = list(dict.fromkeys(kind for sample in samples for kind in sample.parts))
    rows = [["clients", "setup", "commits", *kinds]]
    for clients in dict.fromkeys(s.clients for s in samples):
        for setup in dict.fromkeys(s.setup for s in samples):
            own = [s for s in samples_of(samples, setup) if s.clients == clients]
            commits = sum(s.transactions for s in own)
            cells = (_cpu_cell([s.parts[k] for s in own if k in s.parts], commits) for k in kinds)
            rows.append([str(clients), setup, str(commits), *cells])
    return rows


def _cpu_cell(parts: Sequence[Part], commits: int) -> str:
    """`52.3 + 31.0`, user and system time in us; `3 x (...)` is the mean of three processes."""
    if not parts:
        return ""
    used = sum((part.used for part in parts), Usage(0, 0, 0))
    count = parts[0].processes
    user, system = (
        seconds * 1e6 / commits / count for seconds in (used.user_seconds, used.sys_seconds)
    )
    text = f"{user:.1f} + {system:.1f}"
    return text if count == 1 else f"{count} x ({text})"


def verdicts(samples: Sequence[CommitSample]) -> list[Verdict]:
    """Two for each number of clients: throughput and p99 latency."""
    found = []
    for clients in dict.fromkeys(s.clients for s in samples):
        alike = [s for s in samples if s.clients == clients]
        for name, words, bound, at_least in (
            ("tps", f"TPS >= {TPS_RATIO_MIN} x peer", TPS_RATIO_MIN, True),
            ("p99_ms", f"p99 <= {P99_RATIO_MAX} x peer", P99_RATIO_MAX, False),
        ):
            measured = paired_ratios(alike, name, OURS, PEER)
            control = paired_ratios(alike, name, CONTROL, PEER)
            claim = f"{words} at {clients} client{'s' if clients > 1 else ''}"
            found.append(Verdict(claim, measured, bound, at_least, control))
    return found
