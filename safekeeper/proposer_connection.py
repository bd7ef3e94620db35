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
