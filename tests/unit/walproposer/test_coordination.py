"""The status of a coordinator while its port is in use, and after a bug."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from threading import Event, Thread
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from limbo_steps import NODE, gid_of

from quorum_wal.access.access import AccessConfig
from quorum_wal.consensus.messages import ServerFacts
from quorum_wal.pg_fixtures.waiting import wait_until
from quorum_wal.pgwal.history import TimelineHistory
from quorum_wal.pgwire.auth import make_verifier
from quorum_wal.walproposer.checks.commit_watch import CommitWatch
from quorum_wal.walproposer.config import ProposerConfig, QsyncConfig
from quorum_wal.walproposer.metrics import ProposerCollector
from quorum_wal.walproposer.primary.primary import Primary
from quorum_wal.walproposer.primary.primary_address import PrimaryAddress
from quorum_wal.walproposer.qsync import primary_sessions
from quorum_wal.walproposer.qsync.coordination import Coordination
from quorum_wal.walproposer.qsync.coordinator import Coordinator
from quorum_wal.walproposer.qsync.limbo_events import Action, Fenced
from quorum_wal.walproposer.qsync.limbo_events import Event as CoreEvent
from quorum_wal.walproposer.qsync.verdict_server import OPEN_ACCESS, PORT_LIMITS
from quorum_wal.walproposer.qsync.worker import Worker
from quorum_wal.walproposer.status import STARTING
from quorum_wal.walproposer.stream.commit_signal import CommitSignal

TIMEOUT = 30.0
ADDRESS = PrimaryAddress("host=127.0.0.1 port=1")
PRIMARY = Primary(ServerFacts(7, 150018, 16 << 20), TimelineHistory(1), 0, 0)
#: A thread that dies of a bug reports it; here this is intended.
has_bug = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")


@pytest.fixture(autouse=True)
def threads_have_ended() -> Iterator[None]:
    """A thread that ends late by a bug would log it in the next test."""
    before = set(threading.enumerate())
    yield
    wait_until(lambda: set(threading.enumerate()) <= before, TIMEOUT, "the threads to end")


class Going:
    """A StopSignal that is never set, without its sockets."""

    is_set = False

    def wait(self, seconds: float) -> bool:
        return Event().wait(seconds)


def config(port: int = 0, access: AccessConfig = OPEN_ACCESS) -> ProposerConfig:
    return ProposerConfig(ADDRESS, (), qsync=QsyncConfig("127.0.0.1", port, access))


@contextmanager
def coordinating(proposer: ProposerConfig) -> Iterator[Coordination]:
    coordination = Coordination(proposer, Going())
    coordination.start(limbo_max=10)
    try:
        yield coordination
    finally:
        coordination.close()


def metrics(coordination: Coordination) -> dict[str, float]:
    watch = CommitWatch(ADDRESS, Going(), lambda: False)
    collector = ProposerCollector(lambda: STARTING, lambda: None, coordination, watch)
    samples = [sample for family in collector.collect() for sample in family.samples]
    return {sample.name: sample.value for sample in samples if "state" not in sample.labels}


def wait_refusing(coordination: Coordination, words: str) -> dict[str, Any]:
    """The page, when that is the reason."""
    wait_until(lambda: words in (coordination.status["refuses"] or ""), TIMEOUT, words)
    return coordination.status


# ---- without a port


def write_users(path: Path) -> None:
    path.touch(0o600)
    path.write_text(f"app:client:{make_verifier('secret', b'0123456789abcdef', 4)}\n")


def test_while_its_port_is_in_use_the_status_has_the_reason(tmp_path: Path) -> None:
    """The latest reason, also an error of the user file. It is retried in every case."""
    users = tmp_path / "users"
    write_users(users)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        proposer = config(taken.getsockname()[1], AccessConfig(None, users, PORT_LIMITS))
        with coordinating(proposer) as coordination:
            page = wait_refusing(coordination, "in use")
            assert (page["owner"], page["is_deciding"]) == (None, False)
            assert "in use" in coordination.error
            assert metrics(coordination) == {"sk_proposer_qsync_deciding": 0.0}
            users.unlink()
            taken.close()
            wait_refusing(coordination, "users")
            write_users(users)
            wait_refusing(coordination, "does not lead")
            assert coordination.error == ""


# ---- with a bug


class Bug(Exception):
    """Of ours, planted."""


def fail(*_: object) -> None:
    raise Bug


@contextmanager
def leading() -> Iterator[Coordination]:
    """The core has begun to lead, and reports it."""
    with coordinating(config()) as coordination:
        coordination.begin(incarnation())
        wait_until(lambda: coordination.status["owner"], TIMEOUT, "it to lead")
        yield coordination


def incarnation() -> Any:
    """It leads, and has committed nothing. Its primary cannot be reached."""
    term = SimpleNamespace(node_id=NODE, term_start_lsn=1000)
    return SimpleNamespace(
        commit_signal=CommitSignal(),
        is_leading=True,
        quorum_watch=SimpleNamespace(ok=True),
        core=SimpleNamespace(leader=SimpleNamespace(term=term), membership=None),
        upstream=SimpleNamespace(primary=PRIMARY),
    )


def planted_in_core(coordinator: Coordinator, _: pytest.MonkeyPatch) -> None:
    """From now on, on every event."""
    coordinator.limbo.step = fail  # type: ignore[method-assign,assignment]


def planted_in_stream(coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch) -> None:
    session = SimpleNamespace(opened=fail, close=fail)
    monkeypatch.setattr(primary_sessions, "PrimarySession", lambda *_: session)
    assert coordinator.sessions is not None
    coordinator.post(partial(coordinator.sessions.watch, "app"))


def planted_in_worker(coordinator: Coordinator, _: pytest.MonkeyPatch) -> None:
    """In what the worker does with an answer."""
    assert coordinator.sessions is not None
    coordinator.post(partial(coordinator.sessions.ask, gid_of(), None, fail))


@has_bug
@pytest.mark.parametrize("plant", [planted_in_core, planted_in_stream, planted_in_worker])
def test_a_bug_is_reported_and_no_question_is_answered(
    plant: Callable[[Coordinator, pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In every thread: no page reports a coordinator as leading that does not."""
    with leading() as coordination:
        coordinator = coordination.coordinator
        assert coordinator is not None
        assert metrics(coordination)["sk_proposer_qsync_limbo_len_max"] == 10
        host, _, port = coordinator.address.rpartition(":")
        conninfo = f"host={host} port={port} user=app"
        with closing(psycopg.connect(conninfo, autocommit=True)) as client:
            refused: list[psycopg.Error] = []
            waiter = Thread(target=ask, args=(client, refused))
            waiter.start()
            wait_until(lambda: waits(coordinator), TIMEOUT, "it to wait")
            plant(coordinator, monkeypatch)
            waiter.join(TIMEOUT)
            assert [error.sqlstate for error in refused] == ["57P01"]
        wait_until(lambda: coordination.error, TIMEOUT, "an error")
        page = wait_refusing(coordination, "qsync has failed: Bug()")
        assert (page["owner"], page["is_deciding"], page["waiting"]) == (None, False, 0)
        assert metrics(coordination)["sk_proposer_qsync_deciding"] == 0
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(conninfo)


