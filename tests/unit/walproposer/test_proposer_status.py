"""The status page is read while the event loop changes the state."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from incarnation_world import IncarnationWorld

from quorum_wal.walproposer.status import open_peers, peer_status
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
