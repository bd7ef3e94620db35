"""The control file on disk: read once at a start, replaced atomically ever after."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from threading import Lock

from safekeeper.control_state import ControlState, decode_control_state, encode_control_state
from safekeeper.errors import ControlFileError
from storage import durable

CONTROL_FILE_NAME = "control"

#: Positions that never go back, saved beside the acceptor, whose copies of them may be older.
HINTS = (
    "local_start_lsn",
    "commit_lsn",
    "truncate_lsn",
    "archived_lsn",
    "remote_consistent_lsn",
)


class ControlFile:
    """`state` is what is on disk, no more and no less.

    Two threads write it: the one that steps the acceptor (promises, histories), and the one that
    saves hints. The lock lets hints only ever be laid over what was already published.
    """

    def __init__(self, directory: Path, state: ControlState) -> None:
        self.path = directory / CONTROL_FILE_NAME
        self.state = state
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

        The hints in `state` are as old as the acceptor; those saved since are kept.
        """
        with self._lock:
            hints = {hint: max(getattr(state, hint), getattr(self.state, hint)) for hint in HINTS}
            state = replace(state, **hints)
            durable.replace_file(self.path, encode_control_state(state))
            self.state = state

    def persist_hints(
        self,
        *,
        commit_lsn: int,
        truncate_lsn: int,
        archived_lsn: int = 0,
        local_start_lsn: int = 0,
    ) -> None:
        """Save positions that may lag, and where the WAL here begins. Raises StorageError."""
        with self._lock:
            state = replace(
                self.state,
                commit_lsn=commit_lsn,
                truncate_lsn=truncate_lsn,
                archived_lsn=max(archived_lsn, self.state.archived_lsn),
                local_start_lsn=max(local_start_lsn, self.state.local_start_lsn),
            )
            if state != self.state:
                durable.replace_file(self.path, encode_control_state(state))
                self.state = state
