"""How other threads learn that a commit position is reached or a round is answered.

The loop stores commit_lsn when it advances, and compares it with one registered position. It does
nothing else for other threads on the path of a commit.

    | commit_lsn u64 | wake_lsn u64 |      the loop writes the first, the waiting thread the second

Law: each side writes its own word before it reads the other's, so one of them sees that the
position is reached. (The interpreter's lock puts their steps in one order.)
"""

from __future__ import annotations

from array import array
from collections.abc import Callable

COMMIT, WAKE = 0, 1
#: commit_lsn never reaches it.
NEVER_LSN = (1 << 64) - 1


class CommitSignal:
    """The signal of one incarnation. `reached` and `round_answered` are called on the loop, and
    only notify another thread."""

    def __init__(self) -> None:
        self.words = memoryview(array("Q", [0, NEVER_LSN]))
        self.reached: Callable[[], None] = _ignored
        self.round_answered: Callable[[int], None] = lambda _: None

    @property
    def commit_lsn(self) -> int:
        return self.words[COMMIT]

    def wake_at(self, lsn: int) -> None:
        """Call `reached` once commit_lsn is at `lsn`; at once if it already is."""
        self.words[WAKE] = lsn
        if self.words[COMMIT] >= lsn:
            self.pass_on()

    def advance(self, commit_lsn: int) -> None:
        """For the loop, like pass_on(). `stream/steady_loop.py` does the same in place."""
        self.words[COMMIT] = commit_lsn
        if commit_lsn >= self.words[WAKE]:
            self.pass_on()

    def pass_on(self) -> None:
        """Call `reached`, once for each position."""
        self.words[WAKE] = NEVER_LSN
        self.reached()


def _ignored() -> None:
    """The default: no thread waits."""
