"""A request to change the members, until a leader can start it. Pure.

It may come before the election, or while the leader completes a change that it found, perhaps the
same one.
"""

from __future__ import annotations

from quorum_wal.walproposer.stream.events import (
    Action,
    ChangeCancelled,
    ChangeRequest,
    ChangeRequested,
    ChangeState,
    ChangeView,
    Joined,
    Left,
    OutsiderNamed,
)
from quorum_wal.walproposer.stream.leader import Leader
from quorum_wal.walproposer.stream.progress import Progress


class PendingChange:
    """For one incarnation. `leader` is None until it leads."""

    def __init__(self) -> None:
        self.request: ChangeRequest | None = None

    def view(self, leader: Leader | None) -> ChangeView | None:
        view = leader.members.view(leader) if leader is not None else None
        if self.request is None or (view is not None and not view.is_finished):
            return view
        return ChangeView(ChangeState.JOINING, self.request.ids, "the election")

    def take(
        self,
        event: ChangeRequested | ChangeCancelled | Joined | Left | OutsiderNamed,
        leader: Leader | None,
        peers: list[Progress],
    ) -> list[Action]:
        match event:
            case ChangeRequested(request):
                if leader is None or not leader.members.is_changing:
                    self.request = request
                return self.begin(leader)
            case ChangeCancelled():
                self.request = None
                return leader.members.cancel(leader) if leader is not None else []
            case Joined(peer):
                return leader.members.joined(leader, peers[peer], event) if leader else []
            case OutsiderNamed(host, port):
                return leader.peer_set.open(host, port) if leader is not None else []
            case Left(peer):
                return leader.members.left(leader, peers[peer], event) if leader else []

    def difference(self, request: ChangeRequest, leader: Leader | None) -> str:
        """The safekeeper that the change in progress has at another address, or on another disk,
        than this request with the same ids; "" if they are equal, or there is no change in
        progress."""
        change = leader.members.change if leader is not None else None
        if change is None or change.is_finished or change.wanted_ids != request.ids:
            return ""
        return change.difference(request)

    def begin(self, leader: Leader | None) -> list[Action]:
        """Start it once no other change is in progress."""
        request = self.request
        if request is None or leader is None:
            return []
        change = leader.members.change
        if change is not None and not change.is_finished:
            if change.wanted_ids == request.ids and not change.difference(request):
                self.request = None
            return []
        self.request = None
        return leader.members.request(leader, request)
