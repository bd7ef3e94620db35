"""`TcpProxy`: a connection between a client and a service that can be cut, stalled or delayed.

    client  -- TO_SERVICE -->  proxy  -- TO_SERVICE -->  service
            <-- TO_CLIENT  --         <-- TO_CLIENT  --

One thread with an event loop carries all connections. Other threads may call every method, which
returns after it has taken effect. Each direction of a connection has a reader and a writer with a
bounded queue between them, so a stalled connection applies back pressure, as TCP does. The end of a
connection (EOF, reset) passes through the same queue, so a stall also hides it.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Coroutine
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from types import TracebackType
from typing import Any, Self

from quorum_wal.pg_fixtures.ports import free_port

HOST = "127.0.0.1"
CHUNK_BYTES = 64 << 10
QUEUE_CHUNKS = 64  # 4 MiB per direction: enough for a delay of 100 ms at 40 MB/s
COMMAND_TIMEOUT = 10.0  # seconds for a command in the proxy's thread
# struct linger: close() sends a reset and drops unsent bytes.
NO_LINGER = struct.pack("ii", 1, 0)

# A queue from a reader to its writer: the time at which to pass it on; and bytes, EOF, or None
# for a reset.
_Queue = asyncio.Queue[tuple[float, bytes | None]]
EOF = b""


class Direction(Enum):
    """The direction of bytes."""

    TO_SERVICE = "to the service"
    TO_CLIENT = "to the client"


@dataclass(slots=True)
class Traffic:
    """Counters of the proxy since its start."""

    connections: int = 0  # accepted
    refused: int = 0  # accepted ones for which the service could not be reached
    bytes_passed: dict[Direction, int] = field(default_factory=lambda: dict.fromkeys(Direction, 0))
    bytes_dropped: dict[Direction, int] = field(default_factory=lambda: dict.fromkeys(Direction, 0))


@dataclass(slots=True, eq=False)
class _Link:
    """One connection, from accept() on."""

    client: socket.socket
    service: socket.socket
    task: asyncio.Task[None] | None = None
    lossy: bool = False  # some of its bytes were dropped
    ended_in_order: bool = False


class TcpProxy:
    """A context manager: connections to `address` reach `target_host:target_port`."""

    def __init__(self, target_host: str, target_port: int, *, port: int | None = None) -> None:
        self.target = (target_host, target_port)
        self.port = free_port() if port is None else port
        self.traffic = Traffic()
        self._links: set[_Link] = set()
        self._dropped: set[Direction] = set()
        self._delay = 0.0
        self._listener: socket.socket | None = None
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"proxy {self.port}", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._started.wait(COMMAND_TIMEOUT)
        try:
            self._run_command(self._listen())
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def address(self) -> str:
        """`host:port` for clients."""
        return f"{HOST}:{self.port}"

    @property
    def open_connections(self) -> int:
        """The present number of connections, including those held by stall()."""
        return len(self._links)

    # ---- faults

    def cut(self) -> None:
        """Resets all connections and refuses new ones."""
        self._run_command(self._cut())

    def stall(self, direction: Direction | None = None) -> None:
        """Keeps connections open but passes nothing in that direction; holds new connections.

        Nothing is lost: after restore() the bytes are passed on.
        """
        self._run_command(self._stall(direction))

    def drop(self, direction: Direction) -> None:
        """Discards all bytes in that direction.

        restore() resets the connections that lost bytes, because no network delivers a stream with
        a gap.
        """
        self._run_command(self._drop(direction))

    def delay(self, seconds: float) -> None:
        """Delays bytes that arrive from now on, in both directions."""
        self._delay = seconds

    def restore(self) -> None:
        """Ends all faults. Bytes that are already delayed still arrive late."""
        self._run_command(self._restore())

    def close(self) -> None:
        """Resets all connections and ends the thread."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._closing.set)
            self._thread.join(COMMAND_TIMEOUT)

    # ---- in the proxy's thread

    def _run(self) -> None:
        asyncio.run(self._main())

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._closing = asyncio.Event()
        self._open_gates = {direction: asyncio.Event() for direction in Direction}
        for gate in self._open_gates.values():
            gate.set()
        self._started.set()
        await self._closing.wait()
        await self._cut()

    def _run_command(self, command: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(command, self._loop).result(COMMAND_TIMEOUT)

    async def _cut(self) -> None:
        if self._listener is not None:
            self._loop.remove_reader(self._listener)
            self._listener.close()
            self._listener = None
        await _cancel(*(link.task for link in self._links if link.task is not None))

    async def _stall(self, direction: Direction | None) -> None:
        for gate_direction, gate in self._open_gates.items():
            if direction in (None, gate_direction):
                gate.clear()

    async def _drop(self, direction: Direction) -> None:
        self._dropped.add(direction)

    async def _restore(self) -> None:
        self._delay = 0.0
        self._dropped.clear()
        lossy = [link.task for link in self._links if link.lossy and link.task is not None]
        await _cancel(*lossy)
        for gate in self._open_gates.values():
            gate.set()
        await self._listen()

    async def _listen(self) -> None:
        if self._listener is None:
            self._listener = socket.create_server((HOST, self.port))
            self._listener.setblocking(False)
            # Not sock_accept(), which can lose an accepted connection when it is cancelled.
            self._loop.add_reader(self._listener, self._accept, self._listener)

    def _accept(self, listener: socket.socket) -> None:
        try:
            client, _ = listener.accept()
        except BlockingIOError:
            return  # the client has closed the connection
        self.traffic.connections += 1
        link = _Link(client, socket.socket(socket.AF_INET, socket.SOCK_STREAM))
        self._links.add(link)
        link.task = self._loop.create_task(self._serve(link))
        # Not in a finally: a task that is cancelled before its first step would skip it.
        link.task.add_done_callback(partial(self._close_link, link))

    def _close_link(self, link: _Link, _: asyncio.Task[None]) -> None:
        for end in (link.client, link.service):
            if not link.ended_in_order:
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, NO_LINGER)
            end.close()
        self._links.discard(link)

    async def _serve(self, link: _Link) -> None:
        try:
            await self._carry(link)
            link.ended_in_order = True
        except* OSError:
            pass  # the service is unavailable, or one end was reset; both are closed then

    async def _carry(self, link: _Link) -> None:
        for end in (link.client, link.service):
            end.setblocking(False)
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for gate in self._open_gates.values():
            await gate.wait()
        try:
            await self._loop.sock_connect(link.service, self.target)
        except OSError:
            self.traffic.refused += 1
            raise
        async with asyncio.TaskGroup() as group:
            for direction, source, sink in (
                (Direction.TO_SERVICE, link.client, link.service),
                (Direction.TO_CLIENT, link.service, link.client),
            ):
                queue: _Queue = asyncio.Queue(QUEUE_CHUNKS)
                group.create_task(self._read(source, queue))
                group.create_task(self._write(queue, sink, direction, link))

    async def _read(self, source: socket.socket, queue: _Queue) -> None:
        """Queues all bytes that arrive, until the end."""
        chunk: bytes | None
        while True:
            try:
                chunk = await self._loop.sock_recv(source, CHUNK_BYTES)
            except OSError:
                chunk = None
            await queue.put((self._loop.time() + self._delay, chunk))
            if not chunk:
                return

    async def _write(
        self, queue: _Queue, sink: socket.socket, direction: Direction, link: _Link
    ) -> None:
        """Passes on the queued bytes when they are due and the direction is not stalled."""
        while True:
            due, chunk = await queue.get()
            if due > self._loop.time():
                await asyncio.sleep(due - self._loop.time())
            await self._open_gates[direction].wait()
            if direction in self._dropped:
                link.lossy = True
                self.traffic.bytes_dropped[direction] += len(chunk or EOF)
            elif chunk is None:
                raise ConnectionResetError
            elif chunk == EOF:
                sink.shutdown(socket.SHUT_WR)
                return
            else:
                await self._loop.sock_sendall(sink, chunk)
                self.traffic.bytes_passed[direction] += len(chunk)


async def _cancel(*tasks: asyncio.Task[None]) -> None:
    """Cancels tasks. Returns when they have ended."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
