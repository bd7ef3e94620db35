"""The control file on disk: read once at a start, replaced atomically ever after."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock

from safekeeper.control_state import ControlState, decode_control_state, encode_control_state
from safekeeper.errors import ControlFileError
from storage import durable

CONTROL_FILE_NAME = "control"

#: Positions that are saved beside the acceptor, whose copies of them are those of its start.
HINTS = (
    "local_start_lsn",
    "commit_lsn",
    "truncate_lsn",
    "archived_lsn",
    "remote_consistent_lsn",
)


@dataclass(frozen=True, slots=True)
class Hints:
    """Positions that may lag; 0 where there is nothing new."""

    flush_lsn: int
    commit_lsn: int
    truncate_lsn: int
    archived_lsn: int = 0
    local_start_lsn: int = 0


class ControlFile:
    """`state` is what is on disk, no more and no less.

    Two threads write it: the one that steps the acceptor (promises, histories), and the one that
    saves hints. The lock lets hints only ever be laid over what was already published.
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

        The hints in `state` are as old as the acceptor; those saved since are kept. `flush_lsn` is
        taken as it is: a truncation lowers it first, that of a damaged log below its commit_lsn.
        """
        with self._lock:
            hints = {hint: max(getattr(state, hint), getattr(self.state, hint)) for hint in HINTS}
            hints["commit_lsn"] = min(hints["commit_lsn"], state.flush_lsn)
            state = replace(state, **hints)
            durable.replace_file(self.path, encode_control_state(state))
            self.state = state

    def finish(self, state: ControlState) -> None:
        """Persist the last state of this log, hints and all, and publish it: whatever is saved for
        it from here on is too late. Raises StorageError."""
        with self._lock:
            if state != self.state:
                durable.replace_file(self.path, encode_control_state(state))
                self.state = state
            self._is_final = True

    def persist_hints(self, read: Callable[[], Hints]) -> None:
        """Save what `read` returns. Raises StorageError.

        It is called under the lock: who lowers a position publishes that first and persists it
        then, so what is read here is either lowered already, or replaced in a moment. Without that,
        a truncation could be followed by a `flush_lsn` of before.
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
