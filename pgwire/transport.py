"""Bytes over one accepted socket, plain or TLS, for `blocking.py`.

receive_into() waits for bytes and takes all that have arrived; send() sends all parts like one.
Plain: one system call each; the kernel does the timeouts (SO_RCVTIMEO), so a wait costs no extra
call. TLS: the socket is non-blocking and poll() waits, because one call returns at most one record
of 16 KiB, and a shell that batches must get everything that has arrived.
"""

from __future__ import annotations

import select
import socket
import ssl
import struct
import time
from collections.abc import Sequence
from typing import Protocol, TypeAlias

Part: TypeAlias = bytes | bytearray | memoryview

# A dead peer is detected after 60 s: by probes if idle, by unacknowledged data if not. Postgres has
# the same in wal_receiver_timeout and wal_sender_timeout.
KEEPALIVE_IDLE_S, KEEPALIVE_INTERVAL_S, KEEPALIVE_PROBES = 30, 10, 3
UNACKNOWLEDGED_MS = 60_000
JOIN_BYTES_MAX = 16 * 1024  # below it, joining the parts is cheaper than a gathering system call


def prepare_socket(sock: socket.socket) -> None:
    """Sends answers at once, and detects dead peers. For every accepted TCP socket."""
    if sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", KEEPALIVE_IDLE_S),
        ("TCP_KEEPINTVL", KEEPALIVE_INTERVAL_S),
        ("TCP_KEEPCNT", KEEPALIVE_PROBES),
        ("TCP_USER_TIMEOUT", UNACKNOWLEDGED_MS),
    ):
        if hasattr(socket, name):  # not every system has all of them
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


class Transport(Protocol):
    """The methods of both kinds. Failures are OSError."""

    socket: socket.socket

    def receive_into(self, room: memoryview, timeout: float | None) -> int | None:
        """Returns the number of bytes received: 0 at the stream's end, None after a timeout."""

    def send(self, parts: Sequence[Part]) -> None:
        """Send all of the parts."""

    def send_some(self, data: memoryview) -> int:
        """Sends the bytes that the kernel takes at once; returns their number, maybe 0."""

    def pending(self) -> int:
        """Bytes that this process has received already: poll() on the socket does not see them."""

    def close(self) -> None:
        """Close the socket; data sent before still arrives."""


class PlainTransport:
    """An unencrypted socket. One thread may receive while another one sends."""

    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock
        self._timeout: float | None = None
        sock.settimeout(None)

    def receive_into(self, room: memoryview, timeout: float | None) -> int | None:
        flags = 0
        if timeout == 0:
            flags = socket.MSG_DONTWAIT
        elif timeout != self._timeout:
            self._set_timeout(timeout)
        try:
            return self.socket.recv_into(room, 0, flags)
        except BlockingIOError:
            return None

    def send(self, parts: Sequence[Part]) -> None:
        size = sum(map(len, parts))
        if size <= JOIN_BYTES_MAX:
            self.socket.sendall(b"".join(parts))
            return
        sent = self.socket.sendmsg(parts)
        if sent == size:
            return
        for part in parts:  # a signal interrupted the call
            if sent < len(part):
                self.socket.sendall(memoryview(part)[sent:])
            sent = max(0, sent - len(part))

    def send_some(self, data: memoryview) -> int:
        try:
            return self.socket.send(data, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return 0

    def pending(self) -> int:
        return 0

    def close(self) -> None:
        self.socket.close()

    def _set_timeout(self, timeout: float | None) -> None:
        # For the kernel, zero means for ever.
        microseconds = 0 if timeout is None else max(1, int(timeout * 1e6))
        timeval = struct.pack("@ll", *divmod(microseconds, 1_000_000))
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeval)
        self._timeout = timeout


class TlsTransport:
    """A socket after its TLS handshake. One thread at a time."""

    def __init__(self, sock: ssl.SSLSocket) -> None:
        self.socket: socket.socket = sock
        self._tls = sock
        sock.settimeout(0)

    def receive_into(self, room: memoryview, timeout: float | None) -> int | None:
        count = self._receive_some(room, timeout)
        while count and count < len(room):
            try:
                more = self._tls.recv_into(room[count:])
            except ssl.SSLWantReadError:
                break
            if not more:
                break  # the end; the next call returns it
            count += more
        return count

    def send(self, parts: Sequence[Part]) -> None:
        rest = memoryview(b"".join(parts))
        while rest:
            try:
                rest = rest[self._tls.send(rest) :]
            except ssl.SSLWantWriteError:
                self._wait(select.POLLOUT, None)
            except ssl.SSLWantReadError:  # the peer updates its keys
                self._wait(select.POLLIN, None)

    def send_some(self, data: memoryview) -> int:
        sent = 0
        while sent < len(data):  # a record at a time
            try:
                sent += self._tls.send(data[sent:])
            except (ssl.SSLWantWriteError, ssl.SSLWantReadError):
                break
        return sent

    def pending(self) -> int:
        return self._tls.pending()

    def close(self) -> None:
        """Sends the client the end of TLS; otherwise libpq reports an attack or a crash. Does not
        wait for the client's."""
        try:
            self._tls.unwrap()
        except (OSError, ValueError):
            pass  # disconnected, not reading, or its end has not come: closed in any case
        self.socket.close()

    def _receive_some(self, room: memoryview, timeout: float | None) -> int | None:
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            try:
                return self._tls.recv_into(room)
            except ssl.SSLWantReadError:
                event = select.POLLIN
            except ssl.SSLWantWriteError:
                event = select.POLLOUT
            if not self._wait(event, deadline):
                return None

    def _wait(self, event: int, deadline: float | None) -> bool:
        poll = select.poll()
        poll.register(self._tls, event)
        if deadline is None:
            return bool(poll.poll())
        return bool(poll.poll(max(0.0, deadline - time.monotonic()) * 1000))


def shut_down(sock: socket.socket) -> None:
    """Ends both directions: a thread that waits on the socket wakes up. Any thread may call it."""
    try:
        # Not SSLSocket's method: it drops the TLS state while the other thread still uses it.
        socket.socket.shutdown(sock, socket.SHUT_RDWR)
    except OSError:
        pass  # it is closed already, or was never connected
