"""START_WAL_PUSH: a proposer's messages, from the wire to the timeline. The hot path.

    drain (one recv) -> decode -> acceptor -> write -> one fdatasync -> one answer

Nearly always `steady_path.py` does this, and leaves only the other cases to this module. There is
one blocking thread a connection. All messages that arrive together share one flush. The connection
of a chained member brings positions only, and carries the answers for the chain's WAL
(`chained_wal.py`).
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from datetime import UTC, datetime

import structlog

from quorum_wal.consensus.errors import MessageError
from quorum_wal.pgwire.blocking import Session
from quorum_wal.pgwire.copy_stream import CopyStream
from quorum_wal.pgwire.errors import CopyEnded, ProtocolError
from quorum_wal.safekeeper.chained_wal import ChainedReader
from quorum_wal.safekeeper.errors import SafekeeperError
from quorum_wal.safekeeper.events import TakeWal
from quorum_wal.safekeeper.steady_path import SteadyPath
from quorum_wal.safekeeper.timeline import Timeline
from quorum_wal.storage.errors import StorageError

log = structlog.get_logger()

# How often a chained connection checks for news although it was not woken.
CHAINED_WAIT_SECONDS = 10.0


@dataclass(slots=True)
class WalReceiver:
    """One proposer's connection; the timeline may close it from another thread. `peer_conninfo`:
    libpq's parameters to read from another safekeeper."""

    number: int
    session: Session
    client_address: str
    peer_conninfo: str = ""
    closed_reason: str = ""
    connected_at: str = field(default_factory=lambda: datetime.now(UTC).isoformat())
    #: When data last arrived, by the monotonic clock; a live proposer sends every second.
    heard_at: float = field(default_factory=time.monotonic)
    #: The last steady path, which records arrivals itself.
    _steady: SteadyPath | None = None
    _chain: ChainedReader | None = None
    #: The order that `take_wal` was given, until the current batch is done.
    _order: TakeWal | None = None

    @property
    def silent_seconds(self) -> float:
        steady = self._steady
        heard_at = self.heard_at if steady is None else max(self.heard_at, steady.heard_at)
        return time.monotonic() - heard_at

    def describe(self) -> dict[str, object]:
        return {
            "address": self.client_address,
            "http": self.session.parameters.get("proposer_http", ""),
            "connected_since": self.connected_at,
            "silent_seconds": round(self.silent_seconds, 1),
            "wal_from": self._chain.source if self._chain is not None else None,
        }

    def close(self, reason: str) -> None:
        self.closed_reason = reason
        self.session.shutdown()

    def take_wal(self, order: TakeWal) -> None:
        self._order = order

    def run(self, timeline: Timeline) -> None:
        """Runs until the proposer disconnects. Raises SafekeeperError, MessageError and
        ProtocolError."""
        timeline.connect(self)
        log.info("proposer connected", client=self.client_address)
        try:
            stream = self.session.start_copy_both()
            while True:
                steady = timeline.steady_path(self.number)
                if steady is not None:
                    self._steady = steady
                    steady.run(stream)
                if self._chain is None or self._has_message(stream, self._chain):
                    self._batch(stream, timeline)
        except CopyEnded as ended:
            self.closed_reason = self.closed_reason or str(ended)
        except (SafekeeperError, MessageError, ProtocolError, StorageError) as error:
            self.closed_reason = self.closed_reason or str(error)
            raise
        finally:
            self._end_chain()
            timeline.disconnect(self)
            log.info(
                "proposer disconnected",
                client=self.client_address,
                reason=self.closed_reason or None,
            )

    def _batch(self, stream: CopyStream, timeline: Timeline) -> None:
        payloads = stream.drain()
        self.heard_at = time.monotonic()
        for answer in timeline.receive_payloads(self.number, payloads):
            stream.send(answer)
        if self._order is not None:
            self._end_chain()
            self._chain = ChainedReader(timeline, self._order, self.peer_conninfo, stream.wake)
            self._order = None
            self._chain.start()

    def _has_message(self, stream: CopyStream, chain: ChainedReader) -> bool:
        """Sends the chain's answer and waits; returns True if the proposer has sent a message.
        Raises SafekeeperError when the chain has ended."""
        answer = chain.take_answer()
        if answer is not None:
            stream.send(answer)
        return stream.wait(CHAINED_WAIT_SECONDS)

    def _end_chain(self) -> None:
        if self._chain is not None:
            self._chain.close()
            self._chain = None
