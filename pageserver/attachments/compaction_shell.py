"""`CompactionShell`: surveys and merges layers as the core of an attachment orders.

    SurveyLayers -> a worker -> LayersSurveyed      MergeLayers -> a worker -> PartMerged, ...
                                                                               LayersMerged

Laws. It is busy with one order at a time. At most PARTS_WAITING_MAX parts, and one more that is
being made, lie on the local disk: the worker waits until they are in the store. What fails is said,
and tried again when the next compaction is due.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from threading import Semaphore
from typing import TypeVar

import structlog

from pageserver.attachments import attachment_events as events
from pageserver.attachments.attachment import Attachment
from pageserver.attachments.layer_merger import LayerMerger, LayerSurvey, MergeOrder, MergeUnwanted
from pageserver.attachments.turns import Turns
from pageserver.cuts.page_objects import PageObjects
from pageserver.layers.fork_table import ForkTable

T = TypeVar("T")

FOLDER = "merge"
PARTS_WAITING_MAX = 2
WAIT_SECONDS = 0.5

log = structlog.get_logger()


@dataclass(slots=True)
class CompactionState:
    """For status pages. `dead_share`: of the pages up to the horizon, when they were last surveyed
    or merged; None: not yet."""

    phase: str = "idle"
    problem: str = ""
    dead_share: float | None = None
    merges: int = 0
    read_bytes: int = 0
    written_bytes: int = 0
    seconds: float = 0.0


class CompactionShell:
    """Its methods are called within turns. `base_forks`: the lengths of forks in the base backup;
    None while they are not known. `step` takes an event to the core."""

    def __init__(
        self,
        turns: Turns,
        core: Attachment,
        objects: PageObjects,
        folder: Path,
        base_forks: Callable[[], ForkTable | None],
        step: Callable[[events.Event], None],
    ) -> None:
        self.state = CompactionState()
        self._turns = turns
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
        """With an order, or the core waits for its parts."""
        return self._is_busy or self._core.compaction.merge is not None

    def begin(self, number: int) -> None:
        if not self.is_busy and self._base_forks() is not None:
            self._step(events.CompactDue(number))

    def stop(self) -> None:
        """Any thread: the worker ends soon."""
        self._is_stopped = True

    def _is_wanted(self) -> bool:
        """Asked by the worker. It reads what turns write, and may see it a moment late."""
        merge = self._core.compaction.merge
        return not self._is_stopped and merge is not None and merge.number == self._number

    # ---- orders of the core

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
        assert base is not None, "it began with it"
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
        self._turns.work(attempt, answered, self._failed)

    def _end(self) -> None:
        self._is_busy, self.state.phase, self.state.problem = False, "idle", ""

    def _failed(self, error: Exception) -> None:
        self._end()
        if not isinstance(error, MergeUnwanted):
            self.state.problem = " ".join(str(error).split())
            self._log.warning("old layers are not merged", reason=self.state.problem)
        self._step(events.MergeFailed(self._number))

    # ---- parts

    def _hand_over(self, number: int) -> Callable[[Path], None]:
        """What the worker calls: returns when there is room for one more part."""

        def hand_over(path: Path) -> None:
            while not self._room.acquire(timeout=WAIT_SECONDS):
                if not self._is_wanted():
                    raise MergeUnwanted("the merge is not wanted any more")
            self._turns.post(lambda: self._part(number, path))

        return hand_over

    def _part(self, number: int, path: Path) -> None:
        self._paths.append(path)
        size_bytes = path.stat().st_size
        self.state.written_bytes += size_bytes
        self._step(events.PartMerged(number, size_bytes))

    def path(self, number: int, part: int) -> Path | None:
        """Of a part of the merge of that number; None: it is another's."""
        return self._paths[part] if number == self._number else None

    def uploaded(self, number: int, part: int) -> None:
        """The local file is not needed any more."""
        if number == self._number:
            self._paths[part].unlink(missing_ok=True)
            self._room.release()

    def stored(self, number: int) -> None:
        """An index names the layer."""
        if number == self._number:
            self.state.merges += 1
            self.state.dead_share = 0.0
            self._log.info("old layers were merged", parts=len(self._paths))
