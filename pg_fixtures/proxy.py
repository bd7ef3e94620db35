"""`TcpProxy`: a wire between a client and a service, to be cut, stalled, slowed and made lossy.

    client  -- TO_SERVICE -->  proxy  -- TO_SERVICE -->  service
            <-- TO_CLIENT  --         <-- TO_CLIENT  --

One thread with an event loop of its own carries all connections. Every method may be called from
any other thread; what it says has happened when it returns. Each direction of a connection is a
reader and a writer with a bounded queue between them, so a stalled wire pushes back, as TCP does.
The ends of a connection (EOF, reset) travel through the same queue: a stalled wire hides them too.
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

from pg_fixtures.ports import free_port

HOST = "127.0.0.1"
CHUNK_BYTES = 64 << 10
QUEUE_CHUNKS = 64  # 4 MiB per direction: what a delay of 100 ms needs at 40 MB/s
COMMAND_TIMEOUT = 10.0  # seconds for the proxy's thread to obey
# struct linger: close() sends a reset and forgets what is unsent.
NO_LINGER = struct.pack("ii", 1, 0)

# What a reader hands to its writer: the time from which it may leave; and bytes, EOF, or None for
# "the connection was reset here".
_Queue = asyncio.Queue[tuple[float, bytes | None]]
EOF = b""


class Direction(Enum):
    """Which way bytes flow."""

    TO_SERVICE = "to the service"
    TO_CLIENT = "to the client"


@dataclass(slots=True)
class Traffic:
    """What the proxy has seen since its start."""

    connections: int = 0  # accepted
    refused: int = 0  # of those: the service could not be reached
    bytes_passed: dict[Direction, int] = field(default_factory=lambda: dict.fromkeys(Direction, 0))
    bytes_dropped: dict[Direction, int] = field(default_factory=lambda: dict.fromkeys(Direction, 0))


@dataclass(slots=True, eq=False)
class _Link:
    """One connection, from its accept() on."""

    client: socket.socket
    service: socket.socket
    task: asyncio.Task[None] | None = None
    lossy: bool = False  # bytes of it were dropped: it has a hole
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
            self._obey(self._listen())
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
        """Connections now, those that are held by stall() included."""
        return len(self._links)

    # ---- faults

    def cut(self) -> None:
        """Reset all connections and refuse new ones."""
        self._obey(self._cut())

    def stall(self, direction: Direction | None = None) -> None:
        """Keep connections open but pass nothing (that way); accept new ones and hold them.

        Nothing is lost: after restore() the bytes go on.
        """
        self._obey(self._stall(direction))

    def drop(self, direction: Direction) -> None:
        """Discard silently whatever goes that way.

        restore() resets the connections that lost something: no network delivers a stream with a
        hole in it.
        """
        self._obey(self._drop(direction))

    def delay(self, seconds: float) -> None:
        """Let bytes that arrive from now on travel for so long, each way."""
        self._delay = seconds

    def restore(self) -> None:
        """End every fault. What is under way with a delay still arrives late."""
        self._obey(self._restore())

    def close(self) -> None:
        """Reset all connections and end the thread."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._closing.set)
            self._thread.join(COMMAND_TIMEOUT)

    # ---- inside the proxy's own thread

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

    def _obey(self, command: Coroutine[Any, Any, None]) -> None:
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
            # Not sock_accept(): cancelled at the wrong moment, it forgets an accepted connection.
            self._loop.add_reader(self._listener, self._accept, self._listener)

    def _accept(self, listener: socket.socket) -> None:
        try:
            client, _ = listener.accept()
        except BlockingIOError:
            return  # the client has gone already
        self.traffic.connections += 1
        link = _Link(client, socket.socket(socket.AF_INET, socket.SOCK_STREAM))
        self._links.add(link)
        link.task = self._loop.create_task(self._serve(link))
        # Not in a finally: a task that is cancelled before its first step has none.
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
            pass  # the service is not there, or one end was reset: then so is the other

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
        """Queue what arrives, to its end."""
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
        """Pass on what is queued, when it is due and the wire lets it."""
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
    """Cancel tasks, and return when they have ended."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
