"""`Orders`: what a client of the soak of qsync is told by its parent, a line each on its stdin.

    arm <tab> NUMBER <tab> STEP <tab> WHEN <tab> ACT    at that step it says `at NUMBER`, then acts
    disarm                                              it stops nowhere
    go                                                  from where it has stopped
    lead                                                the next transaction is led: see the client
    pause, resume                                       between two transactions; it says `paused`

It acts once for each `arm`. WHEN is before, during or after: during is when the request has been
sent and no answer has been read.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass

BEFORE, DURING, AFTER = "before", "during", "after"
WHENS = (BEFORE, DURING, AFTER)
#: DROP: it stops, then treats the answer as lost; a request in progress has one.
DIE, STOP, DROP = "die", "stop", "drop"
STOP_SECONDS = 60.0


def say(line: str) -> None:
    os.write(sys.stdout.fileno(), f"{line}\n".encode())


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@dataclass(frozen=True, slots=True)
class Armed:
    number: str
    step: str
    when: str
    act: str


class Orders:
    """A thread reads `lines`, and calls `ended` at their end.

    Law: `go` only applies to a client that has stopped. An older one does not release the next
    stop.
    """

    def __init__(
        self,
        lines: Iterable[str] = sys.stdin,
        say: Callable[[str], None] = say,
        ended: Callable[[], None] = die,
    ) -> None:
        self._lines = lines
        self._say = say
        self._ended = ended
        self._armed: Armed | None = None
        self._lock = threading.Lock()
        self._go = threading.Event()
        self._leads = 0
        self.resumed = threading.Event()
        self.resumed.set()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in self._lines:
            self._obey(line.rstrip("\n").split("\t"))
        self._ended()

    def _obey(self, words: list[str]) -> None:
        match words:
            case ["arm", number, step, when, act]:
                with self._lock:
                    self._armed = Armed(number, step, when, act)
            case ["disarm"]:
                with self._lock:
                    self._armed = None
            case ["go"]:
                self._go.set()
            case ["lead"]:
                self._leads += 1
            case ["pause"]:
                self.resumed.clear()
            case ["resume"]:
                self.resumed.set()
            case other:
                raise AssertionError(other)

    def is_led(self) -> bool:
        """Whether the transaction that begins now is led. Each `lead` is for one."""
        if self._leads == 0:
            return False
        self._leads -= 1
        return True

    def is_armed(self, step: str, when: str) -> bool:
        armed = self._armed
        return armed is not None and (armed.step, armed.when) == (step, when)

    def reached(self, step: str, when: str) -> str:
        """The ordered act for this moment, after it is done; "" if there was none."""
        with self._lock:
            armed = self._armed
            if armed is None or not self.is_armed(step, when):
                return ""
            self._armed = None
            self._go.clear()  # before any other thread may learn the position
        self._say(f"at {armed.number}")
        if armed.act == DIE:
            die()
        assert self._go.wait(STOP_SECONDS), "nobody says go"
        return armed.act
