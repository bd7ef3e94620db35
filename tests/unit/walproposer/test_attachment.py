"""`Attachment` with supervision: what a refusal by the server means depends on the server."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from new_timeline import TIMELINE
from server_files import SYSTEM_ID, ServerFiles

from quorum_wal.telemetry.stop_signal import StopSignal
from quorum_wal.walproposer.attachment import Attachment
from quorum_wal.walproposer.errors import Refusal

TIMEOUT = 10.0


@pytest.fixture
def files(tmp_path: Path) -> ServerFiles:
    """Of a server that accepts connections: this process."""
    made = ServerFiles(tmp_path)
    made.tell(os.getpid(), "ready")
    return made


class PrimaryConnection:
    """Answers the question for the role of the server."""

    def execute(self, query: str) -> PrimaryConnection:
        return self

    def fetchone(self) -> tuple[bool, str]:
        return False, str(SYSTEM_ID)

    def close(self) -> None:
        pass


class RefusedProposer:
    """Attaches once. Then something happens to the server, and it refuses at once."""

    stalled_seconds = 0.0

    def __init__(self, happens: Callable[[], None]) -> None:
        self.config = SimpleNamespace(
            lock=None, primary=SimpleNamespace(connect=lambda: PrimaryConnection())
        )
        self._happens = happens

    def wait_for_lock(self) -> bool:
        return True

    def prepare(self) -> Any:
        return SimpleNamespace(timeline=TIMELINE)

    def run(self) -> None:
        self._happens()
        raise Refusal("the server is in recovery")

    def close(self) -> None:
        pass

    def waits_for(self, what: str) -> None:
        pass


@pytest.fixture
def stopping() -> Iterator[StopSignal]:
    signal = StopSignal()
    yield signal
    signal.set()
    for thread in threading.enumerate():
        if thread.name == "supervise":
            thread.join(TIMEOUT)
    signal.close()


def attachment(files: ServerFiles, stopping: StopSignal, happens: Callable[[], None]) -> Attachment:
    proposer: Any = RefusedProposer(happens)
    return Attachment(proposer, stopping, supervised=files.path)


def test_a_server_that_came_back_as_a_standby_is_an_orderly_end(
    files: ServerFiles, stopping: StopSignal
) -> None:
    """The proposer meets it before the watch looks again."""

    def come_back_as_standby() -> None:
        (files.path / "standby.signal").touch()
        files.tell(os.getpid(), "standby")

    attachment(files, stopping, come_back_as_standby).run()
    assert stopping.is_set


def test_a_refusal_by_a_primary_is_an_error(files: ServerFiles, stopping: StopSignal) -> None:
    with pytest.raises(Refusal, match="is in recovery"):
        attachment(files, stopping, lambda: None).run()
    assert not stopping.is_set
