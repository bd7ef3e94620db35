"""`CompactionRound`: chooses the timeline whose old layers are surveyed next. One timeline of a
process is merged at a time."""

from __future__ import annotations

from collections.abc import Iterable

from quorum_wal.pageserver.attachments.attachment_shell import AttachmentShell


class CompactionRound:
    """Call its methods on the event loop."""

    def __init__(self) -> None:
        #: In the order of their last survey, oldest first.
        self._asked: list[AttachmentShell] = []

    def begin(self, attached: Iterable[AttachmentShell]) -> None:
        """Starts with the attachment surveyed longest ago. Does nothing while one is busy."""
        shells = list(attached)
        self._asked = [each for each in self._asked if each in shells]
        for shell in [*(each for each in shells if each not in self._asked), *self._asked]:
            if any(each.compaction is not None and each.compaction.is_busy for each in shells):
                return
            self._asked = [*(each for each in self._asked if each is not shell), shell]
            shell.begin_compaction()
