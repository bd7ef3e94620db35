"""The control file on disk: read once at a start, then only replaced atomically."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock

from quorum_wal.safekeeper.control_state import (
    ControlState,
    decode_control_state,
    encode_control_state,
)
from quorum_wal.safekeeper.errors import ControlFileError
from quorum_wal.storage import durable

CONTROL_FILE_NAME = "control"

#: Positions that hints update; the acceptor's copies of them are as old as its start.
HINTS = (
    "local_start_lsn",
    "commit_lsn",
    "truncate_lsn",
    "archived_lsn",
    "remote_consistent_lsn",
)


@dataclass(frozen=True, slots=True)
class Hints:
    """Positions that may lag; 0 means no new value."""

    flush_lsn: int
    commit_lsn: int
    truncate_lsn: int
    archived_lsn: int = 0
    local_start_lsn: int = 0


class ControlFile:
    """`state` is always equal to the file on disk.

    Two threads write it: the one that steps the acceptor (promises, histories), and the one that
    saves hints. The lock makes sure that hints only ever update the state published last.
    """

    def __init__(self, directory: Path, state: ControlState) -> None:
        self.path = directory / CONTROL_FILE_NAME
        self.state = state
        self._is_final = False
        self._lock = Lock()

    @classmethod
    def read(cls, directory: Path) -> ControlFile:
        """Raises ControlFileError when the file is missing, damaged, or of another version."""
        path = directory / CONTROL_FILE_NAME
        try:
            data = path.read_bytes()
        except FileNotFoundError as error:
            raise ControlFileError(
                f'control file "{path}" does not exist',
                hint="The member lost its data: remove it and add a new one with another id.",
            ) from error
        except OSError as error:
            raise ControlFileError(f'could not read "{path}": {error.strerror}') from error
        return cls(directory, decode_control_state(data, str(path)))

    def persist(self, state: ControlState) -> None:
        """Persist, then publish. Raises StorageError.


        The hints in `state` may be older than the saved ones; the greater values are kept. The
        given `flush_lsn` is kept as it is: a truncation lowers it first, and that of a damaged log
        may lower it below commit_lsn.
        """
        with self._lock:
            hints = {hint: max(getattr(state, hint), getattr(self.state, hint)) for hint in HINTS}
            hints["commit_lsn"] = min(hints["commit_lsn"], state.flush_lsn)
            state = replace(state, **hints)
            durable.replace_file(self.path, encode_control_state(state))
            self.state = state

    def finish(self, state: ControlState) -> None:
        """Persist and publish the last state of this log, including its hints. Nothing is saved
        for this log afterwards. Raises StorageError."""
        with self._lock:
            if state != self.state:
                durable.replace_file(self.path, encode_control_state(state))
                self.state = state
            self._is_final = True

    def persist_hints(self, read: Callable[[], Hints]) -> None:
        """Save what `read` returns. Raises StorageError.


        `read` is called under the lock. A thread that lowers a position publishes it first and
        persists it afterwards. So `read` returns the lowered position, or that thread replaces the
        file next. Otherwise a truncation could be followed by a save of the old `flush_lsn`.
        """
        with self._lock:
            if self._is_final:
                return
            before, hints = self.state, read()
            state = replace(
                before,
                flush_lsn=max(hints.flush_lsn, before.flush_lsn),
                commit_lsn=hints.commit_lsn,
                truncate_lsn=hints.truncate_lsn,
                archived_lsn=max(hints.archived_lsn, before.archived_lsn),
                local_start_lsn=max(hints.local_start_lsn, before.local_start_lsn),
            )
            if state != before:
                durable.replace_file(self.path, encode_control_state(state))
                self.state = state
