"""The peak of the resident memory of a process, as the kernel counts it."""

from __future__ import annotations

import re
from pathlib import Path

from quorum_wal.pg_fixtures.processes import ServiceProcess

#: The limit for a proposer or a safekeeper, with any WAL: 200 MB.
RSS_BYTES_MAX = 200 << 20


def peak_rss_bytes(process: ServiceProcess) -> int:
    """VmHWM in /proc/PID/status: of this run of the process, without its children."""
    text = Path(f"/proc/{process.pid}/status").read_text()
    found = re.search(r"^VmHWM:\s+(\d+) kB$", text, re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024
