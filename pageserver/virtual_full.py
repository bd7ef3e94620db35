"""A virtual full: a data directory at a cut, out of its frame, the layers and the base below them.

    frame        all that is no relation        layers, base     pages, newest first

It is what a standby that was stopped at that cut has, byte for byte (bits of visibility maps may be
missing; free-space maps are left out: VACUUM makes them anew). Started on it, a server replays from
the cut's redo on.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from pageserver.frame import Frame
from pageserver.page_files import PageFiles
from pageserver.page_stack import PageBase


def write_virtual_full(
    data_dir: Path,
    frame: Frame,
    source: PageBase,
    *,
    pg_major: int,
    give: Callable[[Path], None],
    progress: Callable[[int], None] = lambda pages: None,
) -> None:
    """Into an empty folder; tablespaces become folders in pg_tblspc. Raises PageserverError."""
    frame.unpack(data_dir, give=give, with_kept=True)
    files = PageFiles(data_dir, frame.control_file().version_folder(pg_major), give)
    for fork in sorted(frame.forks):
        blocks = frame.forks[fork]
        files.make(fork, blocks)
        files.fill(fork, np.arange(blocks, dtype=np.uint32), source)
        progress(blocks)
