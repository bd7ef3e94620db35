"""Watches the supervised server in a thread, and decides when to attach and when to end.

    data directory, connection --Seen--> Supervision --Report--> log, status page, service manager
                                                     --Attach--> wait_for_primary returns
                                                     --End--> the process is told to stop

Law: it decides nothing about WAL. Attaching checks whether a server can be the primary of its log,
and refuses otherwise.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Event, Thread
from typing import TypeVar

import structlog

from quorum_wal.telemetry.stop_signal import StopSignal
from quorum_wal.walproposer.errors import WalProposerError
from quorum_wal.walproposer.primary.primary_address import PrimaryAddress
from quorum_wal.walproposer.supervision.data_directory import DataDirectory
from quorum_wal.walproposer.supervision.server_role import BackOff, ServerRole
from quorum_wal.walproposer.supervision.server_state import ServerState
from quorum_wal.walproposer.supervision.supervision import Attach, End, Report, Supervision

log = structlog.get_logger()

POLL_SECONDS = 0.2

T = TypeVar("T")


class ServerWatch:
    """The watching thread calls `tell` at each change of state. Its errors are raised in the main
    thread, by `wait_for_primary` and `check`."""

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
        self._has_looked = Event()
        self._failure: BaseException | None = None

    def start(self) -> None:
        """Raises Refusal for a directory that cannot be watched."""
        self._directory.read_state()
        Thread(target=self._run, name="supervise", daemon=True).start()

    def wait_for_primary(self) -> bool:
        """Returns False if told to stop, also because the server ended. Raises WalProposerError."""
        while not self._stopping.is_set:
            if self._is_primary.wait(POLL_SECONDS):
                return True
        self.check()
        return False

    def until_attached(self, attach: Callable[[], T]) -> T | None:
        """Call `attach` while the server is a primary, until it succeeds, and return its result.
        Returns None if told to stop. Raises the errors of `wait_for_primary`."""
        back_off, told = BackOff(), ""
        while self.wait_for_primary():
            try:
                return attach()
            except WalProposerError as error:
                if str(error) != told:
                    told = str(error)
                    hint = _if_any(hint=error.hint)
                    log.warning("could not attach, retrying", reason=told, **hint)
            self._stopping.wait(back_off.pause_seconds())
        return None

    def look_again(self) -> None:
        """Returns when it has looked at the server anew, and has told the process to stop if the
        server has ended or came back as a standby."""
        for _ in range(2):  # the first look may have begun before
            self._has_looked.clear()
            while not self._stopping.is_set and not self._has_looked.wait(POLL_SECONDS):
                pass

    def check(self) -> None:
        """Raises the error that ended the watch, if there was one."""
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            while not self._stopping.is_set:
                self._step()
                self._has_looked.set()
                self._stopping.wait(POLL_SECONDS)
        except BaseException as error:  # the main thread raises it
            self._failure = error
            self._stopping.set()

    def _step(self) -> None:
        seen = self._role.add_to(self._directory.read_state())
        actions = self._supervision.step(seen, time.monotonic())
        if not any(isinstance(action, Attach) for action in actions):
            self._is_primary.clear()
        for action in actions:
            match action:
                case Report(state, reason):
                    log.info(f"the server is {state.value}", **_if_any(reason=reason))
                    self._tell(state)
                case Attach():
                    self._is_primary.set()
                case End(reason):
                    log.info("ending", reason=reason)
                    self._stopping.set()


def _if_any(**details: str) -> dict[str, str]:
    """The non-empty details, for the log."""
    return {name: value for name, value in details.items() if value}
