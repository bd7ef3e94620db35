"""START_WAL_PUSH: a proposer's messages, from the wire to the timeline. The hot path.

    drain (one recv) -> decode -> acceptor -> write -> one fdatasync -> one answer

Nearly always this is done by `steady_path.py`, which leaves the rest to what is here. One blocking
thread a connection. Whatever arrived together shares one flush.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from datetime import UTC, datetime

from consensus.errors import MessageError
from pgwire.blocking import Session
from pgwire.copy_stream import CopyStream
from pgwire.errors import CopyEnded, ProtocolError
from safekeeper.errors import SafekeeperError
from safekeeper.steady_path import SteadyPath
from safekeeper.timeline import Timeline
from storage.errors import StorageError


@dataclass(slots=True)
class WalReceiver:
    """One proposer's connection; the timeline may close it from another thread."""

    number: int
    session: Session
    client_address: str
    closed_reason: str = ""
    connected_at: str = field(default_factory=lambda: datetime.now(UTC).isoformat())
    #: When something last came, by the monotonic clock; a proposer that lives sends each second.
    heard_at: float = field(default_factory=time.monotonic)
    #: The last one, which notes by itself when something came.
    _steady: SteadyPath | None = None

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
        }

    def close(self, reason: str) -> None:
        self.closed_reason = reason
        self.session.shutdown()

    def run(self, timeline: Timeline) -> None:
        """Until the proposer leaves. Raises SafekeeperError, MessageError and ProtocolError."""
        timeline.connect(self)
        try:
            stream = self.session.start_copy_both()
            while True:
                steady = timeline.steady_path(self.number)
                if steady is not None:
                    self._steady = steady
                    steady.run(stream)
                self._batch(stream, timeline)
        except CopyEnded:
            return
        except (SafekeeperError, MessageError, ProtocolError, StorageError) as error:
            self.closed_reason = self.closed_reason or str(error)
            raise
        finally:
            timeline.disconnect(self)

    def _batch(self, stream: CopyStream, timeline: Timeline) -> None:
        payloads = stream.drain()
        self.heard_at = time.monotonic()
        for answer in timeline.receive_payloads(self.number, payloads):
            stream.send(answer)
