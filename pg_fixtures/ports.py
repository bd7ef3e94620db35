"""`free_port`: a TCP port on 127.0.0.1 that stays reserved, even while nothing listens on it.

For port 0 the kernel chooses from the ephemeral range, from which every outgoing connection takes
its local port too. A restarted service would sometimes find its port in use. So ports come from
below that range, in blocks of BLOCK_PORTS. A process reserves a block by binding an abstract unix
socket with the block's name. That is atomic within a network namespace, and the kernel releases it
when the process ends.
"""

from __future__ import annotations

import os
import random
import socket
import threading

from quorum_wal.pg_server.errors import Unavailable

PORT_FIRST = 10_000
PORT_END = 32_700  # Linux starts its ephemeral range at 32768
BLOCK_PORTS = 100  # a process with 2000 tests of 10 ports each holds 200 reservations

_lock = threading.Lock()
_free: list[int] = []
_reserved_by_pid = 0


def free_port() -> int:
    """A port without a listener, which no later call returns, in this process or another.

    Raises Unavailable if no ports are left.
    """
    global _reserved_by_pid
    with _lock:
        if _reserved_by_pid != os.getpid():  # after a fork the block belongs to the parent
            _reserved_by_pid = os.getpid()
            _free.clear()
        while True:
            if not _free:
                _free.extend(_reserve_block())
            port = _free.pop(0)
            if _is_free(port):
                return port


def _reserve_block() -> range:
    first_ports = list(range(PORT_FIRST, PORT_END, BLOCK_PORTS))
    random.Random().shuffle(first_ports)  # so that processes rarely try the same block first
    for first in first_ports:
        reservation = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            reservation.bind(f"\0pg_fixtures/ports/{first}")
        except OSError:
            reservation.close()
        else:
            reservation.detach()  # stays open until the process ends; not inherited by exec
            return range(first, first + BLOCK_PORTS)
    raise Unavailable(f"no TCP port is free between {PORT_FIRST} and {PORT_END}")


def _is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do
        try:
            probe.bind(("127.0.0.1", port))
            probe.listen(1)
        except OSError:
            return False
        return True
