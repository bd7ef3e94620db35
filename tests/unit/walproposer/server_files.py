"""`ServerFiles`: what a proposer reads in the data directory of a server."""

from __future__ import annotations

import sys
from pathlib import Path

SYSTEM_ID = 0xF123_4567_89AB_CDEF


class ServerFiles:
    """A data directory without a postmaster.pid."""

    def __init__(self, path: Path) -> None:
        self.path = path
        (path / "PG_VERSION").write_text("15\n")
        (path / "global").mkdir()
        control = SYSTEM_ID.to_bytes(8, sys.byteorder) + bytes(504)
        (path / "global" / "pg_control").write_bytes(control)

    def tell(self, pid: int, status: str) -> None:
        """Write postmaster.pid."""
        lines = (str(pid), str(self.path), "1763938000", "5432", "", "127.0.0.1", "1 2", status)
        (self.path / "postmaster.pid").write_text("\n".join(lines) + "\n")
