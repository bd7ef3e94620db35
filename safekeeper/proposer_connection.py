"""What a timeline needs of a connection that pushes WAL to it."""

from __future__ import annotations

from typing import Protocol


class ProposerConnection(Protocol):
    """Made and ended by `receive_wal.py`; the timeline only asks it to close."""

    number: int

    @property
    def silent_seconds(self) -> float: ...

    def describe(self) -> dict[str, object]: ...

    def close(self, reason: str) -> None: ...
