"""The actions of a process in pageserver worlds when a core orders a survey or a merge."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from quorum_wal.pageserver.attachments import attachment_events as attaching

if TYPE_CHECKING:
    from .pageserver_process import Attached, Process

#: Of each part: the disk is full, or an answer is missing.
CHANCE_OF_FAILURE = 0.02
PART_US = (100, 1000, 10_000)


def execute_order(
    process: Process, there: Attached, action: attaching.SurveyLayers | attaching.MergeLayers
) -> None:
    """All layers in one request. A missing one is an error: another process has deleted it."""
    world, timeline = process.world, there.id.timeline
    failed = partial(_failed, process, there, action.number)

    def answered(contents: list[Any]) -> None:
        if None in contents:
            failed()
        elif isinstance(action, attaching.SurveyLayers):
            survey = world.history.survey(contents, action.cut.end_lsn)
            process.step_attached(there, attaching.LayersSurveyed(action.number, *survey))
        else:
            there.merges.add(action.number)
            there.changes[action.number] = world.history.merge(contents, action.cut.end_lsn)
            _hand_over(process, there, action.number, 0)

    read = lambda: [world.store.get(timeline, ref.name) for ref in action.layers]  # noqa: E731
    world.store.ask(read, process.later(answered), process.later(failed), is_write=False)


def _hand_over(process: Process, there: Attached, number: int, part: int) -> None:
    """One part after the other, while cuts continue."""
    random = process.world.random
    if part == len(there.changes[number]):
        process.step_attached(there, attaching.LayersMerged(number))
    elif random.random() < CHANCE_OF_FAILURE:
        _failed(process, there, number)
    else:
        process.step_attached(there, attaching.PartMerged(number, 100))
        again = process.later(partial(_hand_over, process, there, number, part + 1))
        process.world.clock.call_later(random.choice(PART_US), again)


def _failed(process: Process, there: Attached, number: int) -> None:
    process.world.count("merges broken off")
    there.changes.pop(number, None)
    process.step_attached(there, attaching.MergeFailed(number))
