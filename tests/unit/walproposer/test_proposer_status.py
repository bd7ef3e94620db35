"""The status page is read while the event loop changes the state."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from incarnation_world import Follower, IncarnationWorld

from quorum_wal.walproposer.status import incarnation_status, open_peers, peer_status
from quorum_wal.walproposer.stream import steady_leader, steady_loop


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[IncarnationWorld]:
    made = IncarnationWorld(monkeypatch, (steady_loop, steady_leader))
    yield made
    made.close()


def test_an_address_is_forgotten_while_the_status_is_read(world: IncarnationWorld) -> None:
    """A promotion did this to its status page: it answered 500."""
    before = open_peers(world.incarnation)
    forgotten = before[1]
    world.incarnation.peers.forget(forgotten.progress.peer)
    pages = [peer_status(world.incarnation, each) for each in before]
    assert [page["address"] for page in pages] == [str(each.address) for each in before]
    assert forgotten not in open_peers(world.incarnation)


def test_a_quorum_is_seen_when_it_has_answered(world: IncarnationWorld) -> None:
    """Not only at the next tick: a status page that was read before reported BLOCKED."""
    first, second, _, _ = world.followers
    assert not answered_by(world, first)["quorum"]["ok"]
    assert answered_by(world, second)["quorum"]["ok"]


def answered_by(world: IncarnationWorld, follower: Follower) -> dict[str, Any]:
    """The status page after an answer of the follower; the clock stands still."""
    follower.say(follower.response(0))
    follower.wire.deliver(1 << 16)
    world.settle()
    return incarnation_status(world.incarnation)
