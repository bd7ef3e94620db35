"""`postmaster.pid`, in which a running server reports its state. Source: utils/pidfile.h.

    1  pid of the postmaster        4  port                  7  shared memory: key and id
    2  data directory               5  socket directory      8  status, padded with spaces
    3  start, seconds since 1970    6  first listen address

The server writes the file line by line while it starts. The file is valid once it has the last
line.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

POSTMASTER_FILE = "postmaster.pid"


@dataclass(frozen=True, slots=True)
class PostmasterFile:
    """`status`: starting, stopping, ready; or standby, the final status of a standby that does not
    accept queries."""

    pid: int
    port: int
    shared_memory_id: int | None
    status: str

    @classmethod
    def parse(cls, text: str) -> PostmasterFile | None:
        """Returns None while the server is still writing the file."""
        lines = text.splitlines()
        try:
            shared_memory = lines[6].split()
            return cls(
                pid=int(lines[0]),
                port=int(lines[3]),
                shared_memory_id=int(shared_memory[1]) if len(shared_memory) == 2 else None,
                status=lines[7].strip(),
            )
        except (IndexError, ValueError):
            return None

    @property
    def accepts_connections(self) -> bool:
        return self.status in ("ready", "standby")


def read_postmaster_file(data_directory: Path) -> PostmasterFile | None:
    """Returns None when there is no server, or the file is incomplete. Raises OSError."""
    try:
        text = (data_directory / POSTMASTER_FILE).read_text(encoding="ascii", errors="replace")
    except FileNotFoundError:
        return None
    return PostmasterFile.parse(text)


def is_process_alive(pid: int) -> bool:
    """Also True for a process of another account, and for a number too large to check."""
    assert pid > 0
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True
