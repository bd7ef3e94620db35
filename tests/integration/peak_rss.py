"""The most memory a process of ours ever had resident, by the kernel's own book-keeping."""

from __future__ import annotations

import re
from pathlib import Path

from quorum_wal.pg_fixtures.processes import ServiceProcess

#: What a proposer or a safekeeper may take, whatever the WAL is like: 200 MB.
RSS_BYTES_MAX = 200 << 20


def peak_rss_bytes(process: ServiceProcess) -> int:
    """VmHWM of its /proc status; of this run of it, not of its children."""
    text = Path(f"/proc/{process.pid}/status").read_text()
    found = re.search(r"^VmHWM:\s+(\d+) kB$", text, re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024
