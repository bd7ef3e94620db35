"""A proxy that records what clients send, and can deliver the start of a stream in one piece.

It records the bytes of each connection towards the service.
"""

from __future__ import annotations

import socket
import threading
from dataclasses import dataclass
from types import TracebackType
from typing import Self

# The number of bytes recorded per connection, from its start. All other bytes pass unrecorded.
RECORDED_BYTES_MAX = 256 << 10

COPY_BOTH_RESPONSE = b"W\0\0\0\x07\0\0\0"


class RecordingProxy:
    """A context manager: connections to `address` reach `target` ("host:port").

    `joins_streams`: the answer to START_REPLICATION is delayed, so that it arrives at the client
    together with the first bytes of the stream.
    """

    def __init__(self, target: str, *, joins_streams: bool = False) -> None:
        self._joins_streams = joins_streams
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._recorded: list[bytearray] = []
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]

    def __enter__(self) -> Self:
        self._threads[0].start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._threads[0].join()  # no new connections from here on
        for end in self._sockets:
            hang_up(end)
        for thread in self._threads[1:]:
            thread.join()
        for end in (self._listener, *self._sockets):
            end.close()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._listener.getsockname()[1]}"

    @property
    def conversations(self) -> list[bytes]:
        """The bytes that each client has sent, in the order of the connections."""
        return [bytes(recorded) for recorded in self._recorded]

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return  # the context has ended
            service = socket.create_connection(self._target)
            recorded = bytearray()
            self._recorded.append(recorded)
            self._sockets += (client, service)
            for pump in (
                Pump(client, service, recorded=recorded),
                Pump(service, client, joins_streams=self._joins_streams),
            ):
                thread = threading.Thread(target=pump.run, daemon=True)
                self._threads.append(thread)
                thread.start()


@dataclass(frozen=True, slots=True)
class Pump:
    """One direction of a connection."""

    source: socket.socket
    sink: socket.socket
    recorded: bytearray | None = None
    joins_streams: bool = False

    def run(self) -> None:
        """Forward all bytes until either connection ends, and end both."""
        try:
            while data := self.source.recv(1 << 16):
                if self.recorded is not None and len(self.recorded) < RECORDED_BYTES_MAX:
                    self.recorded.extend(data)
                if self.joins_streams and data.endswith(COPY_BOTH_RESPONSE):
                    data += self.source.recv(1 << 16)
                self.sink.sendall(data)
        except OSError:
            pass  # one of them was reset, so the other is reset, too
        hang_up(self.source)
        hang_up(self.sink)


def hang_up(end: socket.socket) -> None:
    """End both directions. The owner closes the sockets when no thread uses them."""
    try:
        end.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # already ended
