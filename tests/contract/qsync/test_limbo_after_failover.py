"""Prepared transactions on a standby, after its promotion, and on the primary that was rewound.

shared ----------- lost        the old primary, which crashes with a tail that only it has
      \\-------------- new      its standby, promoted
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from two_phase import (
    LOCAL,
    MAJORS,
    TIMEOUT,
    Waiting,
    commit_sql,
    finish_all,
    limbo,
    make_commits_wait,
    prepare,
    sqlstate_of,
)

from quorum_wal.pg_fixtures.data_directory import DataDirectory
from quorum_wal.pg_fixtures.errors import ProcessEnded
from quorum_wal.pg_fixtures.postgres import Postgres
from quorum_wal.pg_fixtures.standby import SIGNAL_FILE, make_standby, wait_replayed
from quorum_wal.pg_server.account import server_account
from quorum_wal.pg_server.program import run_program

LOCK_TIMEOUT = "-c lock_timeout=200ms"
LOCK_NOT_AVAILABLE = "55P03"
#: More than the tail has.
XIDS = 5


@dataclass
class Pair:
    """`new` was promoted; `old` is down. `lost_xid`: of a committed transaction of the tail;
    `first_xids`: of the first transactions of the new one, which were rolled back."""

    old: Postgres
    new: Postgres
    lost_xid: int
    first_xids: list[int]


def follow(primary: Postgres, path: Path) -> Postgres:
    """A standby of it, not started."""
    return make_standby(primary, path, primary.dsn())


def spend_xid(postgres: Postgres, *, commits: bool) -> int:
    with postgres.connect(autocommit=False) as connection:
        row = connection.execute("SELECT pg_current_xact_id()::text::bigint").fetchone()
        assert row is not None
        if not commits:
            connection.rollback()
    return int(row[0])


@pytest.fixture(scope="module", params=MAJORS)
def pair(request: pytest.FixtureRequest, make_server: Callable[[int], Postgres]) -> Iterator[Pair]:
    with ExitStack() as servers:
        old = servers.enter_context(make_server(request.param))
        old.execute("CREATE TABLE t (a int)")
        prepare(old, "checkpointed")
        old.execute("CHECKPOINT")
        prepare(old, "shared", "INSERT INTO t VALUES (2)")
        new = follow(old, old.data_dir.with_name("standby"))
        servers.push(new)
        new.start()
        wait_replayed(new, old.flush_lsn(), TIMEOUT)
        new.stop()
        prepare(old, "lost")
        lost_xid = spend_xid(old, commits=True)
        old.execute("CHECKPOINT")
        old.crash()
        new.start()
        assert new.execute("SELECT pg_promote()") == [(True,)]
        yield Pair(old, new, lost_xid, [spend_xid(new, commits=False) for _ in range(XIDS)])


def test_after_a_promotion_the_limbo_is_that_of_the_log_without_the_tail(
    pair: Pair,
) -> None:
    found = pair.new.execute("SELECT gid, owner, database FROM pg_prepared_xacts ORDER BY gid")
    assert found == [
        ("checkpointed", "postgres", "postgres"),
        ("shared", "postgres", "postgres"),
    ]


def test_an_xid_of_the_tail_is_assigned_again_and_has_the_status_of_another_transaction(
    pair: Pair,
) -> None:
    """So pg_xact_status() of an xid proves nothing if the log diverged before its transaction."""
    assert pair.lost_xid in pair.first_xids
    status = pair.new.execute("SELECT pg_xact_status(%s::text::xid8)", (pair.lost_xid,))
    assert status == [("aborted",)]


def test_finishing_before_the_proposer_is_attached_waits_unless_it_is_local(pair: Pair) -> None:
    """The new primary has the synchronous_standby_names of the old one, and no standby."""
    make_commits_wait(pair.new)
    try:
        prepare(pair.new, "waits")
        prepare(pair.new, "local")
        waiting = Waiting(pair.new, commit_sql("waits"))
        waiting.wait_for("SyncRep")
        pair.new.execute(commit_sql("local"), options=LOCAL)
        assert "local" not in limbo(pair.new)
        waiting.cancel()
        waiting.wait_ended()
    finally:
        pair.new.configure(synchronous_standby_names=None)


def test_a_rewound_primary_has_the_limbo_of_the_new_log(pair: Pair) -> None:
    """pg_rewind first recovers the crashed one, with its three prepared transactions, and then
    takes the state files of the new one. Transactions that only the tail had prepared are removed.
    """
    before = limbo(pair.new)
    pair.new.execute("CHECKPOINT")  # then its control file names the new timeline
    run_program(
        [
            pair.old.binaries.program("pg_rewind"),
            f"--target-pgdata={pair.old.data_dir}",
            f"--source-server={pair.new.dsn()}",
            "--no-sync",
        ],
        account=server_account(),
    )
    DataDirectory(pair.old.data_dir, pair.old.binaries).write(SIGNAL_FILE, "")
    pair.old.configure(primary_conninfo=pair.new.dsn())
    with pair.old as rewound:
        wait_replayed(rewound, pair.new.flush_lsn(), TIMEOUT)
        assert limbo(rewound) == set()
        assert rewound.execute("SELECT pg_promote()") == [(True,)]
        assert limbo(rewound) == before
        finish_all(rewound)


@pytest.fixture(scope="module", params=MAJORS)
def hot_standby(
    request: pytest.FixtureRequest, make_server: Callable[[int], Postgres]
) -> Iterator[tuple[Postgres, Postgres]]:
    """A primary, and its hot standby."""
    with make_server(request.param) as primary:
        primary.execute("CREATE TABLE t (a int)")
        primary.execute("CREATE TABLE altered (a int)")
        with follow(primary, primary.data_dir.with_name("standby")) as standby:
            yield primary, standby


def test_a_prepared_alteration_locks_its_table_on_standbys_until_its_end(
    hot_standby: tuple[Postgres, Postgres],
) -> None:
    """Queries of the table wait there; replay and all other queries continue."""
    primary, standby = hot_standby
    prepare(primary, "ddl", "ALTER TABLE altered ADD COLUMN b int")
    primary.execute("INSERT INTO t VALUES (1)")
    wait_replayed(standby, primary.flush_lsn(), TIMEOUT)
    assert limbo(standby) == set()
    query = "SELECT count(*) FROM altered"
    assert sqlstate_of(lambda: standby.execute(query, options=LOCK_TIMEOUT)) == LOCK_NOT_AVAILABLE
    assert standby.execute("SELECT count(*) > 0 FROM t") == [(True,)]
    waiting = Waiting(standby, query)
    waiting.wait_for("relation")
    primary.execute(commit_sql("ddl"))
    waiting.wait_ended()
    assert waiting.rows == [(0,)]


def test_a_standby_shows_no_limbo_and_finishes_nothing(
    hot_standby: tuple[Postgres, Postgres],
) -> None:
    primary, standby = hot_standby
    prepare(primary, "g")
    wait_replayed(standby, primary.flush_lsn(), TIMEOUT)
    assert limbo(standby) == set()
    assert sqlstate_of(lambda: standby.execute(commit_sql("g"))) == "25006"
    primary.execute(commit_sql("g"))


def test_a_standby_with_less_room_than_its_primary_does_not_start(
    hot_standby: tuple[Postgres, Postgres],
) -> None:
    """However few are prepared. A running one pauses its replay, if its primary returns with more
    room."""
    primary, _ = hot_standby
    path = primary.data_dir.with_name("small")
    small = make_standby(primary, path, primary.dsn(), max_prepared_transactions=3)
    with pytest.raises(ProcessEnded, match="max_prepared_transactions = 3 is a lower setting"):
        small.start()
