"""`python -m quorum_wal.backup.prefetcher`: the process that prefetches segments
(`wal_prefetch.py`).

It reads its settings as JSON from stdin and inherits the lock of the folder. It reports nothing:
`sk archive fetch` meets the same failure and reports it.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from quorum_wal.backup.archived_wal import ArchivedWalSource
from quorum_wal.backup.errors import BackupError
from quorum_wal.backup.wal_prefetch import POLL_SECONDS, TEMPORARY, PrefetchFolder
from quorum_wal.consensus.ids import TimelineId
from quorum_wal.objectstore.archive import TimelineArchive, require_archive
from quorum_wal.objectstore.errors import ObjectStoreError
from quorum_wal.objectstore.store import open_store
from quorum_wal.pgwal.errors import WalError
from quorum_wal.pgwal.segment import format_segment_name, parse_segment_name
from quorum_wal.storage.errors import StorageError

IDLE_SECONDS = 5.0
THREADS = 4
#: A limit for large segments.
AHEAD_BYTES_MAX = 256 * 1024 * 1024


class Prefetcher:
    """`run` returns at the end of the WAL, or after IDLE_SECONDS without a taken segment."""

    def __init__(self, folder: PrefetchFolder, archive: TimelineArchive, ahead: int) -> None:
        self._folder = folder
        self._source = ArchivedWalSource(lambda: archive)
        self._wal_seg_size = archive.facts.wal_seg_size
        self._ahead = max(1, min(ahead, AHEAD_BYTES_MAX // self._wal_seg_size))
        #: By segment name; the result says whether the segment was stored in the folder.
        self._jobs: dict[str, Future[bool]] = {}

    def run(self) -> None:
        asked = last = ""
        moved_at = time.monotonic()
        with ThreadPoolExecutor(THREADS) as pool:
            while (now_asked := self._folder.asked()) is not None:
                # In this order: a finished segment that is not in the folder was taken or failed.
                finished = {name for name, job in self._jobs.items() if job.done()}
                ready = self._folder.ready()
                gone = finished - ready
                taken = {name for name in gone if self._jobs[name].result()}
                if now_asked != asked:
                    asked = last = now_asked
                    self._forget(gone)  # a failed segment may be in the archive by now
                elif not taken:
                    is_idle = len(finished) == len(self._jobs)
                    if is_idle and time.monotonic() - moved_at > IDLE_SECONDS:
                        return
                    time.sleep(POLL_SECONDS)
                    continue
                moved_at = time.monotonic()
                last = max({last, *taken})
                self._forget(taken)
                self._keep(pool, self._from(last), ready)

    def _from(self, last: str) -> list[str]:
        """`last` and the segments to prefetch after it."""
        first = parse_segment_name(last, self._wal_seg_size)
        return [
            format_segment_name(first.tli, first.segno + number, self._wal_seg_size)
            for number in range(self._ahead + 1)
        ]

    def _keep(self, pool: ThreadPoolExecutor, names: Sequence[str], ready: set[str]) -> None:
        """Removes all other segments and fetches those that are missing. The first of `names` is
        fetched by the process that asked for it."""
        for name in ready.difference(names):
            (self._folder.path / name).unlink(missing_ok=True)
            self._forget({name})
        for name in names[1:]:
            if name not in ready and name not in self._jobs:
                self._jobs[name] = pool.submit(self._make_ready, name)

    def _forget(self, names: set[str]) -> None:
        for name in names:
            self._jobs.pop(name, None)

    def _make_ready(self, name: str) -> bool:
        temporary = self._folder.path / f"{name}{TEMPORARY}"
        try:
            temporary.touch(mode=0o600)
            content = self._source.segment(name)
            is_whole = len(content) == self._wal_seg_size
            if is_whole:
                self._folder.add(name, content)
            return is_whole
        except (ObjectStoreError, BackupError, WalError, StorageError, OSError):
            return False  # the restore_command meets the same error, and reports it
        finally:
            temporary.unlink(missing_ok=True)


def prefetch(settings: dict[str, Any]) -> None:
    """Raises ObjectStoreError, OSError."""
    folder = PrefetchFolder(Path(settings["folder"]))
    try:
        store = open_store(settings["url"], settings["options"])
        archive = require_archive(store, TimelineId.parse(settings["timeline"]))
        Prefetcher(folder, archive, settings["ahead"]).run()
    finally:
        folder.remove()


def main() -> None:
    try:
        prefetch(json.load(sys.stdin))
    except (ObjectStoreError, OSError):
        sys.exit(1)


if __name__ == "__main__":
    main()
