"""Processes that are killed or frozen at random moments, alone and in pairs, under the ledger."""

from __future__ import annotations

import os
import secrets
import signal
import time
from collections.abc import Callable, Iterator
from itertools import combinations
from random import Random

from pending_commit import PendingCommit
from reckoning import TIMEOUT, assert_nothing_lost

from quorum_wal.cli.output import ExitCode
from quorum_wal.pg_fixtures.cluster import QuorumCluster
from quorum_wal.pg_fixtures.ledger import Ledger
from quorum_wal.pg_fixtures.waiting import wait_until

SECONDS_VARIABLE = "SK_CHAOS_SECONDS"
SEED_VARIABLE = "SK_CHAOS_SEED"
PAUSE_SECONDS_MAX = 0.5
COMMITS_BETWEEN_MAX = 60

POSTGRES = "postgres"
PROPOSER = "proposer"


class Killer:
    """kill -9 of some processes of a cluster at one moment, and the restarts of a supervisor."""

    def __init__(self, cluster: QuorumCluster, random: Random) -> None:
        self._cluster = cluster
        self._random = random
        self._services = {s.name: s for s in (cluster.proposer, *cluster.safekeepers)}
        self.names = [POSTGRES, *self._services]

    def victims(self) -> Iterator[tuple[str, ...]]:
        """Every process and every pair, in random order, repeatedly."""
        choices = [*combinations(self.names, 1), *combinations(self.names, 2)]
        while True:
            self._random.shuffle(choices)
            yield from choices

    def kill(self, names: tuple[str, ...]) -> None:
        services = [self._services[name] for name in names if name in self._services]
        for service in services:
            service.send_signal(signal.SIGKILL)
        if POSTGRES in names:
            self._cluster.postgres.crash()
        for service in services:
            service.kill()

    def restart(self, names: tuple[str, ...]) -> None:
        """In random order, each after its own pause; returns when commits can proceed."""
        for name in self._random.sample(names, len(names)):
            time.sleep(self._random.uniform(0, PAUSE_SECONDS_MAX))  # the length of the fault
            if name == POSTGRES:
                self._cluster.postgres.start()
            else:
                self._services[name].start()
        wait_until(self._is_streaming, TIMEOUT, f"streaming after the death of {names}")

    def _is_streaming(self) -> bool:
        """A proposer that started before the other processes is started again."""
        proposer = self._cluster.proposer
        if not proposer.alive:
            assert proposer.exit_code == ExitCode.UNREACHABLE, proposer.log_tail()
            proposer.start()
        return proposer.state == "streaming"


def test_nothing_is_lost_by_kill_9_of_any_process_or_pair(
    quorum_cluster: Callable[..., QuorumCluster], ledger_of: Callable[..., Ledger]
) -> None:
    seconds = float(os.environ.get(SECONDS_VARIABLE) or 20)
    seed = int(os.environ.get(SEED_VARIABLE) or secrets.randbelow(1 << 32))
    print(f"{SEED_VARIABLE}={seed}")
    random = Random(seed)
    cluster = quorum_cluster(wal_seg_size=1 << 20)
    ledger = ledger_of(cluster, clients=4)
    killer = Killer(cluster, random)
    deadline = time.monotonic() + seconds
    for names in killer.victims():
        if time.monotonic() > deadline:
            break
        ledger.wait_for_progress(random.randint(1, COMMITS_BETWEEN_MAX), TIMEOUT)
        print(f"{ledger.acknowledged} commits, killing {', '.join(names)}")
        killer.kill(names)
        killer.restart(names)
    assert_nothing_lost(cluster, ledger)


def test_nothing_is_lost_when_everything_is_killed_at_once(
    cluster: QuorumCluster, ledger: Ledger
) -> None:
    cluster.kill_all()
    cluster.start()
    assert_nothing_lost(cluster, ledger)


def test_every_process_ends_in_good_order_and_is_started_again(
    cluster: QuorumCluster, ledger: Ledger
) -> None:
    for service in (*cluster.safekeepers, cluster.proposer):
        assert service.terminate(TIMEOUT) == 0
        service.start()
        cluster.start()
        ledger.wait_for_progress(20, TIMEOUT)
        wait_until(
            lambda: cluster.proposer.status()["quorum"]["connected"] == 3, TIMEOUT, "all to be back"
        )
    assert_nothing_lost(cluster, ledger)


def test_one_frozen_safekeeper_delays_no_commit_and_catches_up(
    cluster: QuorumCluster, ledger: Ledger
) -> None:
    frozen = cluster.safekeepers[0]
    frozen.pause()
    ledger.wait_for_progress(100, TIMEOUT)
    frozen.resume()
    assert_nothing_lost(cluster, ledger)


def test_two_frozen_safekeepers_hold_commits_until_one_continues(
    cluster: QuorumCluster, ledger: Ledger
) -> None:
    first, second, _ = cluster.safekeepers
    first.pause()
    second.pause()
    commit = PendingCommit(cluster.postgres)
    commit.wait_blocked(TIMEOUT)
    assert commit.is_blocked
    first.resume()
    commit.wait_returned(TIMEOUT)
    ledger.wait_for_progress(50, TIMEOUT)
    second.resume()
    assert_nothing_lost(cluster, ledger)
