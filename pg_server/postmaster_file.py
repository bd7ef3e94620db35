"""`postmaster.pid`, by which a running server tells its state. Source: utils/pidfile.h.

    1  pid of the postmaster        4  port                  7  shared memory: key and id
    2  data directory               5  socket directory      8  status, padded with spaces
    3  start, seconds since 1970    6  first listen address

It is written line by line while the server starts; the last line is there when it can be believed.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

POSTMASTER_FILE = "postmaster.pid"


@dataclass(frozen=True, slots=True)
class PostmasterFile:
    """`status`: starting, stopping, ready; or standby, the final one of a standby that serves no
    queries."""

    pid: int
    port: int
    shared_memory_id: int | None
    status: str

    @classmethod
    def parse(cls, text: str) -> PostmasterFile | None:
        """None when it is being written."""
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
    """None when there is no server, or no whole file yet. Raises OSError."""
    try:
        text = (data_directory / POSTMASTER_FILE).read_text(encoding="ascii", errors="replace")
    except FileNotFoundError:
        return None
    return PostmasterFile.parse(text)


def is_process_alive(pid: int) -> bool:
    """Also one of another account; of a number that no process can have it cannot be told."""
    assert pid > 0
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True
