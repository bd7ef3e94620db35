"""Whether a donor's stream may go on: rule 8 of the safekeeper. Pure.

A donor's reader is a proposer. It names the NodeId it recovers for, and gets the log beyond the
commit, which a greater NodeId may cut at any time and write anew. So the promise is looked at
twice: before a read, which also ends a stream that waits, and after it, before the bytes go out.

    limit_lsn -> read -> checked -> send
"""

from __future__ import annotations

from collections.abc import Callable

from consensus.ids import NodeId
from safekeeper.errors import SafekeeperError

WRONG_STATE = "55000"


class DonorRule:
    """`look` returns what is published now, the promise and flush_lsn; it may raise, too."""

    def __init__(self, node_id: NodeId, look: Callable[[], tuple[NodeId, int]]) -> None:
        self.node_id = node_id
        self._look = look

    def limit_lsn(self) -> int:
        """How far it may be read now. Raises SafekeeperError when the stream must end."""
        promised, flush_lsn = self._look()
        self._check(promised)
        return flush_lsn

    def checked(self, wal: bytes) -> bytes:
        """`wal` was read since. Raises SafekeeperError when it may be another ballot's."""
        promised, _ = self._look()
        self._check(promised)
        return wal

    def _check(self, promised: NodeId) -> None:
        if promised != self.node_id:
            raise SafekeeperError(
                f"log is read for {self.node_id}, but {promised} was promised",
                sqlstate=WRONG_STATE,
            )
