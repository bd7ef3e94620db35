"""Segments of every size, to the archive and back: no step holds the interpreter for long, or needs
memory in proportion to the segment."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import pytest

from quorum_wal.objectstore.errors import ObjectStoreError
from quorum_wal.objectstore.store import ObjectStore, open_store
from quorum_wal.safekeeper.archive_progress import ArchiveProgress, ArchiveSettings
from quorum_wal.safekeeper.archived_wal import IDLE_SECONDS, ArchivedWalReader
from quorum_wal.safekeeper.archiver import Archiver
from tests.interpreter_probe import assert_bounds
from tests.segment_files import EDGE_BYTES, edge, timeline_with_segments

MIB = 1 << 20
#: The largest is far more than the limit of memory, and takes a quarter of Postgres's largest.
SEGMENT_SIZES = (1 * MIB, 16 * MIB, 256 * MIB)
SEGNO = 1


class SameThread(Executor):
    """Runs a submitted call at once in the submitting thread, which is the one watched."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(fn(*args, **kwargs))
        return future


class NoUploads(Executor):
    """Every upload fails."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_exception(ObjectStoreError("no upload"))
        return future


class World:
    """A timeline of one whole segment, its archiver, a store, and a reader of the store."""

    def __init__(self, folder: Path, wal_seg_size: int) -> None:
        self.folder = folder
        self.wal_seg_size = wal_seg_size
        self.seconds = 0.0
        self.reader: ArchivedWalReader | None = None
        self.timeline = timeline_with_segments(folder / "timeline", wal_seg_size, 1)
        self.archive_in(str(folder / "archive"))

    def archive_in(self, url: str) -> None:
        self.store: ObjectStore = open_store(url)
        shutil.rmtree(self.folder / "archive", ignore_errors=True)
        self.begin()

    def begin(self) -> None:
        """A new archiver, the first in line, and a new reader, without any state."""
        self.progress = ArchiveProgress(ArchiveSettings(self.store.url, {}), self.wal_seg_size)
        self.archiver = Archiver(self.timeline, self.store, self.progress)
        self.end()
        self.reader = ArchivedWalReader(self.timeline, self.store, lambda: self.seconds)

    def end(self) -> None:
        self.seconds += IDLE_SECONDS
        assert self.reader is None or self.reader.release()

    def make_empty(self) -> None:
        self.archive_in(str(self.folder / "archive"))

    def make_empty_remote(self) -> None:
        """A store that takes objects as a whole."""
        self.archive_in("memory://")

    def make_archived(self) -> None:
        self.make_empty()
        self.archive()
        self.begin()

    def make_archived_remote(self) -> None:
        self.make_empty_remote()
        self.archive()
        self.begin()

    def make_archived_since(self) -> None:
        """Another archiver has uploaded the segment since this one looked."""
        self.make_empty()
        with pytest.raises(ObjectStoreError, match="no upload"):
            self.archiver.step(NoUploads())
        progress = ArchiveProgress(ArchiveSettings(self.store.url, {}), self.wal_seg_size)
        Archiver(self.timeline, self.store, progress).step(SameThread())
        assert progress.archived_lsn == 2 * self.wal_seg_size
        assert self.progress.archived_lsn == self.wal_seg_size

    # ---- the measured operations

    def archive(self) -> None:
        self.archiver.step(SameThread())
        assert self.progress.archived_lsn == 2 * self.wal_seg_size
        assert self.progress.uploaded_bytes == self.wal_seg_size

    def read(self) -> None:
        assert self.reader is not None
        begin_lsn, tail = SEGNO * self.wal_seg_size, self.wal_seg_size - EDGE_BYTES
        for offset in (0, tail):
            expected = edge(SEGNO, self.wal_seg_size, offset)
            assert self.reader.read(begin_lsn + offset, EDGE_BYTES) == expected
        assert self.reader.read(begin_lsn + tail - 10, 10) == bytes(10)


SHAPES: dict[str, tuple[Callable[[World], None], Callable[[World], None]]] = {
    "to a folder": (World.make_empty, World.archive),
    "to a remote store": (World.make_empty_remote, World.archive),
    "what is there": (World.make_archived_since, World.archive),
    "from a folder": (World.make_archived, World.read),
    "from a remote store": (World.make_archived_remote, World.read),
}


@pytest.mark.parametrize("wal_seg_size", SEGMENT_SIZES, ids=lambda size: f"{size // MIB} MiB")
@pytest.mark.parametrize("shape", SHAPES)
def test_nothing_holds_the_interpreter_or_takes_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shape: str, wal_seg_size: int
) -> None:
    monkeypatch.setattr(os, "fdatasync", lambda fd: None)  # would sync hundreds of megabytes
    make, act = SHAPES[shape]
    world = World(tmp_path, wal_seg_size)
    figures = assert_bounds(lambda: act(world), lambda: make(world))
    world.end()
    print(figures)
