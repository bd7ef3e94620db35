"""A base backup that is unpacked, as the first frame: what the first epoch begins with.

Its backup_label comes along: the server that replays begins where the label says, and is consistent
where the backup ended. So the first cut lies behind that.
"""

from __future__ import annotations

import re
from pathlib import Path

from pageserver.errors import PageserverError
from pageserver.fork_table import read_fork_table
from pageserver.frame import AUTO_CONF, Frame, write_frame
from pgwal.lsn import Lsn

BACKUP_LABEL = "backup_label"
_START = re.compile(r"^START WAL LOCATION: ([0-9A-F]+/[0-9A-F]+) ", re.MULTILINE)


def read_start_lsn(label: bytes) -> int:
    """Where recovery begins. Raises PageserverError."""
    found = _START.search(label.decode(errors="replace"))
    if found is None:
        raise PageserverError(f"{BACKUP_LABEL} does not say where its WAL begins")
    return int(Lsn.parse(found[1]))


def frame_of_directory(path: Path, data_dir: Path) -> Frame:
    """Of an unpacked base backup, to a tar file at `path`. Raises PageserverError."""
    tablespaces = {
        int(link.name): str(link.readlink())
        for link in (data_dir / "pg_tblspc").iterdir()
        if link.is_symlink() and link.name.isdecimal()
    }
    auto_conf = data_dir / AUTO_CONF
    label = data_dir / BACKUP_LABEL
    return write_frame(
        path,
        data_dir,
        read_fork_table(data_dir),
        tablespaces,
        {AUTO_CONF: auto_conf.read_bytes()} if auto_conf.exists() else {},
        {BACKUP_LABEL: label.read_bytes()} if label.exists() else {},
    )
