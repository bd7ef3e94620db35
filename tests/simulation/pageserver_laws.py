"""The laws of pageservers, checked whenever an object lands in the store, or is asked to go.

    NamedExists    what the newest index names is there; and what a reader read, within the grace
    HistoryServed  every cut of the newest index can be read from what it names; no horizon goes
                   back
    PagesServed    its pages are those that there were
    TrimSafe       WAL from the redo of the newest index on was not given up
    SuffixUnique   the objects of one suffix have one writer; a name never has two contents
    NoResurrection nothing begins after the tombstone; in the end there is nothing else
    MultiReads     what the attachment before a migration names is there while it is read from
    BeginsBelow    an attachment begins with no index above its suffix, and with what it says
    StaleIsQuiet   who was told to be stale asks the store for nothing but reads
    GarbageEnds    in quiet, what no index names goes; so do lists
    Advances       in quiet, WAL is given up

This module shares no code with the cores, but for the values.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from quorum_wal.consensus.ids import TimelineId
from quorum_wal.generations.suffix import Suffix
from quorum_wal.pageserver.attachments.attachment import Attachment
from quorum_wal.pageserver.layers.layer_file import Limits
from quorum_wal.pageserver.objects.page_index import PageIndex
from quorum_wal.pageserver.objects.page_keys import (
    ClaimName,
    FrameName,
    IndexName,
    LayerName,
    ListName,
    TombstoneName,
)

from .broken_law import check
from .pageserver_history import Pages, PartContent, base_pages

if TYPE_CHECKING:
    from .pageserver_process import Process
    from .pageserver_store import StoredObject
    from .pageserver_world import PageserverWorld


class PageserverLaws:
    def __init__(self, world: PageserverWorld) -> None:
        self._world = world
        #: For each timeline, the greatest index that ever landed.
        self.chosen: dict[TimelineId, StoredObject] = {}
        self.trimmed_lsn: dict[TimelineId, int] = {}
        self.tombstone_us: dict[TimelineId, int] = {}
        self._writers: dict[tuple[Any, Any], str] = {}
        self._horizon_lsn: dict[tuple[TimelineId, Suffix], int] = {}
        self._contents: dict[tuple[Any, str], Any] = {}
        #: Attachments that serve reads while their successor is MULTI, by the tenant's timeline.
        self._multi: dict[TimelineId, PageIndex] = {}

    # ---- the store

    def created(self, folder: Any, found: StoredObject) -> None:
        name = found.name
        if isinstance(name, TombstoneName):
            self.tombstone_us.setdefault(folder, self._world.clock.now_us)
            return
        if folder in self.tombstone_us:
            return  # late: it will be removed
        self._check_writer(folder, found)
        before = self._contents.setdefault((folder, name.format()), found.content)
        check("SuffixUnique", before == found.content, name.format(), "has another content")
        if isinstance(name, IndexName):
            newest = self.chosen.get(folder)
            if newest is None or name > newest.name:
                self._check_chosen(folder, found)
                self.chosen[folder] = found

    def created_again(self, folder: Any, found: StoredObject, content: Any, writer: str) -> None:
        """A name that exists: by the same writer the content is the same."""
        if writer == found.writer and not isinstance(found.name, TombstoneName):
            check("SuffixUnique", content == found.content, found.name.format(), "differs")

    def _check_writer(self, folder: Any, found: StoredObject) -> None:
        writer = self._writers.setdefault((folder, found.name.suffix), found.writer)
        text = f"{found.name.format()} by {found.writer} and {writer}"
        check("SuffixUnique", writer == found.writer, text)

    def _check_chosen(self, timeline: TimelineId, found: StoredObject) -> None:
        index, objects = found.content, self._world.store.pages[timeline]
        for ref in (*index.layers, *index.frames):
            text = ref.name.format()
            check("NamedExists", text in objects, found.name.format(), "names", text)
        self._check_served(timeline, found)
        trimmed_lsn = self.trimmed_lsn.get(timeline, 0)
        is_safe = index.newest_redo_lsn >= trimmed_lsn
        check("TrimSafe", is_safe, found.name.format(), index.newest_redo_lsn, "<", trimmed_lsn)
        self._check_horizon(timeline, found)

    def _check_horizon(self, timeline: TimelineId, found: StoredObject) -> None:
        """An index continues from the previous one of its suffix, or from the one that it began
        with."""
        key = timeline, found.name.suffix
        before_lsn = self._horizon_lsn.get(key, 0)
        is_kept = found.content.horizon_lsn >= before_lsn
        check("HistoryServed", is_kept, found.name.format(), "has a lower horizon")
        self._horizon_lsn[key] = found.content.horizon_lsn

    def _check_served(self, timeline: TimelineId, found: StoredObject) -> None:
        """By the layers up to a cut: the whole log below it; and by its frame."""
        index, name = found.content, found.name.format()
        objects = self._world.store.pages[timeline]
        frames = {frame.end_lsn for frame in index.frames}
        layers: dict[int, dict[int, PartContent]] = {}
        for ref in index.layers:
            content = objects[ref.name.format()].content
            check(
                "HistoryServed", content.end_lsn == ref.end_lsn, name, "names what ends elsewhere"
            )
            parts = layers.setdefault(ref.end_lsn, {})
            check("HistoryServed", ref.part not in parts, name, "names a part twice")
            parts[ref.part] = content
        reached = reach((end, parts[0].begin_lsn) for end, parts in layers.items() if 0 in parts)
        for cut in index.cuts:
            check("HistoryServed", cut.end_lsn >= index.horizon_lsn, "a cut below the horizon")
            check("HistoryServed", cut.end_lsn in frames, name, "lacks a frame")
            check("HistoryServed", cut.end_lsn in reached, name, "lacks", cut.end_lsn)
        self._check_pages(index, layers, name)

    def _check_pages(
        self, index: PageIndex, layers: dict[int, dict[int, PartContent]], name: str
    ) -> None:
        """At each cut the layers give the right pages."""
        cuts = {cut.end_lsn for cut in index.cuts}
        pages = base_pages()
        for end_lsn in sorted(layers):
            parts = layers[end_lsn]
            cut_off(pages, parts[0].limits)
            for part in parts.values():
                pages.update(part.pages)
            if end_lsn in cuts:
                state = self._world.history.states[end_lsn]
                found = {
                    (fork, block): page
                    for (fork, block), page in pages.items()
                    if block < state.lengths.get(fork, 0)
                }
                is_right = found == state.pages
                check("PagesServed", is_right, name, "at", end_lsn, found, "not", state.pages)

    def deleted(self, folder: Any, found: StoredObject) -> None:
        name = found.name
        if not isinstance(folder, TimelineId) or folder in self.tombstone_us:
            return
        newest = self.chosen.get(folder)
        if newest is not None:
            is_named = name == newest.name or name in newest.content.names
            check("NamedExists", not is_named, name.format(), "is gone,", newest.name.format())
        is_kept = not isinstance(name, ClaimName | TombstoneName)
        check("SuffixUnique", is_kept, name.format(), "is gone")
        read = self._multi.get(folder)
        check("MultiReads", read is None or name not in read.names, name.format(), "is gone")

    # ---- processes

    def trimmed(self, timeline: TimelineId, lsn: int) -> None:
        """WAL below that position is removed, whichever process released it."""
        if lsn > self.trimmed_lsn.get(timeline, 0) and timeline not in self.tombstone_us:
            self.trimmed_lsn[timeline] = lsn
            newest = self.chosen.get(timeline)
            has_redo_lsn = newest.content.newest_redo_lsn if newest else 0
            check("TrimSafe", has_redo_lsn >= lsn, f"trimmed to {lsn}, needed from {has_redo_lsn}")

    def became_active(self, timeline: TimelineId, core: Attachment, listed_us: int) -> None:
        self._horizon_lsn[timeline, core.suffix] = core.index.horizon_lsn
        if core.index_name is not None:
            is_below = core.index_name.suffix <= core.suffix
            check("BeginsBelow", is_below, core.suffix, "with", core.index_name.format())
            loaded = self._contents.get((timeline, core.index_name.format()))
            is_that = loaded is None or core.index == loaded
            check("BeginsBelow", is_that, core.suffix, "says otherwise", core.index_name.format())
        tombstone_us = self.tombstone_us.get(timeline)
        is_lawful = tombstone_us is None or listed_us <= tombstone_us
        check("NoResurrection", is_lawful, f"{timeline} is attached after it was deleted")

    def writes(self, process: Process, told_stale: bool, what: str) -> None:
        check("StaleIsQuiet", not told_stale, process.name, "is stale, and asks for", what)

    def multi_began(self, timeline: TimelineId, index: PageIndex) -> None:
        self._multi[timeline] = index

    def multi_ended(self, timeline: TimelineId) -> None:
        self._multi.pop(timeline, None)

    def read(self, timeline: TimelineId, loaded: StoredObject) -> None:
        """By a reader whose index was the newest, within the grace."""
        if timeline in self.tombstone_us:
            return
        objects = self._world.store.pages[timeline]
        for name in loaded.content.names:
            is_there = name.format() in objects
            check("NamedExists", is_there, "a reader of", loaded.name.format(), "lacks", name)

    # ---- in quiet

    def garbage(self) -> str:
        """The objects that should have been deleted, or ""."""
        for timeline in self._world.timelines:
            objects = self._world.store.folder(timeline).values()
            if timeline in self.tombstone_us:
                left = [o for o in objects if not isinstance(o.name, TombstoneName)]
                if left:
                    return f"NoResurrection: {left[0].name.format()} below a tombstone"
                continue
            indices = [o for o in objects if isinstance(o.name, IndexName)]
            named = frozenset[Any]().union(*(o.content.names for o in indices))
            for found in objects:
                if isinstance(found.name, LayerName | FrameName) and found.name not in named:
                    return f"GarbageEnds: {found.name.format()} is there"
        return ""

    def lists(self) -> str:
        for node_id, queue in self._world.store.queues.items():
            lists = [found for found in queue.values() if isinstance(found.name, ListName)]
            if lists:
                return f"GarbageEnds: {lists[0].name.format()} of node {node_id} is there"
        return ""


def reach(ranges: Iterable[tuple[int, int]]) -> set[int]:
    """The ends up to which ranges (end, begin) leave no gap, from 0 on."""
    ends, reached = set[int](), 0
    for end_lsn, begin_lsn in sorted(ranges):
        if begin_lsn > reached:
            break
        reached = max(reached, end_lsn)
        ends.add(end_lsn)
    return ends


def cut_off(pages: Pages, limits: Limits) -> None:
    """The removed pages."""
    for fork, block in list(pages):
        is_dropped = any(
            (each.tablespace, each.database) == (fork.tablespace, fork.database)
            for each in limits.databases
        )
        if is_dropped or block >= limits.blocks.get(fork, block + 1):
            del pages[fork, block]
