"""`sk attach`: runs a proposer, optionally with supervision of its server and with a takeover.

    [wait for the primary] -> [wait for the lock] -> prepare -> [ask the predecessor] -> run

The steps in brackets are optional. Each step is reported to the service manager (`telemetry`). The
process ends in an orderly way on a stop signal, when the supervised server has ended, or when a
successor requests it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from quorum_wal.telemetry.service_manager import ServiceManager
from quorum_wal.telemetry.stop_signal import StopSignal
from quorum_wal.walproposer.errors import Refusal, WalProposerError
from quorum_wal.walproposer.service import WalProposer
from quorum_wal.walproposer.status import WAITING_FOR_PRIMARY, WAITING_FOR_PROMOTION
from quorum_wal.walproposer.supervision.data_directory import DataDirectory
from quorum_wal.walproposer.supervision.server_state import ServerState
from quorum_wal.walproposer.supervision.server_watch import ServerWatch
from quorum_wal.walproposer.takeover import TakeOverListener, ask_predecessor
from quorum_wal.walproposer.timelines.timeline_creation import FoundTimeline


class Attachment:
    """`supervised`: the data directory of the server to supervise. `takes_over`: ask the proposer
    of this timeline on this machine to stop. `attached` is called with the timeline found."""

    def __init__(
        self,
        proposer: WalProposer,
        stopping: StopSignal,
        attached: Callable[[FoundTimeline], None] = lambda _: None,
        *,
        supervised: Path | None = None,
        takes_over: bool = False,
    ) -> None:
        self._proposer = proposer
        self._stopping = stopping
        self._attached = attached
        self._takes_over = takes_over
        self._manager = ServiceManager()
        self._watch: ServerWatch | None = None
        if supervised is not None:
            directory, primary = DataDirectory(supervised), proposer.config.primary
            self._watch = ServerWatch(directory, primary, stopping, self._server_changed)

    def run(self) -> None:
        """Raises WalProposerError; returns at an orderly end."""
        proposer = self._proposer
        with self._manager.watched("the loop of the proposer", lambda: proposer.stalled_seconds):
            found = self._attach()
            if found is not None:
                self._manager.notify("READY=1", f"STATUS=timeline {found.timeline}")
                self._attached(found)
                listener = TakeOverListener(found.timeline, self._stopping.set)
                with listener, closing(self._proposer):
                    self._run_proposer()
        if self._watch is not None:
            self._watch.check()

    def _run_proposer(self) -> None:
        """A server that came back as a standby refuses the proposer, perhaps before the watch has
        seen it: that is an orderly end."""
        try:
            self._proposer.run()
        except Refusal:
            if self._watch is None:
                raise
            self._watch.look_again()
            if not self._stopping.is_set:
                raise

    def _attach(self) -> FoundTimeline | None:
        """Returns None if told to stop before attaching."""
        if self._watch is None:
            return self._prepare()
        self._watch.start()
        self._manager.notify("READY=1")  # it waits for the server, perhaps for a long time
        return self._watch.until_attached(self._prepare)

    def _prepare(self) -> FoundTimeline | None:
        if not self._takes_over and not self._has_lock():
            return None
        try:
            found = self._proposer.prepare()
        except WalProposerError:
            self._proposer.close()  # release the lock for a proposer that can use it
            raise
        if self._takes_over:
            if self._proposer.config.lock is not None:  # the lock may take long to acquire
                self._proposer.close_upstream()
            if self._stopping.is_set:
                return None  # the predecessor continues
            ask_predecessor(found.timeline)
            if not self._has_lock():
                return None
        return found

    def _has_lock(self) -> bool:
        if self._proposer.config.lock is not None:
            self._manager.notify("READY=1", "STATUS=waiting for the lock")
        return self._proposer.wait_for_lock()

    def _server_changed(self, state: ServerState) -> None:
        is_standby = state in (ServerState.STANDBY, ServerState.RECOVERING)
        self._proposer.waits_for(WAITING_FOR_PROMOTION if is_standby else WAITING_FOR_PRIMARY)
        self._manager.notify(f"STATUS=the server is {state.value}")
