"""The messages of a logical two-phase slot about the limbo, and the waits of its creation."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest
from control_messages import (
    control_message,
    create_publication,
    create_slot,
    drop_slot,
    read_control,
    read_messages,
)
from two_phase import (
    LOCAL,
    TIMEOUT,
    Waiting,
    commit_sql,
    limbo,
    make_commits_wait,
    prepare,
    prepare_sql,
    rollback_sql,
)

from quorum_wal.pg_fixtures.postgres import Postgres
from quorum_wal.pg_fixtures.waiting import wait_until

SLOT = "observer"
LOCK_TIMEOUT_SECONDS = 0.3
CREATE_SLOT = "CREATE_REPLICATION_SLOT {} LOGICAL pgoutput (TWO_PHASE, SNAPSHOT 'nothing')"


@pytest.fixture
def slot(server: Postgres) -> Iterator[str]:
    create_slot(server, SLOT)
    yield SLOT
    drop_slot(server, SLOT)


def slots(server: Postgres) -> list[str]:
    return [name for (name,) in server.execute("SELECT slot_name FROM pg_replication_slots")]


def flush_lsn(server: Postgres) -> int:
    return int(server.flush_lsn())


def test_a_publication_of_no_table_gives_control_messages_of_all_prepared_ones(
    server: Postgres, slot: str
) -> None:
    """And none of plain commits. The message has the end of the PREPARE between the flush positions
    around it; COMMIT and ROLLBACK name the same xid."""
    server.execute("INSERT INTO t VALUES (1)")
    before_lsn = flush_lsn(server)
    prepare(server, "a")
    prepare(server, "b")
    after_lsn = flush_lsn(server)
    server.execute(commit_sql("a"))
    server.execute(rollback_sql("b"))
    server.execute("INSERT INTO t VALUES (1)")
    found = read_control(server, slot)
    told = [(message.kind, message.gid) for message in found]
    assert told == [("b", "a"), ("P", "a"), ("b", "b"), ("P", "b"), ("K", "a"), ("r", "b")]
    of_a, of_b = ([m for m in found if m.gid == gid] for gid in "ab")
    assert of_a[0].end_lsn == of_a[1].end_lsn
    assert of_b[0].end_lsn == of_b[1].end_lsn == of_b[2].end_lsn
    assert before_lsn < of_a[1].end_lsn < of_b[1].end_lsn <= after_lsn
    assert len({m.xid for m in of_a}) == len({m.xid for m in of_b}) == 1


def test_prepare_is_reported_before_any_standby_has_it(server: Postgres, slot: str) -> None:
    """So the stream never decides; the gid is still busy."""
    make_commits_wait(server)
    waiting = Waiting(server, prepare_sql("g"), "BEGIN", "INSERT INTO t VALUES (1)")
    waiting.wait_for("SyncRep")
    assert [message.kind for message in read_control(server, slot)] == ["b", "P"]
    waiting.cancel()
    waiting.wait_ended()


def test_acknowledged_messages_are_not_repeated(server: Postgres, slot: str) -> None:
    prepare(server, "g")
    assert [m.kind for m in read_control(server, slot, keeps=True)] == ["b", "P"]
    assert [m.kind for m in read_control(server, slot)] == ["b", "P"]
    assert read_control(server, slot) == []
    server.execute(commit_sql("g"))
    assert [m.kind for m in read_control(server, slot)] == ["K"]


def test_a_slot_of_two_phases_shows_them_to_a_client_of_the_first_protocol_version(
    server: Postgres, slot: str
) -> None:
    """That client does not know these messages, so a slot of ours serves no other client."""
    prepare(server, "g")
    server.execute(commit_sql("g"))
    messages = read_messages(server, slot, proto_version=1)
    assert [control_message(*message)[:2] for message in messages] == [
        ("b", "g"),
        ("P", "g"),
        ("K", "g"),
    ]


def test_a_one_phase_slot_reports_nothing_through_an_empty_publication(server: Postgres) -> None:
    create_slot(server, "plain", two_phase=False)
    try:
        prepare(server, "g")
        server.execute(commit_sql("g"))
        assert read_messages(server, "plain", proto_version=1) == []
    finally:
        drop_slot(server, "plain")


@pytest.mark.parametrize("finish_sql", [commit_sql, rollback_sql])
def test_the_creation_of_a_slot_hangs_while_anything_is_prepared(
    server: Postgres, finish_sql: object
) -> None:
    """Until it is finished; the view shows a slot meanwhile."""
    assert callable(finish_sql)
    prepare(server, "g")
    making = Waiting(server, CREATE_SLOT.format("late"), replication="database")
    making.wait_for("transactionid")
    assert slots(server) == ["late"]
    server.execute(finish_sql("g"))
    making.wait_ended()
    assert making.error is None
    drop_slot(server, "late")


def test_lock_timeout_ends_the_creation_and_leaves_nothing(server: Postgres) -> None:
    """So the race between reading an empty limbo and creating a slot costs no more than that."""
    prepare(server, "g")
    making = Waiting(
        server,
        CREATE_SLOT.format("late"),
        replication="database",
        options=f"-c lock_timeout={LOCK_TIMEOUT_SECONDS}s",
    )
    making.wait_ended()
    assert making.sqlstate == psycopg.errors.LockNotAvailable.sqlstate
    wait_until(lambda: slots(server) == [], TIMEOUT, "the slot to go")


def test_the_limbo_of_another_database_is_not_reported(server: Postgres, slot: str) -> None:
    """But the creation of a slot waits for it, too."""
    server.execute("CREATE DATABASE other")
    try:
        with server.connect(dbname="other", options=LOCAL) as connection:
            connection.execute("BEGIN")
            connection.execute("CREATE TABLE o (a int)")
            connection.execute(prepare_sql("of other"))
        assert limbo(server) == {"of other"}
        assert read_control(server, slot) == []
        making = Waiting(server, CREATE_SLOT.format("late"), replication="database")
        making.wait_for("transactionid")
        server.execute(rollback_sql("of other"), dbname="other")
        making.wait_ended()
        drop_slot(server, "late")
        assert read_control(server, slot) == []
    finally:
        server.execute("DROP DATABASE other")


@pytest.mark.parametrize(
    ("finish_sql", "told"), [(commit_sql, ["b", "P", "K"]), (rollback_sql, ["r"])]
)
def test_what_was_prepared_before_two_phases_began_comes_with_its_end(
    server: Postgres, finish_sql: object, told: list[str]
) -> None:
    """Complete before a commit, and not at all before a rollback. A one-phase slot that is changed
    to two phases has them from then on."""
    assert callable(finish_sql)
    create_slot(server, "plain", two_phase=False)
    try:
        prepare(server, "early")
        assert read_messages(server, "plain", proto_version=1) == []
        assert read_control(server, "plain") == []
        server.execute(finish_sql("early"))
        assert [m.kind for m in read_control(server, "plain")] == told
    finally:
        drop_slot(server, "plain")


@pytest.mark.parametrize("shared_server", [18], indirect=True)
def test_a_failover_slot_shows_a_prepare_only_when_the_named_slot_has_it(
    server: Postgres,
) -> None:
    """`synchronized_standby_slots` of version 17 and newer: a PREPARE in the stream then shows that
    the owners of those slots have it. Only their restart_lsn counts; they need no active client."""
    create_publication(server)
    server.execute("SELECT pg_create_physical_replication_slot('keeper', true)")
    with server.connect(replication="database") as connection:
        connection.execute(
            "CREATE_REPLICATION_SLOT held LOGICAL pgoutput"
            " (TWO_PHASE, FAILOVER, SNAPSHOT 'nothing')"
        )
    server.configure(synchronized_standby_slots="keeper")
    try:
        prepare(server, "g")
        reading = Waiting(
            server,
            "SELECT chr(get_byte(data, 0)) FROM pg_logical_slot_peek_binary_changes('held', NULL,"
            " NULL, 'proto_version', '3', 'publication_names', 'nothing', 'two_phase', 'on')",
        )
        reading.wait_for("WaitForStandbyConfirmation")
        end_lsn = str(server.flush_lsn())
        server.execute("SELECT pg_replication_slot_advance('keeper', %s)", (end_lsn,))
        reading.wait_ended()
        assert reading.rows == [("b",), ("P",)]
    finally:
        server.configure(synchronized_standby_slots=None)
        drop_slot(server, "held")
        drop_slot(server, "keeper")
