"""Copies of one timeline's folder under other names, on a stopped safekeeper.

Each copy is complete: the same WAL, and a control file with its own name. Creating and filling a
thousand timelines from real primaries takes an hour, and a safekeeper cannot see the difference.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from quorum_wal.consensus.ids import TimelineId
from quorum_wal.safekeeper.control_file import CONTROL_FILE_NAME, ControlFile
from quorum_wal.safekeeper.control_state import encode_control_state
from quorum_wal.safekeeper.data_directory import folder_name


def clone_timeline(data_dir: Path, source: TimelineId, names: Iterable[TimelineId]) -> None:
    """Nothing is synced. Before measuring a disk, call os.sync()."""
    folder = data_dir / "timelines" / folder_name(source)
    state = ControlFile.read(folder).state
    for name in names:
        clone = folder.with_name(folder_name(name))
        shutil.copytree(folder, clone, ignore=shutil.ignore_patterns("next-segment*", "slots"))
        content = encode_control_state(replace(state, timeline=name))
        (clone / CONTROL_FILE_NAME).write_bytes(content)


def numbered_names(count: int, tenant_id: bytes = b"many".ljust(16, b"\0")) -> list[TimelineId]:
    """Names of one tenant."""
    return [TimelineId(tenant_id, number.to_bytes(16, "big")) for number in range(1, count + 1)]
