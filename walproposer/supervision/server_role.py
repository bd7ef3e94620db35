"""Whether a server that accepts connections is in recovery. Asks only if its files do not tell.

A primary stays a primary until it ends. A standby stays a standby while it has standby.signal,
which a promotion removes. Otherwise the server is asked again, after pauses that double.
"""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import replace

from quorum_wal.walproposer.connection import converting_errors
from quorum_wal.walproposer.errors import Refusal, WalProposerError
from quorum_wal.walproposer.primary.primary_address import PrimaryAddress
from quorum_wal.walproposer.supervision.data_directory import DataDirectory
from quorum_wal.walproposer.supervision.server_state import Seen

FIRST_PAUSE_SECONDS = 0.2
PAUSE_SECONDS_MAX = 5.0

_ROLE = "SELECT pg_is_in_recovery(), (SELECT system_identifier::text FROM pg_control_system())"


class BackOff:
    """Pauses that double."""

    def __init__(self) -> None:
        self._next_seconds = FIRST_PAUSE_SECONDS

    def pause_seconds(self) -> float:
        """The next pause."""
        seconds = self._next_seconds
        self._next_seconds = min(2 * seconds, PAUSE_SECONDS_MAX)
        return seconds


class ServerRole:
    """The role of the server on `directory`, by connections to `address`."""

    def __init__(self, directory: DataDirectory, address: PrimaryAddress) -> None:
        self._directory = directory
        self._address = address
        #: The last answer; None if no server has accepted connections since.
        self._asked: Seen | None = None
        self._back_off = BackOff()
        self._ask_at = 0.0

    def add_to(self, seen: Seen) -> Seen:
        """`seen` with the role. May block. Raises Refusal if another server answers."""
        if seen.status != "ready":
            self._asked = None
            return seen
        asked = self._asked
        if asked is None or asked.pid != seen.pid:
            self._back_off = BackOff()
        elif (
            asked.in_recovery is False
            or (asked.in_recovery and seen.has_standby_signal)
            or time.monotonic() < self._ask_at
        ):
            return replace(asked, has_standby_signal=seen.has_standby_signal)
        self._asked = self._ask(seen)
        self._ask_at = time.monotonic() + self._back_off.pause_seconds()
        return self._asked

    def _ask(self, seen: Seen) -> Seen:
        try:
            with (
                closing(self._address.connect()) as connection,
                converting_errors("could not query the server"),
            ):
                row = connection.execute(_ROLE).fetchone()
        except WalProposerError as error:
            return replace(seen, reason=str(error))
        assert row is not None
        in_recovery, system_id = row
        ours = self._directory.system_id()
        if int(system_id) % (1 << 64) != ours:
            raise Refusal(
                f"the server at {self._address} has system identifier {system_id}, "
                f'"{self._directory.path}" belongs to {ours}',
                hint="Give --primary and --supervise of one server.",
            )
        return replace(seen, in_recovery=bool(in_recovery))
