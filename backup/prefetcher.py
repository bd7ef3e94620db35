"""`python -m backup.prefetcher`: the process that makes segments ready (`wal_prefetch.py`).

Its settings come as JSON on stdin. It says nothing: whatever fails here happens again in
`sk archive fetch`, which tells.
"""

from __future__ import annotations

import fcntl
import json
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from backup.archived_wal import ArchivedWalSource
from backup.errors import BackupError
from backup.wal_prefetch import LOCK, TEMPORARY, PrefetchFolder
from consensus.ids import TimelineId
from objectstore.archive import TimelineArchive, require_archive
from objectstore.errors import ObjectStoreError
from objectstore.store import open_store
from pgwal.errors import WalError
from pgwal.segment import format_segment_name, parse_segment_name
from storage.errors import StorageError

IDLE_SECONDS = 5.0
POLL_SECONDS = 0.02
THREADS = 4
#: However large the segments are.
AHEAD_BYTES_MAX = 256 * 1024 * 1024


class Prefetcher:
    """`run` until the end is reached, or nobody has asked for `IDLE_SECONDS`."""

    def __init__(self, folder: PrefetchFolder, archive: TimelineArchive, ahead: int) -> None:
        self._folder = folder
        self._source = ArchivedWalSource(lambda: archive)
        self._wal_seg_size = archive.facts.wal_seg_size
        self._ahead = max(1, min(ahead, AHEAD_BYTES_MAX // self._wal_seg_size))
        self._absent: set[str] = set()

    def run(self, clock: Callable[[], float] = time.monotonic) -> None:
        asked, asked_at = "", clock()
        with ThreadPoolExecutor(THREADS) as pool:
            while (now_asked := self._folder.asked()) is not None:
                if now_asked != asked:
                    asked, asked_at = now_asked, clock()
                    self._absent.clear()
                    self._remove_old(asked)
                wanted = self._wanted(asked)
                if wanted:
                    # One after the other for each: the nearest are asked for first.
                    list(pool.map(self._make_ready, wanted))
                elif clock() - asked_at > IDLE_SECONDS:
                    return
                else:
                    time.sleep(POLL_SECONDS)

    def _wanted(self, asked: str) -> list[str]:
        last = parse_segment_name(asked, self._wal_seg_size)
        there = {path.name.partition("-")[0] for path in self._folder.ready()} | self._absent
        names = [
            format_segment_name(last.tli, last.segno + number, self._wal_seg_size)
            for number in range(1, self._ahead + 1)
        ]
        return [name for name in names if name not in there]

    def _make_ready(self, name: str) -> None:
        temporary = self._folder.path / f"{name}{TEMPORARY}"
        try:
            temporary.touch(mode=0o600)
            content = self._source.segment(name)
            if len(content) == self._wal_seg_size:
                self._folder.add(name, content)
            else:
                self._absent.add(name)
        except (ObjectStoreError, BackupError, WalError, StorageError, OSError):
            self._absent.add(name)  # whoever needs it meets the same error, and tells
        finally:
            temporary.unlink(missing_ok=True)

    def _remove_old(self, asked: str) -> None:
        """What will not be asked for: it is behind, or of another timeline. The one asked for is
        about to be taken."""
        wanted = {
            format_segment_name(asked_name.tli, asked_name.segno + number, self._wal_seg_size)
            for asked_name in [parse_segment_name(asked, self._wal_seg_size)]
            for number in range(self._ahead + 1)
        }
        for path in self._folder.ready():
            if path.name.partition("-")[0] not in wanted:
                path.unlink(missing_ok=True)


def prefetch(settings: dict[str, Any]) -> None:
    """Raises ObjectStoreError, OSError."""
    folder = PrefetchFolder(Path(settings["folder"]))
    with (folder.path / LOCK).open("wb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return  # another one runs
        try:
            store = open_store(settings["url"], settings["options"])
            wanted = TimelineId.parse(settings["timeline"]) if settings["timeline"] else None
            archive = require_archive(store, wanted)
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
