"""Each state of a cluster, and the output of `sk status --primary` for it.

Real faults cause each state and are undone again. The test checks the verdict, the exit code, and
the text that names the part.
"""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from sk_command import sk
from test_cli_protection import altered, receiver
from workload import write_wal

from quorum_wal.cluster.verdict import LOST_FOR_GOOD
from quorum_wal.pg_fixtures.cluster import QuorumCluster
from quorum_wal.pg_fixtures.process_table import family, signal_entry
from quorum_wal.pg_fixtures.safekeeper import SafekeeperProcess
from quorum_wal.pg_fixtures.waiting import wait_until
from quorum_wal.pg_server.errors import DeadlineExceeded

TIMEOUT = 120.0

State = Callable[[QuorumCluster, Path], AbstractContextManager[None]]


@contextmanager
def healthy(cluster: QuorumCluster, folder: Path) -> Iterator[None]:
    yield


@contextmanager
def one_member_down(cluster: QuorumCluster, folder: Path) -> Iterator[None]:
    cluster.safekeepers[2].kill()
    yield


@contextmanager
def two_members_down(cluster: QuorumCluster, folder: Path) -> Iterator[None]:
    for safekeeper in cluster.safekeepers[1:]:
        safekeeper.kill()
    yield


@contextmanager
def proposer_down(cluster: QuorumCluster, folder: Path) -> Iterator[None]:
    cluster.proposer.kill()
    yield


@contextmanager
def proposer_hung(cluster: QuorumCluster, folder: Path) -> Iterator[None]:
    cluster.proposer.pause()
    try:
        yield
    finally:
        cluster.proposer.resume()


@contextmanager
def primary_down(cluster: QuorumCluster, folder: Path) -> Iterator[None]:
    cluster.postgres.crash()
    yield


@contextmanager
def primary_hung(cluster: QuorumCluster, folder: Path) -> Iterator[None]:
    processes = family(cluster.postgres.pid)
    for process in processes:
        signal_entry(process, signal.SIGSTOP)
    try:
        yield
    finally:
        for process in reversed(processes):
            signal_entry(process, signal.SIGCONT)


@contextmanager
def no_standby_names(cluster: QuorumCluster, folder: Path) -> Iterator[None]:
    with altered(cluster.postgres, "synchronous_standby_names", ""):
        yield


@contextmanager
def another_client_in_the_seat(cluster: QuorumCluster, folder: Path) -> Iterator[None]:
    with receiver(cluster, folder / "seat", "walproposer"):
        cluster.proposer.kill()
        yield


@contextmanager
def without_its_folder(victim: SafekeeperProcess, folder: Path) -> Iterator[None]:
    victim.kill()
    victim.data_dir.rename(folder / "data")
    yield
    victim.kill()
    victim.data_dir.rename(folder / "emptied")
    (folder / "data").rename(victim.data_dir)
    victim.start()


@contextmanager
def member_lost_its_data(cluster: QuorumCluster, folder: Path) -> Iterator[None]:
    victim = cluster.safekeepers[1]
    with without_its_folder(victim, folder):
        victim.start()
        yield


@contextmanager
def member_damaged(cluster: QuorumCluster, folder: Path) -> Iterator[None]:
    victim = cluster.safekeepers[1]
    victim.kill()
    (control,) = victim.data_dir.glob("timelines/*/control")
    before = control.read_bytes()
    control.write_bytes(before[:-1] + bytes([before[-1] ^ 1]))
    victim.start()
    yield
    victim.kill()
    control.write_bytes(before)
    victim.start()


@contextmanager
def disk_full(cluster: QuorumCluster, folder: Path) -> Iterator[None]:
    """More space must stay free than exists."""
    victim, reserve = cluster.safekeepers[1], ["--disk-reserve", "1000TB"]
    victim.kill()
    victim.program += reserve
    victim.start()
    victim.wait_ready()
    write_wal(cluster.postgres, megabytes=3)
    yield
    victim.kill()
    del victim.program[-len(reserve) :]
    victim.start()


EACH = "is unreachable since .* UTC: start it"
REPLACED = ", or sk member replace 3 NEWADDR"
STATES: list[tuple[State, int, str]] = [
    (healthy, 0, "OK: commits proceed, 3 of 3 safekeepers"),
    (
        one_member_down,
        0,
        rf"DEGRADED: commits proceed with 2 of 3 safekeepers; safekeeper 3 \(.*\) {EACH}{REPLACED}",
    ),
    (
        two_members_down,
        3,
        "BLOCKED: commits wait since .* UTC: 1 of 3 safekeepers follow, 2 are needed; safekeeper 2 "
        rf".* {EACH}; safekeeper 3 .* {EACH}; {LOST_FOR_GOOD}",  # a replacement would be refused
    ),
    (
        proposer_down,
        3,
        r"NO PROPOSER: no proposer is connected \(the last election was .*\): run sk attach for "
        "its primary or, if the primary is lost, sk promote for a standby",
    ),
    (
        proposer_hung,
        3,
        r"HUNG: proposer .* is connected to 3 of 3 safekeepers, but silent for \d+ s, and cannot "
        "be asked: .*; commits wait: restart it",
    ),
    (primary_down, 3, r"NO PRIMARY: proposer .* waits for the primary: .*; start the primary"),
    (
        primary_hung,
        3,
        r"HUNG: the primary \(.*\) is connected to proposer .*, but silent for \d+ s: look at the "
        "primary",
    ),
    (
        no_standby_names,
        3,
        "UNPROTECTED: commits return without the quorum: synchronous_standby_names: empty: commits "
        "return with one copy, on the primary: ALTER SYSTEM SET .*;",
    ),
    (
        another_client_in_the_seat,
        3,
        r'UNPROTECTED: commits return without the quorum: .* "walproposer" \(pid \d+, role '
        r"postgres, from 127\.0\.0\.1\), which is not our proposer, confirms commits .*; also, "
        "NO PROPOSER: .*",
    ),
    (
        member_lost_its_data,
        0,
        r"DEGRADED: .* safekeeper 2 \(.*\) lost its data: sk member replace 2 NEWADDR",
    ),
    (member_damaged, 0, r"DEGRADED: .* safekeeper 2 \(.*\) is damaged, .*: .*"),
    (
        disk_full,
        0,
        r"DEGRADED: .* safekeeper 2 \(.*\) stopped this timeline: .*No space left on device.*: "
        "free some space",
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("state", "code", "verdict"), STATES, ids=[state.__name__ for state, _, _ in STATES]
)
def test_the_verdict_of_each_state(
    cluster: QuorumCluster, tmp_path: Path, state: State, code: int, verdict: str
) -> None:
    addresses = ",".join(safekeeper.address for safekeeper in cluster.safekeepers)
    status = ("status", "--safekeepers", addresses, "--primary", cluster.postgres.dsn(), "--json")
    said: list[str] = []

    def is_told() -> bool:
        done = sk(*status)
        (timeline,) = json.loads(done.stdout)["timelines"]
        said.append(f"{done.returncode} {timeline['verdict']}")
        return re.fullmatch(f"{code} {verdict}", said[-1]) is not None

    with state(cluster, tmp_path):
        try:
            wait_until(is_told, TIMEOUT, verdict)
        except DeadlineExceeded:
            pytest.fail(f"sk status says: {said[-1]}")
