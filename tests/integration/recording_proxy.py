"""A wire that remembers what clients said, and may deliver a stream's begin all at once.

Recorded are the bytes of each connection, towards the service.
"""

from __future__ import annotations

import socket
import threading
from dataclasses import dataclass
from types import TracebackType
from typing import Self

# What is recorded of a connection: its beginning. The rest passes all the same.
RECORDED_BYTES_MAX = 256 << 10

COPY_BOTH_RESPONSE = b"W\0\0\0\x07\0\0\0"


class RecordingProxy:
    """A context manager: connections to `address` reach `target` ("host:port").

    `joins_streams`: the answer to START_REPLICATION is held back, so that it arrives at the client
    in one piece with the first bytes of the stream.
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
        self._threads[0].join()  # from now on there are no new ones
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
        """What each client has said, in the order in which they came."""
        return [bytes(recorded) for recorded in self._recorded]

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return  # the end of the context
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
        """Pass everything on, to the end of either connection, and end both."""
        try:
            while data := self.source.recv(1 << 16):
                if self.recorded is not None and len(self.recorded) < RECORDED_BYTES_MAX:
                    self.recorded.extend(data)
                if self.joins_streams and data.endswith(COPY_BOTH_RESPONSE):
                    data += self.source.recv(1 << 16)
                self.sink.sendall(data)
        except OSError:
            pass  # one of them was reset: so is the other
        hang_up(self.source)
        hang_up(self.sink)


def hang_up(end: socket.socket) -> None:
    """End both directions; closing is for the one who knows that nobody uses it any more."""
    try:
        end.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # it has ended already
