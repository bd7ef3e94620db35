"""After a start: the logs that it had no time to look at, one after another.

A start reads every control file, and sees whether all segments are there. It decodes the ends of
as many logs as a few seconds allow, those that were written last first. The others are asleep, and
here each is woken once: what has rotted in its end is told within minutes, whether somebody uses it
or not. Law: this takes a share of one processor, however many there are.
"""

from __future__ import annotations

import time
from threading import Event

import structlog

from safekeeper.timelines import Timelines

log = structlog.get_logger()

#: A pause is so many times as long as the look before it.
PAUSE_FACTOR = 3.0


class StartCheck:
    """`run` in a thread of its own, which ends when all are known, or with `stopping`."""

    def __init__(self, timelines: Timelines) -> None:
        self._timelines = timelines

    def run(self, stopping: Event) -> None:
        begun, count = time.monotonic(), 0
        for timeline in self._timelines.all():
            if stopping.is_set():
                return
            if timeline.sleep.is_checked or not timeline.sleep.is_asleep:
                continue
            look_begun = time.monotonic()
            try:
                timeline.sleep.wake()
            except Exception as error:  # of ours, too: the others are looked at all the same
                name = str(timeline.control.timeline)
                log.warning("timeline not checked", timeline=name, reason=repr(error))
            count += 1
            stopping.wait(PAUSE_FACTOR * (time.monotonic() - look_begun))
        if count:
            log.info(
                "all timelines checked", count=count, seconds=round(time.monotonic() - begun, 1)
            )
