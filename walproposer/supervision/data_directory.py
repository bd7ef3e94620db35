"""The data directory of the supervised server: read, never written.

Source of the layout: xlog.c (standby.signal), pg_control.h (the system identifier comes first).
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from quorum_wal.pg_server.postmaster_file import is_process_alive, read_postmaster_file
from quorum_wal.walproposer.errors import Refusal
from quorum_wal.walproposer.supervision.server_state import Seen

_SYSTEM_ID = struct.Struct("=Q")


@dataclass(frozen=True, slots=True)
class DataDirectory:
    """It must exist, but may still be empty. Every method raises Refusal."""

    path: Path

    def read_state(self) -> Seen:
        """The state of the server, from its files."""
        with self._reading():
            os.listdir(self.path)  # an error for a missing directory
            server = read_postmaster_file(self.path)
            # The number is negative in single-user mode.
            if server is None or server.pid <= 0 or not is_process_alive(server.pid):
                is_empty = not (self.path / "PG_VERSION").exists()
                return Seen(reason=f"{self.path} is empty" if is_empty else "")
            has_standby_signal = (self.path / "standby.signal").exists()
            return Seen(server.pid, server.status, has_standby_signal)

    def system_id(self) -> int:
        """The system identifier of a directory whose server runs."""
        with self._reading(), open(self.path / "global" / "pg_control", "rb") as file:
            return int(_SYSTEM_ID.unpack(file.read(_SYSTEM_ID.size))[0])

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except PermissionError as error:
            raise Refusal(
                f'could not read "{error.filename}": {error.strerror}',
                hint="Run the command as the account that the server runs as.",
            ) from error
        except (OSError, struct.error) as error:
            reason = error.strerror if isinstance(error, OSError) else "pg_control is too short"
            raise Refusal(
                f'"{self.path}" is not a data directory: {reason}',
                hint="Give the data directory of the server: SHOW data_directory.",
            ) from error
