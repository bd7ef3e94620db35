"""How the coordinator reads the limbo, receives its changes, and finishes transactions, on real
servers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import psycopg
import pytest
from control_messages import drop_slot
from psycopg import sql
from two_phase import (
    BUSY,
    LOCAL,
    NOT_ALLOWED,
    TIMEOUT,
    UNKNOWN_GID,
    Waiting,
    commit_sql,
    limbo,
    make_commits_wait,
    prepare,
    prepare_sql,
    primary_of,
    rollback_sql,
)

from quorum_wal.pg_fixtures.postgres import Postgres
from quorum_wal.pg_fixtures.waiting import wait_until
from quorum_wal.pgwal.history import TimelineHistory
from quorum_wal.pgwal.lsn import Lsn
from quorum_wal.pgwire.logical import CommitPrepared, Prepare, RollbackPrepared
from quorum_wal.qsync.gid import Gid, Policy
from quorum_wal.walproposer.errors import Unreachable
from quorum_wal.walproposer.primary.logical_slots import drop_logical_slots
from quorum_wal.walproposer.primary.primary_address import PrimaryAddress
from quorum_wal.walproposer.qsync import limbo_stream
from quorum_wal.walproposer.qsync.finisher import Finisher
from quorum_wal.walproposer.qsync.limbo_events import Finish
from quorum_wal.walproposer.qsync.limbo_reader import LimboReader
from quorum_wal.walproposer.qsync.limbo_stream import LimboStream
from quorum_wal.walproposer.qsync.outcome_answer import XidStatus
from quorum_wal.walproposer.qsync.primary_session import PrimarySession

Message = Prepare | CommitPrepared | RollbackPrepared


def gid_of(xid: int) -> Gid:
    return Gid(Policy.DETACH, 1, 1, 1, xid, 1, "0" * 32)


def session_of(server: Postgres, database: str = "", user: str = "postgres") -> PrimarySession:
    return PrimarySession(PrimaryAddress(server.dsn(user=user)), primary_of(server), database)


def failed(bug: Exception) -> None:
    raise AssertionError from bug


# ---- reading


@pytest.fixture
def reader(server: Postgres) -> Iterator[LimboReader]:
    reader = LimboReader(session_of(server))
    yield reader
    reader.close()


def test_a_reading_lists_all_databases_between_two_flush_positions(
    server: Postgres, reader: LimboReader
) -> None:
    before_lsn = int(server.flush_lsn())
    prepare(server, "one")
    ((xid, prepared_at),) = server.execute(
        "SELECT transaction::text::bigint, prepared FROM pg_prepared_xacts"
    )
    reading = reader.read()
    (entry,) = reading.entries
    assert (entry.gid, entry.database, entry.owner) == ("one", "postgres", "postgres")
    assert entry.xid == xid
    ((microseconds,),) = server.execute(
        "SELECT (extract(epoch FROM %s - timestamptz '2000-01-01 00:00Z') * 1e6)::bigint",
        (prepared_at,),
    )
    assert entry.prepared_at_us == microseconds
    assert before_lsn < reading.flushed_before_lsn <= reading.flushed_after_lsn
    server.execute("CREATE DATABASE elsewhere")
    prepare_in(server, "elsewhere", "two")
    assert {(e.gid, e.database) for e in reader.read().entries} == {
        ("one", "postgres"),
        ("two", "elsewhere"),
    }
    server.execute(rollback_sql("two"), dbname="elsewhere")
    server.execute("DROP DATABASE elsewhere")


def prepare_in(server: Postgres, database: str, gid: str) -> None:
    with server.connect(dbname=database, options=LOCAL) as connection:
        connection.execute("BEGIN")
        connection.execute("SELECT pg_current_xact_id()")
        connection.execute(prepare_sql(gid))


def test_a_gid_that_is_not_valid_text_is_read(server: Postgres, reader: LimboReader) -> None:
    """In a database with the encoding SQL_ASCII a gid may be any bytes."""
    server.execute(
        "CREATE DATABASE ascii ENCODING 'SQL_ASCII' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0"
    )
    with server.connect(dbname="ascii", options=LOCAL) as connection:
        connection.execute("SET client_encoding = 'SQL_ASCII'")
        connection.execute("BEGIN")
        connection.execute("SELECT pg_current_xact_id()")
        connection.execute(b"PREPARE TRANSACTION 'odd \xff\xfe'")
        in_ascii = LimboReader(session_of(server, "ascii"))
        assert [e.gid for e in in_ascii.read().entries] == ["odd \udcff\udcfe"]
        in_ascii.close()
        connection.execute(b"ROLLBACK PREPARED 'odd \xff\xfe'")
    server.execute("DROP DATABASE ascii")


def test_a_transaction_is_asked_for(server: Postgres, reader: LimboReader) -> None:
    with server.connect() as connection:
        row = connection.execute("SELECT pg_current_xact_id()::text::bigint").fetchone()
        assert row is not None
        committed = gid_of(row[0])
    assert reader.ask(committed).xid_status is XidStatus.COMMITTED
    witness = reader.ask(gid_of((1 << 40) + 5))
    assert (witness.is_prepared, witness.xid_status) == (False, XidStatus.FUTURE)
    assert witness.flushed_lsn <= server.flush_lsn()
    with server.connect(options=LOCAL) as connection:
        connection.execute("BEGIN")
        row = connection.execute("SELECT pg_current_xact_id()::text::bigint").fetchone()
        assert row is not None
        gid = gid_of(row[0])
        assert reader.ask(gid).xid_status is XidStatus.IN_PROGRESS
        connection.execute(prepare_sql(str(gid)))
    witness = reader.ask(gid)
    assert (witness.is_prepared, witness.xid_status) == (True, XidStatus.IN_PROGRESS)
    server.execute(rollback_sql(str(gid)))
    witness = reader.ask(gid)
    assert (witness.is_prepared, witness.xid_status) == (False, XidStatus.ABORTED)


def test_a_server_on_another_timeline_is_not_asked(server: Postgres) -> None:
    primary = primary_of(server)
    system_id, start_us = primary.server.system_id, primary.start_us
    for other in (
        replace(primary, tli_history=TimelineHistory(2)),
        replace(primary, server=replace(primary.server, system_id=system_id + 1)),
        replace(primary, start_us=start_us + 1),
    ):
        session = PrimarySession(PrimaryAddress(server.dsn()), other)
        with pytest.raises(Unreachable, match="another server now"):
            LimboReader(session).read()


def test_a_connection_that_was_lost_is_opened_again(server: Postgres, reader: LimboReader) -> None:
    reader.read()
    server.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'sk_qsync'"
    )
    with pytest.raises(Unreachable):
        reader.read()
    reader.read()


# ---- finishing


class Finishing:
    """A finisher, and its answers."""

    def __init__(self, server: Postgres, user: str = "postgres") -> None:
        self.ends: list[tuple[str, str | None, int]] = []
        self.finisher = Finisher(
            lambda database: session_of(server, database, user), self._ended, failed
        )

    def _ended(self, order: Finish, sqlstate: str | None, end_lsn: int) -> None:
        self.ends.append((order.gid, sqlstate, end_lsn))

    def finish(
        self, gid: str, *, commit: bool = True, database: str = "postgres"
    ) -> tuple[str | None, int]:
        count = len(self.ends)
        self.finisher.finish(Finish(gid, database, commit))
        wait_until(lambda: len(self.ends) > count, TIMEOUT, "an answer")
        found, sqlstate, end_lsn = self.ends[-1]
        assert found == gid
        return sqlstate, end_lsn


def test_it_finishes_without_waiting_for_a_standby(server: Postgres) -> None:
    make_commits_wait(server)
    finishing = Finishing(server)
    for gid, commit in (("a", True), ("it's b", False)):
        prepare(server, gid)
        sqlstate, end_lsn = finishing.finish(gid, commit=commit)
        assert sqlstate is None
        assert 0 < end_lsn <= server.flush_lsn()
    assert limbo(server) == set()
    assert finishing.finish("a") == (UNKNOWN_GID, 0)
    finishing.finisher.close()


def test_a_busy_one_is_reported_as_busy(server: Postgres) -> None:
    make_commits_wait(server)
    waiting = Waiting(server, prepare_sql("g"), "BEGIN", "INSERT INTO t VALUES (1)")
    waiting.wait_for("SyncRep")
    finishing = Finishing(server)
    assert finishing.finish("g") == (BUSY, 0)
    waiting.cancel()
    waiting.wait_ended()
    assert finishing.finish("g")[0] is None
    finishing.finisher.close()


def test_a_member_of_the_owner_becomes_the_owner(server: Postgres) -> None:
    for role in ('"an owner"', "member", "nobodys"):
        server.execute(f"CREATE ROLE {role} LOGIN")
    server.execute('GRANT "an owner" TO member')
    with server.connect(user="an owner", options=LOCAL) as connection:
        connection.execute("BEGIN")
        connection.execute("SELECT pg_current_xact_id()")
        connection.execute(prepare_sql("g"))
    stranger = Finishing(server, "nobodys")
    assert stranger.finish("g") == (NOT_ALLOWED, 0)
    assert limbo(server) == {"g"}
    member = Finishing(server, "member")
    assert member.finish("g")[0] is None
    assert member.finish("g") == (UNKNOWN_GID, 0)
    for finishing in (stranger, member):
        finishing.finisher.close()


def test_an_unreachable_server_is_a_lost_connection(server: Postgres) -> None:
    finishing = Finishing(server)
    sqlstate, end_lsn = finishing.finish("g", database="nowhere")
    assert (sqlstate, end_lsn) == ("08006", 0)
    finishing.finisher.close()


# ---- the stream


class Listening:
    """A stream, and its messages."""

    def __init__(self, server: Postgres, database: str = "postgres") -> None:
        self.told: list[Message] = []
        self._server = server
        self.stream = LimboStream(
            PrimaryAddress(server.dsn()), session_of(server, database), database, self._tell, failed
        )

    def _tell(self, database: str, message: Message) -> None:
        assert database == self.stream.database
        self.told.append(message)

    def wait_state(self, state: str) -> None:
        wait_until(lambda: self.stream.state == state, TIMEOUT, f"{state}: {self.stream.state}")

    def wait_told(self, *kinds: type[Message]) -> None:
        wait_until(lambda: len(self.told) >= len(kinds), TIMEOUT, "a message")
        assert tuple(map(type, self.told)) == kinds

    def close(self) -> None:
        self.stream.close()
        self.wait_state("closed")


@pytest.fixture
def listen(server: Postgres) -> Iterator[Callable[[], Listening]]:
    streams: list[Listening] = []

    def make() -> Listening:
        streams.append(Listening(server))
        return streams[-1]

    yield make
    for each in streams:
        each.close()
    with server.connect() as connection:
        wait_until(
            lambda: drop_logical_slots(connection) or not slot_rows(server), TIMEOUT, "the slot"
        )


def slot_rows(server: Postgres) -> list[tuple[str, str]]:
    return server.execute(
        "SELECT slot_name::text, confirmed_flush_lsn::text FROM pg_replication_slots"
    )


def test_it_reports_the_exact_ends(server: Postgres, listen: Callable[[], Listening]) -> None:
    listening = listen()
    listening.wait_state("streaming")
    before_lsn = server.flush_lsn()
    prepare(server, "a")
    after_lsn = server.flush_lsn()
    prepare(server, "b")
    server.execute(commit_sql("a"))
    server.execute(rollback_sql("b"))
    listening.wait_told(Prepare, Prepare, CommitPrepared, RollbackPrepared)
    first = listening.told[0]
    assert isinstance(first, Prepare)
    assert before_lsn < first.end_lsn <= after_lsn


@pytest.mark.parametrize("messages_a_turn", [1, 2, 1000])
def test_it_loses_no_transaction_among_concurrent_ones(
    server: Postgres,
    listen: Callable[[], Listening],
    monkeypatch: pytest.MonkeyPatch,
    messages_a_turn: int,
) -> None:
    monkeypatch.setattr(limbo_stream, "MESSAGES_A_TURN", messages_a_turn)
    listening = listen()
    listening.wait_state("streaming")
    for number in range(10):
        prepare(server, f"{number}")
        server.execute(commit_sql(f"{number}"))
    listening.wait_told(*[Prepare, CommitPrepared] * 10)
    assert [message.gid for message in listening.told] == [f"{n // 2}" for n in range(20)]


def test_its_slot_is_created_while_nothing_is_prepared(
    server: Postgres, listen: Callable[[], Listening]
) -> None:
    prepare(server, "early")
    listening = listen()
    listening.wait_state("no stream yet: its slot is created while nothing is prepared")
    assert slot_rows(server) == []
    server.execute(commit_sql("early"))
    listening.wait_state("streaming")
    assert listening.told == []


def test_running_transactions_do_not_block_the_creation_without_end(
    server: Postgres, listen: Callable[[], Listening]
) -> None:
    """A transaction may prepare itself at that moment: the slot would wait for us."""
    with server.connect(options=LOCAL) as connection:
        connection.execute("BEGIN")
        connection.execute("INSERT INTO t VALUES (1)")
        listening = listen()
        listening.wait_state("no stream yet: its slot waits for open transactions")
        connection.execute(prepare_sql("g"))
    server.execute(rollback_sql("g"))
    listening.wait_state("streaming")


def test_an_existing_slot_is_used_at_once_and_reports_missed_changes(
    server: Postgres, listen: Callable[[], Listening]
) -> None:
    first = listen()
    first.wait_state("streaming")
    first.close()
    prepare(server, "missed")
    second = listen()
    second.wait_state("streaming")
    second.wait_told(Prepare)
    server.execute(commit_sql("missed"))
    second.wait_told(Prepare, CommitPrepared)


def test_an_idle_database_holds_no_wal(server: Postgres, listen: Callable[[], Listening]) -> None:
    """Its slot follows the writes of others: keepalives are acknowledged."""
    listening = listen()
    listening.wait_state("streaming")
    server.execute("INSERT INTO t VALUES (1)")
    lsn = server.flush_lsn()
    wait_until(
        lambda: [Lsn.parse(confirmed) >= lsn for _, confirmed in slot_rows(server)] == [True],
        TIMEOUT,
        "the slot to follow",
    )


def test_a_walsender_that_ends_is_followed_by_another(
    server: Postgres, listen: Callable[[], Listening]
) -> None:
    listening = listen()
    listening.wait_state("streaming")
    prepare(server, "a")
    listening.wait_told(Prepare)
    server.execute("SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots")
    prepare(server, "b")
    wait_until(
        lambda: {m.gid for m in listening.told if isinstance(m, Prepare)} == {"a", "b"},
        TIMEOUT,
        "b to be told",
    )
    for gid in ("a", "b"):
        server.execute(rollback_sql(gid))


def test_a_foreign_slot_is_not_touched(server: Postgres, listen: Callable[[], Listening]) -> None:
    ((oid,),) = server.execute("SELECT oid::text FROM pg_database WHERE datname = 'postgres'")
    slot = f"sk_qsync_{oid}"
    server.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (slot,))
    listening = listen()
    listening.wait_state(f"replication slot {slot} belongs to another program")
    listening.close()
    drop_slot(server, slot)


def test_without_wal_level_logical_it_reports_it(
    server: Postgres, listen: Callable[[], Listening]
) -> None:
    server.configure(wal_level="replica")
    server.restart()
    try:
        listen().wait_state("no stream: wal_level is replica")
    finally:
        server.configure(wal_level="logical")
        server.restart()


def test_a_name_is_quoted_where_it_must_be(server: Postgres) -> None:
    name = 'it\'s a "database"'
    server.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    prepare_in(server, name, "g")
    finishing = Finishing(server)
    assert finishing.finish("g", database=name)[0] is None
    finishing.finisher.close()
    wait_until(lambda: _drops(server, name), TIMEOUT, "the database to be dropped")


def _drops(server: Postgres, name: str) -> bool:
    try:
        server.execute(sql.SQL("DROP DATABASE {}").format(sql.Identifier(name)))
    except psycopg.errors.ObjectInUse:
        return False
    return True
