"""The description of the commit path."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from incarnation_world import IncarnationWorld

from quorum_wal.storage import compiled
from quorum_wal.walproposer.status import incarnation_status
from quorum_wal.walproposer.stream import commit_path, steady_leader, steady_loop
from quorum_wal.walproposer.stream.copy_connection import CopyConnection
from quorum_wal.walproposer.stream.progress import PeerState


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Any:
    made = IncarnationWorld(monkeypatch, (steady_loop, steady_leader))
    yield made
    made.close()


def encrypted(world: IncarnationWorld, peer: int) -> None:
    """As it is when libpq keeps the connection."""
    copy: Any = object.__new__(CopyConnection)
    world.incarnation.peers.open[peer] = copy


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
    encrypted(world, 2)
    said = "none, the connection to safekeeper sk3:5454 is encrypted"
    assert commit_path.commit_path(world.incarnation) == said
    assert world.incarnation._steady_loop() is None
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
