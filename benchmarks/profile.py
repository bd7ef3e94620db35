"""`profile`: how the microseconds of a commit are spent, by name, for ours and for the peer.

    perf record --call-graph --pid ... -> perf script -> a system call, or a library, of each sample

It samples the processor's clock. A sample in the kernel counts for the system call, including all
work of the kernel in it (waking up the receiver counts for `sendto`). Other samples count for the
file whose code ran. Needs `perf` and root.
"""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks import commit, pgbench
from benchmarks.primary import Primary
from benchmarks.rounds import Verdict, interleaved
from benchmarks.setups import OURS, PEER, ReceiveWalQuorum, SafekeeperQuorum, Setup, attached

SAMPLES_PER_SECOND = 4999
SYSTEM_CALL = "__x64_sys_"
KERNEL = "[kernel.kallsyms]"
COLUMNS = ("clients", "setup", "process", "us a commit", "parts of at least 0.3 us")
SHOWN_US_MIN = 0.3


@dataclass(frozen=True, slots=True)
class ProfileSample:
    """`parts` maps a kind of process to microseconds per commit and process, by name."""

    setup: str
    clients: int
    transactions: int
    parts: dict[str, dict[str, float]]


def setups() -> list[Setup]:
    return [SafekeeperQuorum(OURS), ReceiveWalQuorum(PEER)]


def measure(
    primary: Primary, directory: Path, clients: Sequence[int], rounds: int, seconds: int
) -> Iterator[ProfileSample]:
    """Yields each sample when it is taken."""
    pgbench.initialize(primary.postgres, commit.SCALE)
    primary.execute("CHECKPOINT")
    pgbench.run(primary.postgres, commit.WARM_UP_CLIENTS, commit.WARM_UP_SECONDS)
    for count in clients:
        for _, setup in interleaved(setups(), rounds):
            with attached(primary, setup, directory / "copies"):
                yield _sample(primary, setup, count, seconds, directory / "perf.data")


def _sample(
    primary: Primary, setup: Setup, clients: int, seconds: int, recorded: Path
) -> ProfileSample:
    pgbench.run(primary.postgres, clients, commit.SETTLE_SECONDS)
    pids = commit.pids(primary, setup)
    every = ",".join(str(pid) for of_kind in pids.values() for pid in of_kind)
    rate = str(SAMPLES_PER_SECOND)
    command = ["perf", "record", "-q", "-g", "-e", "cpu-clock", "-F", rate, "-o", str(recorded)]
    with subprocess.Popen([*command, "--pid", every]) as perf:
        result = pgbench.run(primary.postgres, clients, seconds)
        perf.terminate()
    counts = _counts(recorded)
    us = 1e6 / SAMPLES_PER_SECOND / result.transactions
    parts = {
        kind: {
            name: count * us / len(of_kind)
            for name, count in sum((counts[pid] for pid in of_kind), Counter()).items()
        }
        for kind, of_kind in pids.items()
        if all(pid in counts for pid in of_kind)
    }
    return ProfileSample(setup.name, clients, result.transactions, parts)


def _counts(recorded: Path) -> dict[int, Counter[str]]:
    """The number of samples by name, for each process."""
    fields = ("-F", "pid,ip,sym,dso")
    done = subprocess.run(
        ["perf", "script", "-i", str(recorded), *fields],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    counts: dict[int, Counter[str]] = {}
    for sample in done.stdout.strip("\n").split("\n\n"):
        pid, *frames = sample.strip("\n").splitlines()
        if frames:
            counts.setdefault(int(pid), Counter())[name_of(frames)] += 1
    return counts


def name_of(frames: Sequence[str]) -> str:
    """The name of one sample; the innermost frame is first: `address symbol+offset (file)`."""
    for frame in frames:
        symbol = frame.split()[1]
        if symbol.startswith(SYSTEM_CALL):
            return symbol.removeprefix(SYSTEM_CALL).partition("+")[0]
    file = frames[0].rpartition("(")[2].rstrip(")")
    return "kernel, in no call" if file == KERNEL else Path(file).name


def table(samples: Sequence[ProfileSample]) -> list[list[str]]:
    """One row for each kind of process, over all rounds."""
    rows = [list(COLUMNS)]
    for clients, setup in dict.fromkeys((each.clients, each.setup) for each in samples):
        same = [each for each in samples if (each.clients, each.setup) == (clients, setup)]
        for kind in same[0].parts:
            parts = [each.parts.get(kind, {}) for each in same]
            names = {name for part in parts for name in part}
            us = {name: sum(part.get(name, 0.0) for part in parts) / len(parts) for name in names}
            shown = sorted((n for n in us if us[n] >= SHOWN_US_MIN), key=lambda n: -us[n])
            listed = ", ".join(f"{name} {us[name]:.1f}" for name in shown)
            rows.append([str(clients), setup, kind, f"{sum(us.values()):.1f}", listed])
    return rows


def verdicts(_: Sequence[ProfileSample]) -> list[Verdict]:
    return []
