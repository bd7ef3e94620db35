"""The socket of a service manager, which receives the state of a service."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def notify_socket(path: Path, timeout_seconds: float) -> Iterator[socket.socket]:
    """A socket at `path`; each message must arrive within the timeout."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(path))
        sock.settimeout(timeout_seconds)
        yield sock
