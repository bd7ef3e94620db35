"""`CompactionShell`: surveys and merges layers for the core of an attachment.

    SurveyLayers -> a worker -> LayersSurveyed      MergeLayers -> a worker -> PartMerged, ...
                                                                               LayersMerged

Laws. It executes one action at a time. At most PARTS_WAITING_MAX parts, and the part being written,
are on the local disk: the worker waits until earlier parts are in the store. A failure is logged,
and the merge is tried again when the next compaction is due.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from threading import Semaphore
from typing import TypeVar

import structlog

from quorum_wal.pageserver.attachments import attachment_events as events
from quorum_wal.pageserver.attachments.attachment import Attachment
from quorum_wal.pageserver.attachments.event_loop import EventLoop
from quorum_wal.pageserver.attachments.layer_merger import (
    LayerMerger,
    LayerSurvey,
    MergeCancelled,
    MergeOrder,
)
from quorum_wal.pageserver.cuts.page_objects import PageObjects
from quorum_wal.pageserver.layers.fork_table import ForkTable

T = TypeVar("T")

FOLDER = "merge"
PARTS_WAITING_MAX = 2
WAIT_SECONDS = 0.5

log = structlog.get_logger()


@dataclass(slots=True)
class CompactionState:
    """For status pages. `dead_share`: share of dead pages up to the horizon at the last survey or
    merge, or None before the first one."""

    phase: str = "idle"
    problem: str = ""
    dead_share: float | None = None
    merges: int = 0
    read_bytes: int = 0
    written_bytes: int = 0
    seconds: float = 0.0


class CompactionShell:
    """Call its methods on the event loop. `base_forks` returns the fork lengths in the base backup,
    or None while they are unknown. `step` passes an event to the core."""

    def __init__(
        self,
        loop: EventLoop,
        core: Attachment,
        objects: PageObjects,
        folder: Path,
        base_forks: Callable[[], ForkTable | None],
        step: Callable[[events.Event], None],
    ) -> None:
        self.state = CompactionState()
        self._loop = loop
        self._core = core
        self._base_forks = base_forks
        self._step = step
        self._number = -1
        self._is_busy = self._is_stopped = False
        self._paths: list[Path] = []
        self._room = Semaphore(PARTS_WAITING_MAX)
        self._merger = LayerMerger(objects, folder / FOLDER, self._is_wanted)
        self._log = log.bind(timeline=str(objects.keys.timeline))

    @property
    def is_busy(self) -> bool:
        """Whether an action is being executed, or the core waits for parts."""
        return self._is_busy or self._core.compaction.merge is not None

    def begin(self, number: int) -> None:
        if not self.is_busy and self._base_forks() is not None:
            self._step(events.CompactDue(number))

    def stop(self) -> None:
        """The worker ends soon. May be called on any thread."""
        self._is_stopped = True

    def _is_wanted(self) -> bool:
        """Called by the worker. It reads values that the event loop writes, and may see a change
        slightly late."""
        merge = self._core.compaction.merge
        return not self._is_stopped and merge is not None and merge.number == self._number

    # ---- actions of the core

    def execute(self, action: events.SurveyLayers | events.MergeLayers) -> None:
        if isinstance(action, events.SurveyLayers):
            self._survey(action)
        else:
            self._merge(action)

    def _survey(self, action: events.SurveyLayers) -> None:
        self._number = action.number
        order = MergeOrder(self._core.desired, action.cut, action.layers)

        def answered(found: LayerSurvey) -> None:
            self._end()
            dead = found.all_pages - found.live_pages
            self.state.dead_share = dead / found.all_pages if found.all_pages else 0.0
            self._step(events.LayersSurveyed(action.number, found.live_pages, found.all_pages))

        self._work("surveying", lambda: self._merger.survey(order), answered)

    def _merge(self, action: events.MergeLayers) -> None:
        self._paths, self._room = [], Semaphore(PARTS_WAITING_MAX)
        order = MergeOrder(self._core.desired, action.cut, action.layers)
        base = self._base_forks()
        assert base is not None, "begin() checked base_forks"
        begun = time.monotonic()

        def answered(_: None) -> None:
            self._end()
            self.state.seconds += time.monotonic() - begun
            self.state.read_bytes += sum(layer.size_bytes for layer in action.layers)
            self._step(events.LayersMerged(action.number))

        hand_over = self._hand_over(action.number)
        self._work("merging", lambda: self._merger.merge(order, base, hand_over), answered)

    def _work(self, phase: str, attempt: Callable[[], T], answered: Callable[[T], None]) -> None:
        self._is_busy, self.state.phase = True, phase
        self._loop.work(attempt, answered, self._failed)

    def _end(self) -> None:
        self._is_busy, self.state.phase, self.state.problem = False, "idle", ""

    def _failed(self, error: Exception) -> None:
        self._end()
        if not isinstance(error, MergeCancelled):
            self.state.problem = " ".join(str(error).split())
            self._log.warning("could not merge old layers", reason=self.state.problem)
        self._step(events.MergeFailed(self._number))

    # ---- parts

    def _hand_over(self, number: int) -> Callable[[Path], None]:
        """Returns a function for the worker. It blocks until there is room for one more part."""

        def hand_over(path: Path) -> None:
            while not self._room.acquire(timeout=WAIT_SECONDS):
                if not self._is_wanted():
                    raise MergeCancelled("the merge was cancelled")
            self._loop.post(lambda: self._part(number, path))

        return hand_over

    def _part(self, number: int, path: Path) -> None:
        self._paths.append(path)
        size_bytes = path.stat().st_size
        self.state.written_bytes += size_bytes
        self._step(events.PartMerged(number, size_bytes))

    def path(self, number: int, part: int) -> Path | None:
        """The local file of a part, or None if `number` is not the current merge."""
        return self._paths[part] if number == self._number else None

    def uploaded(self, number: int, part: int) -> None:
        """Removes the local file of an uploaded part."""
        if number == self._number:
            self._paths[part].unlink(missing_ok=True)
            self._room.release()

    def stored(self, number: int) -> None:
        """An index in the store names the new layer."""
        if number == self._number:
            self.state.merges += 1
            self.state.dead_share = 0.0
            self._log.info("merged old layers", parts=len(self._paths))
