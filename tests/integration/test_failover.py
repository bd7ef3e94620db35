"""The primary is lost at a random moment, `sk promote` runs, and nothing acknowledged is lost.

SK_FAILOVER_RUNS says how often; each run prints its seed, and SK_FAILOVER_SEED repeats one.
"""

from __future__ import annotations

import os
import random
import secrets
from collections.abc import Callable

import pytest
from failover_world import TIMEOUT, FailoverWorld, Loss
from pending_commit import PendingCommit

from quorum_wal.cli.output import ExitCode
from quorum_wal.pg_fixtures.ledger import Ledger
from quorum_wal.pg_fixtures.postgres import Postgres

CLIENTS = 4
ROWS_BEFORE_MAX = 300
ROWS_AFTER = 50
RUNS = int(os.environ.get("SK_FAILOVER_RUNS", "4"))
SEED = os.environ.get("SK_FAILOVER_SEED", "")

DUPLICATES = "SELECT client, seq FROM ledger GROUP BY client, seq HAVING count(*) > 1"


@pytest.mark.parametrize("run", range(RUNS))
def test_nothing_acknowledged_is_lost(
    failover_world: Callable[[], FailoverWorld], run: int
) -> None:
    seed = int(SEED) if SEED else secrets.randbits(32)
    loss = list(Loss)[run % len(Loss)]
    print(f"SK_FAILOVER_SEED={seed}: {loss.value}")
    rng = random.Random(seed)
    world = failover_world()
    with Ledger(world.clients_dsn, clients=CLIENTS, seed=seed) as ledger:
        ledger.wait_for_progress(rng.randrange(1, ROWS_BEFORE_MAX), TIMEOUT)
        world.lose(loss)
        with world.promotion() as promotion:
            promotion.wait_streaming(TIMEOUT)
            ledger.wait_for_progress(ROWS_AFTER, TIMEOUT)
            assert_fenced(world, loss)
            ledger.wait_for_progress(ROWS_AFTER, TIMEOUT)
            assert_complete(ledger, world.standby)
            assert "Traceback" not in promotion.log_text()


def assert_fenced(world: FailoverWorld, loss: Loss) -> None:
    """The old primary commits nothing more, whether it is cut off or returns."""
    old, proposer = world.cluster.postgres, world.cluster.proposer
    if loss is not Loss.CUT_OFF:
        old.start()
    pending = PendingCommit(old)
    pending.wait_blocked(TIMEOUT)
    for proxy in world.cluster.proxies:
        proxy.restore()
    if loss is Loss.MACHINE:
        proposer.start()  # as a supervisor would; the safekeepers have another timeline by now
        assert proposer.wait(TIMEOUT) == ExitCode.FAILED
        assert "lacks acknowledged commits" in proposer.log_text()
    else:
        assert proposer.wait(TIMEOUT) == ExitCode.FENCED
    assert pending.is_blocked


def assert_complete(ledger: Ledger, primary: Postgres) -> None:
    """Every acknowledged row exists exactly once, also if no index is used."""
    ledger.pause()
    ledger.wait_idle(TIMEOUT)
    report = ledger.verify(primary.dsn())
    assert report.ok, report
    assert report.found == report.acknowledged > ROWS_AFTER
    assert primary.execute(DUPLICATES, options="-c enable_indexscan=off") == []
