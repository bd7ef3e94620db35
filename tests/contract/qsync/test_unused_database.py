"""A database that has used qsync can be dropped while a coordinator runs: its logical slot is
removed when nothing was prepared there for long, or when an administrator drops it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from queue import SimpleQueue

import psycopg
import pytest
from control_messages import drop_slot
from two_phase import LOCAL, TIMEOUT, commit_sql, prepare_sql, primary_of

from quorum_wal.consensus.ids import NodeId
from quorum_wal.pg_fixtures.postgres import Postgres
from quorum_wal.pg_fixtures.waiting import wait_until
from quorum_wal.qsync.gid import Gid, Policy
from quorum_wal.walproposer.primary.primary_address import PrimaryAddress
from quorum_wal.walproposer.qsync.limbo_events import LimboRead
from quorum_wal.walproposer.qsync.primary_sessions import PrimarySessions, Told

NODE = NodeId(1, bytes(16))
GID = str(Gid(Policy.DETACH, 1, 1, 1, 7, 1, "0" * 32))
DATABASE = "app"
#: As described in docs/qsync-operation.md.
BY_HAND = (
    "SELECT pg_terminate_backend(active_pid, 5000), pg_drop_replication_slot(slot_name)"
    " FROM pg_replication_slots WHERE database = 'app' AND slot_name ~ '^sk_qsync_'"
)


class Hands:
    """The coordinator's actions on a server, which a test triggers."""

    def __init__(self, server: Postgres) -> None:
        self._told: SimpleQueue[Told] = SimpleQueue()
        self.bugs: list[Exception] = []
        self.sessions = PrimarySessions(
            PrimaryAddress(server.dsn()), primary_of(server), NODE, self._told.put, self.bugs.append
        )

    def look(self) -> dict[str, str]:
        """The streams, after one reading."""
        self.sessions.read()
        while not isinstance(told := self._told.get(timeout=TIMEOUT), LimboRead):
            pass
        self.sessions.was_read(told.entries)
        return self.sessions.stream_states

    def wait_streams(self, wanted: dict[str, str]) -> None:
        wait_until(lambda: self.look() == wanted, TIMEOUT, f"the streams {wanted}")

    def let_time_pass(self) -> None:
        """Let all times pass that the stream waits for."""
        self.sessions.watch(DATABASE).unused_seconds = 0.0


@pytest.fixture
def hands(server: Postgres) -> Iterator[Hands]:
    """With a database `app`, where a qsync transaction was prepared and committed; it has its
    stream."""
    server.execute(f"CREATE DATABASE {DATABASE}")
    hands = Hands(server)
    use(server, hands)
    yield hands
    hands.sessions.close()
    assert hands.bugs == []
    wait_until(lambda: drops_slots(server), TIMEOUT, "the slots to be dropped")
    server.execute(f"DROP DATABASE IF EXISTS {DATABASE} WITH (FORCE)")


def use(server: Postgres, hands: Hands) -> None:
    with server.connect(dbname=DATABASE, options=LOCAL) as connection:
        connection.execute("BEGIN")
        connection.execute("SELECT pg_current_xact_id()")
        connection.execute(prepare_sql(GID))
    hands.look()
    server.execute(commit_sql(GID), dbname=DATABASE)
    hands.wait_streams({DATABASE: "streaming"})


def slots(server: Postgres) -> list[str]:
    return [slot for (slot,) in server.execute("SELECT slot_name FROM pg_replication_slots")]


def drops_slots(server: Postgres) -> bool:
    try:
        for slot in slots(server):
            drop_slot(server, slot)
    except psycopg.errors.ObjectInUse:
        return False
    return True


def test_an_unused_database_can_be_dropped(server: Postgres, hands: Hands) -> None:
    with pytest.raises(psycopg.errors.ObjectInUse, match="active logical replication slot"):
        server.execute(f"DROP DATABASE {DATABASE} WITH (FORCE)")
    hands.let_time_pass()
    hands.wait_streams({})
    assert slots(server) == []
    assert hands.look() == {}
    server.execute(f"DROP DATABASE {DATABASE}")


def test_a_database_that_is_used_again_gets_its_slot_again(server: Postgres, hands: Hands) -> None:
    """Its time passes first, then an administrator drops it."""
    hands.let_time_pass()
    hands.wait_streams({})
    use(server, hands)
    assert len(slots(server)) == 1
    server.execute(BY_HAND)
    hands.wait_streams({})
    assert slots(server) == []
    use(server, hands)
    assert len(slots(server)) == 1


def test_an_administrator_drops_it_at_once(server: Postgres, hands: Hands) -> None:
    server.execute(BY_HAND)
    server.execute(f"DROP DATABASE {DATABASE} WITH (FORCE)")
    hands.wait_streams({})
    assert hands.look() == {}


def test_a_slot_of_an_earlier_coordinator_is_removed_as_well(
    server: Postgres, hands: Hands, make_hands: Callable[[], Hands]
) -> None:
    """The database was not used since."""
    hands.sessions.close()
    successor = make_hands()
    successor.wait_streams({DATABASE: "streaming"})
    successor.let_time_pass()
    successor.wait_streams({})
    assert slots(server) == []


@pytest.fixture
def make_hands(server: Postgres) -> Iterator[Callable[[], Hands]]:
    made: list[Hands] = []

    def make() -> Hands:
        made.append(Hands(server))
        return made[-1]

    yield make
    for each in made:
        each.sessions.close()
