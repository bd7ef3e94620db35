"""The description of the commit path."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from incarnation_world import IncarnationWorld

from quorum_wal.pgwire.replication import XLogData
from quorum_wal.storage import compiled
from quorum_wal.walproposer.status import incarnation_status
from quorum_wal.walproposer.stream import commit_path, steady_leader, steady_loop
from quorum_wal.walproposer.stream.copy_connection import CopyConnection
from quorum_wal.walproposer.stream.plain_copy import PlainCopy
from quorum_wal.walproposer.stream.progress import PeerState
from tests.steady_batch import framed


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Any:
    made = IncarnationWorld(monkeypatch, (steady_loop, steady_leader))
    yield made
    made.close()


class OfLibpq(CopyConnection):
    """As it is when libpq keeps the connection. The bytes go the same way here."""

    def __init__(self, plain: PlainCopy) -> None:
        self.plain = plain
        self.wants_write, self.end = plain.wants_write, plain.end

    def fileno(self) -> int:
        return self.plain.fileno()

    def send(self, payload: bytes) -> None:
        self.plain.send(payload)


def encrypted(world: IncarnationWorld, peer: int) -> None:
    world.incarnation.peers.open[peer] = OfLibpq(world.followers[peer].wire.copy)


def commit(world: IncarnationWorld) -> None:
    """A record that all followers get, and that two of them answer."""
    begin_lsn = world.log.lsn
    wal = world.log.append("R", 100)
    world.primary.waiting += framed([XLogData(begin_lsn, world.log.lsn, 0, wal).encode()])
    world.primary.deliver(1 << 16)
    world.settle()
    for follower in world.followers[:2]:
        follower.say(follower.response(0))
        follower.wire.deliver(1 << 16)
    world.settle()
    durable_lsns = [follower.positions[-1][1] for follower in world.followers[:3]]
    assert durable_lsns == [world.log.lsn] * 3
    assert world.incarnation.commit_signal.commit_lsn == world.log.lsn


@pytest.mark.parametrize("how", ["compiled", "interpreted"])
def test_what_runs_the_steady_path(
    world: IncarnationWorld, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setenv(compiled.INTERPRETED, "" if how == "compiled" else "1")
    assert commit_path.commit_path(world.incarnation) == how


def test_half_of_it_compiled_is_interpreted(
    world: IncarnationWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        commit_path, "how_it_runs", lambda n: "compiled" if "leader" in n else "interpreted"
    )
    assert commit_path.commit_path(world.incarnation) == "interpreted"


def test_an_encrypted_follower_is_named(world: IncarnationWorld) -> None:
    world.followers[2].say(world.followers[2].response(0))
    world.followers[2].wire.deliver(1 << 16)
    commit(world)
    commit(world)
    assert world.steady_appends == 1, "the first one found followers that had not answered"
    encrypted(world, 2)
    said = "none, the connection to safekeeper sk3:5454 is encrypted"
    assert commit_path.commit_path(world.incarnation) == said
    commit(world)
    assert world.steady_appends == 1
    world.incarnation.peers.open.pop(2)


def test_one_that_does_not_follow_may_be_encrypted(world: IncarnationWorld) -> None:
    encrypted(world, 3)
    assert not commit_path.commit_path(world.incarnation).startswith("none")
    world.incarnation.peers.open.pop(3)


def test_an_encrypted_primary_is_named(world: IncarnationWorld) -> None:
    upstream: Any = world.incarnation.upstream
    upstream.copy = object.__new__(CopyConnection)
    said = "none, the connection to the primary is encrypted"
    assert commit_path.commit_path(world.incarnation) == said


def test_one_that_catches_up_is_named(world: IncarnationWorld) -> None:
    world.incarnation.core.peers[1].state = PeerState.CATCHING_UP
    assert (
        commit_path.commit_path(world.incarnation) == "none now, safekeeper sk2:5454 is catching up"
    )


def test_the_log_says_it_once_the_followers_are_there(
    world: IncarnationWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    line = SimpleNamespace(info=lambda event, *, steady_path: said.append(steady_path))
    monkeypatch.setattr(commit_path, "log", line)

    def tick() -> None:
        world.now += 0.2
        world.settle()

    tick()
    assert not said, "no quorum follows"
    for follower in world.followers[:3]:
        follower.say(follower.response(0))
        follower.wire.deliver(1 << 16)
    world.settle()
    tick()
    assert said == [commit_path.commit_path(world.incarnation)]
    tick()
    assert len(said) == 1, "nothing is new"


def test_the_status_page_says_it(world: IncarnationWorld) -> None:
    page = incarnation_status(world.incarnation)
    assert page["steady_path"] == commit_path.commit_path(world.incarnation)
