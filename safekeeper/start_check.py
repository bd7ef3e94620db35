"""After a start: checks the logs that the start did not decode, one after another.

A start reads every control file and checks that all segments exist. It decodes the ends of as many
logs as a few seconds allow, those that were written last first. The others are asleep; here each of
them is woken once. So damage at a log's end is reported within minutes, whether the log is used or
not. Law: this takes a share of one processor, however many logs there are.
"""

from __future__ import annotations

import time
from threading import Event

import structlog

from quorum_wal.safekeeper.timelines import Timelines

log = structlog.get_logger()

#: A pause is so many times as long as the check before it.
PAUSE_FACTOR = 3.0


class StartCheck:
    """`run` uses a thread of its own, which ends when all logs are checked, or with `stopping`."""

    def __init__(self, timelines: Timelines) -> None:
        self._timelines = timelines

    def run(self, stopping: Event) -> None:
        begun, count = time.monotonic(), 0
        for timeline in self._timelines.all():
            if stopping.is_set():
                return
            if timeline.sleep.is_checked or not timeline.sleep.is_asleep:
                continue
            check_begun = time.monotonic()
            try:
                timeline.sleep.wake()
            except Exception as error:  # bugs too: the others must still be checked
                name = str(timeline.control.timeline)
                log.warning("timeline not checked", timeline=name, reason=repr(error))
            count += 1
            stopping.wait(PAUSE_FACTOR * (time.monotonic() - check_begun))
        if count:
            log.info(
                "all timelines checked", count=count, seconds=round(time.monotonic() - begun, 1)
            )
