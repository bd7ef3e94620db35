"""The socket of a service manager, which a service tells how it is."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def notify_socket(path: Path, timeout_seconds: float) -> Iterator[socket.socket]:
    """What is sent to `path` is received within so long."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(path))
        sock.settimeout(timeout_seconds)
        yield sock
