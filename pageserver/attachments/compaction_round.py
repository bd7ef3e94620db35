"""`CompactionRound`: whose old layers are looked at next: of all timelines of a process one at a
time is merged."""

from __future__ import annotations

from collections.abc import Iterable

from pageserver.attachments.attachment_shell import AttachmentShell


class CompactionRound:
    """Called within turns."""

    def __init__(self) -> None:
        #: In the order in which they were asked.
        self._asked: list[AttachmentShell] = []

    def begin(self, attached: Iterable[AttachmentShell]) -> None:
        """Who was asked longest ago is asked first; none while one is busy."""
        shells = list(attached)
        self._asked = [each for each in self._asked if each in shells]
        for shell in [*(each for each in shells if each not in self._asked), *self._asked]:
            if any(each.compaction is not None and each.compaction.is_busy for each in shells):
                return
            self._asked = [*(each for each in self._asked if each is not shell), shell]
            shell.begin_compaction()