def ask(client: psycopg.Connection[Any], refused: list[psycopg.Error]) -> None:
    try:
        client.execute("WAIT_LSN 0/FFFFFFFF TIMEOUT 60000")
    except psycopg.Error as error:
        refused.append(error)


def waits(coordinator: Coordinator) -> bool:
    return bool(coordinator.new_status()["waiting"])


@has_bug
def test_a_bug_while_it_ends_leaves_no_port_open() -> None:
    with leading() as coordination:
        coordinator = coordination.coordinator
        assert coordinator is not None
        sessions = coordinator.sessions
        assert sessions is not None
        step = coordinator.limbo.step

        def fail_when_fenced(event: CoreEvent) -> list[Action]:
            if isinstance(event, Fenced):
                raise Bug
            return step(event)

        coordinator.limbo.step = fail_when_fenced  # type: ignore[method-assign]
        coordination.close()
        assert coordination.error == "qsync has failed: Bug()"
        host, _, port = coordinator.address.rpartition(":")
        with pytest.raises(OSError, match="refused"):
            socket.create_connection((host, int(port)))
        sessions.close()


@has_bug
def test_a_worker_s_last_task_is_done_after_a_bug() -> None:
    """It closes the connection."""
    done: list[object] = []
    worker = Worker("test", lambda: done.append("idle"), TIMEOUT, done.append)
    worker.put(fail)
    wait_until(lambda: len(done) == 2, TIMEOUT, "both")
    assert {type(each) for each in done} == {str, Bug}
