"""Watches the server that a proposer lives with, in a thread, and says when to attach and to end.

    data directory, connection --Seen--> Supervision --Tell--> log, status page, service manager
                                                     --Attach--> wait_for_primary returns
                                                     --End--> the process is told to stop

Law: it decides nothing about WAL. Whether a server can be the primary of its log is found out by
attaching, and refused there.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Event, Thread
from typing import TypeVar

import structlog

from telemetry.stop_signal import StopSignal
from walproposer.errors import WalProposerError
from walproposer.primary.primary_address import PrimaryAddress
from walproposer.supervision.data_directory import DataDirectory
from walproposer.supervision.server_role import BackOff, ServerRole
from walproposer.supervision.server_state import ServerState
from walproposer.supervision.supervision import Attach, End, Supervision, Tell

log = structlog.get_logger()

LOOK_SECONDS = 0.2

T = TypeVar("T")


class ServerWatch:
    """`tell` is called at each change of state, by the watching thread. The main thread gets what
    went wrong there: `wait_for_primary` and `check` raise it."""

    def __init__(
        self,
        directory: DataDirectory,
        address: PrimaryAddress,
        stopping: StopSignal,
        tell: Callable[[ServerState], None],
    ) -> None:
        self._directory = directory
        self._role = ServerRole(directory, address)
        self._stopping = stopping
        self._tell = tell
        self._supervision = Supervision()
        self._is_primary = Event()
        self._failure: BaseException | None = None

    def start(self) -> None:
        """Raises Refusal for a directory that cannot be watched."""
        self._directory.look()
        Thread(target=self._run, name="supervise", daemon=True).start()

    def wait_for_primary(self) -> bool:
        """False when told to stop, also by the server's end. Raises WalProposerError."""
        while not self._stopping.is_set:
            if self._is_primary.wait(LOOK_SECONDS):
                return True
        self.check()
        return False

    def until_attached(self, attach: Callable[[], T]) -> T | None:
        """What `attach` returns, which is tried while the server is a primary; None when told to
        stop. Raises what `wait_for_primary` does."""
        back_off, told = BackOff(), ""
        while self.wait_for_primary():
            try:
                return attach()
            except WalProposerError as error:
                if str(error) != told:
                    told = str(error)
                    hint = _if_any(hint=error.hint)
                    log.warning("could not attach, trying again", reason=told, **hint)
            self._stopping.wait(back_off.pause_seconds())
        return None

    def check(self) -> None:
        """Raises what ended the watch, if something did."""
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            while not self._stopping.is_set:
                self._step()
                self._stopping.wait(LOOK_SECONDS)
        except BaseException as error:  # the main thread raises it
            self._failure = error
            self._stopping.set()

    def _step(self) -> None:
        seen = self._role.add_to(self._directory.look())
        actions = self._supervision.step(seen, time.monotonic())
        if not any(isinstance(action, Attach) for action in actions):
            self._is_primary.clear()
        for action in actions:
            match action:
                case Tell(state, reason):
                    log.info(f"the server is {state.value}", **_if_any(reason=reason))
                    self._tell(state)
                case Attach():
                    self._is_primary.set()
                case End(reason):
                    log.info("ending", reason=reason)
                    self._stopping.set()


def _if_any(**details: str) -> dict[str, str]:
    """For the log."""
    return {name: value for name, value in details.items() if value}
