"""What a timeline needs of a connection that pushes WAL to it, and what it remembers of one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from safekeeper.events import TakeWal


class ProposerConnection(Protocol):
    """Made and ended by `receive_wal.py`; the timeline only asks it to close, and to take the
    log's WAL from another safekeeper. Neither may wait for anything."""

    number: int

    @property
    def silent_seconds(self) -> float: ...

    def describe(self) -> dict[str, object]: ...

    def close(self, reason: str) -> None: ...

    def take_wal(self, order: TakeWal) -> None: ...


@dataclass(frozen=True, slots=True)
class GoneProposer:
    """What is remembered of one that is gone: what it told of itself, and none of its buffers."""

    description: dict[str, object]

    @classmethod
    def of(cls, connection: ProposerConnection) -> GoneProposer:
        return cls(connection.describe())

    def describe(self) -> dict[str, object]:
        return self.description


@dataclass(slots=True)
class LastProposers:
    """Whom to ask when nobody streams. Both may be gone, and live on without a connection."""

    #: It connected last: a candidate, maybe, that has no quorum yet.
    newest: ProposerConnection | GoneProposer | None = None
    #: It was followed last: it waits for its primary, maybe, while others came and were fenced.
    leader: ProposerConnection | GoneProposer | None = None

    def gone(self, connection: ProposerConnection) -> None:
        """What it told of itself stays, without its buffers."""
        gone = GoneProposer.of(connection)
        self.newest = gone if self.newest is connection else self.newest
        self.leader = gone if self.leader is connection else self.leader

    def describe(self) -> dict[str, dict[str, object] | None]:
        named = (("last_proposer", self.newest), ("last_leader", self.leader))
        return {key: last.describe() if last is not None else None for key, last in named}
