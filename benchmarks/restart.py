"""`restart`: the time without commits when one of our processes is killed and started again.

A safekeeper: from its start to its vote, with a log of a gigabyte whose end it must find. A
proposer: from its start to the return of a commit that was waiting for it, which takes an election,
the check of the primary and the first round trip. Both are killed, not stopped.

Then the longest time without a commit under clients: when the proposer is stopped and started again
as a service manager does, and when a successor takes over (`sk attach --take-over`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks import bulk_load
from benchmarks.ballot import request_vote
from benchmarks.primary import Primary
from benchmarks.rounds import Spread, Verdict
from benchmarks.setups import OURS, SafekeeperQuorum, attached
from quorum_wal.pg_fixtures.ledger import Ledger
from quorum_wal.pg_fixtures.safekeeper import SafekeeperProcess
from quorum_wal.pg_fixtures.waiting import wait_until
from quorum_wal.walproposer.errors import Unreachable
from quorum_wal.walproposer.safekeeper_client import SafekeeperAddress

VOTE, COMMIT = "safekeeper to its vote", "proposer to the first commit"
RESTART, TAKE_OVER = "proposer, restarted under 8 clients", "proposer, taken over under 8 clients"
#: Clients must wait for less than 0.3 s, also without a successor.
SECONDS_MAX = {VOTE: 1.0, COMMIT: 0.4, RESTART: 0.3, TAKE_OVER: 0.3}
CLIENTS = 8
ROWS = 2000
TIMEOUT = 60.0  # seconds
CONNECT_INTERVAL_SECONDS = 0.002


@dataclass(frozen=True, slots=True)
class RestartSample:
    """`seconds`: from the start of the process, or without a commit."""

    setup: str
    what: str
    round: int
    wal_bytes: int
    seconds: float


def measure(
    primary: Primary,
    directory: Path,
    checkouts: Mapping[str, Path | None],
    rounds: int,
    megabytes: int,
) -> Iterator[RestartSample]:
    """Yields each sample when it is taken. Each checkout has its own WAL. Another checkout is not
    asked for --take-over, which it may not have."""
    bulk_load.create_tables(primary)
    for name, checkout in checkouts.items():
        setup = SafekeeperQuorum(name, checkout)
        with attached(primary, setup, directory / "copies"):
            wal_bytes = bulk_load.load(primary, megabytes).wal_bytes
            setup.wait_ready(primary)
            for number in range(rounds):
                for what, seconds in _restart_all(primary, setup, directory / "copies"):
                    yield RestartSample(name, what, number, wal_bytes, seconds)
                setup.wait_ready(primary)
                for what in (RESTART, TAKE_OVER) if checkout is None else (RESTART,):
                    seconds = _seconds_without_commit(primary, setup, directory / "copies", what)
                    yield RestartSample(name, what, number, wal_bytes, seconds)


def _restart_all(
    primary: Primary, setup: SafekeeperQuorum, directory: Path
) -> Iterator[tuple[str, float]]:
    """Restarts each process once: (name, seconds)."""
    proposer = setup.proposer
    assert proposer is not None
    proposer.kill()
    for safekeeper in setup.safekeepers:
        yield VOTE, _seconds_to_vote(safekeeper)
    with primary.waiting_commit() as commit:
        start = prepare_proposer(primary, setup, directory)
        begun = time.perf_counter()
        start()
        commit.wait_returned(TIMEOUT)
        seconds = time.perf_counter() - begun
    yield COMMIT, seconds


def prepare_proposer(
    primary: Primary, setup: SafekeeperQuorum, directory: Path
) -> Callable[[], object]:
    """Starts a shell that becomes the new proposer of `setup` when the returned function is called.
    So the time that this process needs to start a process is not counted."""
    fifo = directory / "start"
    fifo.unlink(missing_ok=True)
    os.mkfifo(fifo)
    proposer = setup.proposer = setup.new_proposer(primary, directory)
    command = proposer.program
    proposer.program = ["/bin/sh", "-c", 'read line < "$0"; exec "$@"', str(fifo), *command]
    proposer.start()
    proposer.program = command
    return partial(fifo.write_text, "\n")


def _seconds_without_commit(
    primary: Primary, setup: SafekeeperQuorum, directory: Path, what: str
) -> float:
    """The longest time without a commit of a ledger's clients."""
    proposer = setup.proposer
    assert proposer is not None
    primary.execute("DROP TABLE IF EXISTS ledger")
    with Ledger(primary.postgres.dsn(), clients=CLIENTS, pause_seconds=0) as ledger:
        ledger.wait_for_progress(ROWS, TIMEOUT)
        if what == RESTART:
            start = prepare_proposer(primary, setup, directory)
            proposer.terminate(TIMEOUT)
            start()
        else:
            setup.proposer = setup.new_proposer(primary, directory, ["--take-over"])
            setup.proposer.start()
            proposer.wait(TIMEOUT)
        ledger.wait_for_progress(ROWS, TIMEOUT)
        seconds = ledger.longest_silence()
    setup.wait_ready(primary)
    return seconds


def _seconds_to_vote(safekeeper: SafekeeperProcess) -> float:
    status = safekeeper.timeline()
    assert status is not None
    address = SafekeeperAddress.parse(safekeeper.address)

    def granted() -> bool:
        try:
            return request_vote(address, status).granted
        except Unreachable:
            return False

    safekeeper.kill()
    begun = time.perf_counter()
    safekeeper.start()
    wait_until(granted, TIMEOUT, "a vote", interval=CONNECT_INTERVAL_SECONDS)
    return time.perf_counter() - begun


def table(samples: Sequence[RestartSample]) -> list[list[str]]:
    rows = [["setup", "restart of", "WAL MB", "seconds"]]
    for setup, what in dict.fromkeys((s.setup, s.what) for s in samples):
        own = [s for s in samples if (s.setup, s.what) == (setup, what)]
        seconds = Spread.of([s.seconds for s in own]).format(2)
        rows.append([setup, what, f"{own[0].wal_bytes / (1 << 20):.0f}", seconds])
    return rows


def verdicts(samples: Sequence[RestartSample]) -> list[Verdict]:
    return [
        Verdict(
            f"{what} < {limit:g} s",
            Spread.of([s.seconds for s in samples if (s.setup, s.what) == (OURS, what)]),
            limit,
            False,
            unit=" s",
        )
        for what, limit in SECONDS_MAX.items()
    ]
