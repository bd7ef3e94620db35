"""The connection that pushes WAL to a timeline, as the timeline sees it; its last description."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from quorum_wal.safekeeper.events import TakeWal


class ProposerConnection(Protocol):
    """Created and ended by `receive_wal.py`. The timeline only asks it to close, or to take the
    log's WAL from another safekeeper. Neither call may wait."""

    number: int

    @property
    def silent_seconds(self) -> float: ...

    def describe(self) -> dict[str, object]: ...

    def close(self, reason: str) -> None: ...

    def take_wal(self, order: TakeWal) -> None: ...


@dataclass(frozen=True, slots=True)
class DisconnectedProposer:
    """The last description of a proposer that disconnected, without its buffers."""

    description: dict[str, object]

    @classmethod
    def of(cls, connection: ProposerConnection) -> DisconnectedProposer:
        return cls(connection.describe())

    def describe(self) -> dict[str, object]:
        return self.description


@dataclass(slots=True)
class LastProposers:
    """The proposers to ask while none streams. Both may be disconnected, and still run."""

    #: The one that connected last; it may be a candidate without a quorum.
    newest: ProposerConnection | DisconnectedProposer | None = None
    #: The last one that led here; it may wait for its primary while others came and were fenced.
    leader: ProposerConnection | DisconnectedProposer | None = None

    def disconnected(self, connection: ProposerConnection) -> None:
        """Keeps the description of the connection, without its buffers."""
        last = DisconnectedProposer.of(connection)
        self.newest = last if self.newest is connection else self.newest
        self.leader = last if self.leader is connection else self.leader

    def describe(self) -> dict[str, dict[str, object] | None]:
        named = (("last_proposer", self.newest), ("last_leader", self.leader))
        return {key: last.describe() if last is not None else None for key, last in named}
