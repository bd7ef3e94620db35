"""Whether a donor's stream may continue: rule 8 of the safekeeper. Pure.

A donor's reader is a proposer. It names the NodeId for which it recovers, and gets the log beyond
the commit. A greater NodeId may cut that part at any time and rewrite it. So the promise is
checked twice: before a read, which also ends a stream that waits, and after it, before the bytes
are sent.

    limit_lsn -> read -> checked -> send

A chained reader is a safekeeper, which adds what it reads to its own log at once. For it the
promise is not enough: a safekeeper that has voted for a NodeId may still have a diverged tail,
which Elected will cut. So the history of the log that it reads must end with that NodeId.
"""

from __future__ import annotations

from collections.abc import Callable

from quorum_wal.consensus.ids import NodeId
from quorum_wal.safekeeper.errors import SafekeeperError

WRONG_STATE = "55000"


class DonorRule:
    """`look` returns the published promise and flush_lsn; it may raise. `follows`, given for a
    chained reader, returns the last NodeId of the published history."""

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
        """The position up to which the log may be read. Raises SafekeeperError when the stream must
        end."""
        self._check_follows()  # before the end is read, because adopting a history lowers the end
        promised, flush_lsn = self._look()
        self._check(promised)
        return flush_lsn

    def checked(self, wal: bytes) -> bytes:
        """Returns `wal`, which was just read. Raises SafekeeperError if another ballot may have
        written it."""
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
