"""Whether a donor's stream may go on: rule 8 of the safekeeper. Pure.

A donor's reader is a proposer. It names the NodeId it recovers for, and gets the log beyond the
commit, which a greater NodeId may cut at any time and write anew. So the promise is looked at
twice: before a read, which also ends a stream that waits, and after it, before the bytes go out.

    limit_lsn -> read -> checked -> send

A chained reader is a safekeeper, which takes what it gets for its own log at once. For it the
promise is not enough: one that has voted for a NodeId may still have a diverged tail, which its
Elected will cut. So the log that it reads must follow that NodeId: its history ends with it.
"""

from __future__ import annotations

from collections.abc import Callable

from consensus.ids import NodeId
from safekeeper.errors import SafekeeperError

WRONG_STATE = "55000"


class DonorRule:
    """`look` returns what is published now, the promise and flush_lsn; it may raise, too.
    `follows`, for a chained reader: the last NodeId of the history that is published."""

    def __init__(
        self,
        node_id: NodeId,
        look: Callable[[], tuple[NodeId, int]],
        follows: Callable[[], NodeId] | None = None,
    ) -> None:
        self.node_id = node_id
        self._look = look
        self._follows = follows

    def limit_lsn(self) -> int:
        """How far it may be read now. Raises SafekeeperError when the stream must end."""
        self._check_follows()  # before its end is looked at, which adopting the history lowers
        promised, flush_lsn = self._look()
        self._check(promised)
        return flush_lsn

    def checked(self, wal: bytes) -> bytes:
        """`wal` was read since. Raises SafekeeperError when it may be another ballot's."""
        promised, _ = self._look()
        self._check(promised)
        return wal

    def _check_follows(self) -> None:
        if self._follows is not None and (follows := self._follows()) != self.node_id:
            raise SafekeeperError(
                f"log is read for {self.node_id}, but it still follows {follows}",
                sqlstate=WRONG_STATE,
            )

    def _check(self, promised: NodeId) -> None:
        if promised != self.node_id:
            raise SafekeeperError(
                f"log is read for {self.node_id}, but {promised} was promised",
                sqlstate=WRONG_STATE,
            )
