"""A coordinator's port whose answers a test decides: our own server half of the wire, no proposer.

`commit_lsn` is what "the quorum has": WAIT_LSN waits for it as the real one does. `script` may
answer a command otherwise: by rows, by an Error, by closing the connection, or by saying nothing.
"""

from __future__ import annotations

import re
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from wire_server import TIMEOUT_S, LocalListener

from pgwal.lsn import Lsn, format_lsn
from pgwire.blocking import ServerConfig, Session, accept_connection
from pgwire.errors import WireError
from pgwire.messages import Column

TERM = 7
EVERYTHING = (1 << 64) - 1
_LSN = re.compile(r"(?:WAIT_LSN|BARRIER) (\S+) TIMEOUT (\d+)")

CONFIRMATION = (Column("verdict"), Column("commit_lsn"), Column("term"))


@dataclass(frozen=True, slots=True)
class Error:
    sqlstate: str
    message: str
    hint: str | None = None


class HangUp:
    """Close the connection instead of an answer."""


class SayNothing:
    """Keep it, and answer never."""


Reply = tuple[str | None, ...] | Error | HangUp | SayNothing


class ScriptedCoordinator(LocalListener):
    """A context manager. `commands`: all that came, in order; `connections`: how many did."""

    def __init__(self) -> None:
        super().__init__()
        self.commands: list[str] = []
        self.connections = 0
        self.outcomes: dict[str, tuple[str, str | None]] = {}  # of OUTCOME, by gid
        self.script: Callable[[str], Reply | None] = lambda _: None
        self._changed = threading.Condition()
        self._commit_lsn = EVERYTHING
        self._sessions: list[Session] = []
        self._is_stopping = False

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def set_commit_lsn(self, lsn: int) -> None:
        with self._changed:
            self._commit_lsn = lsn
            self._changed.notify_all()

    def verbs(self) -> list[str]:
        """The first words of `commands`."""
        return [command.split()[0] for command in self.commands]

    def hang_up_all(self) -> None:
        """As if the process had been killed; it goes on to accept."""
        for session in self._sessions:
            session.shutdown()

    def __enter__(self) -> ScriptedCoordinator:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._is_stopping = True
            self._changed.notify_all()
        self.hang_up_all()
        self.stop()

    def serve_client(self, sock: socket.socket) -> None:
        try:
            session = accept_connection(sock, ServerConfig(server_version="15.0"))
        except WireError:
            return
        if session is None:
            return
        self.connections += 1
        self._sessions.append(session)
        with session:
            while (command := session.read_command()) is not None:
                self.commands.append(command)
                if not self._answer(session, command):
                    return

    def _answer(self, session: Session, command: str) -> bool:
        """False: the connection is to be closed."""
        reply = self.script(command) or self._usual(command)
        match reply:
            case HangUp():
                return False
            case SayNothing():
                return True
            case Error(sqlstate, message, hint):
                session.send_error(sqlstate, message, hint=hint)
            case _:
                columns = CONFIRMATION[: len(reply)]
                session.send_rows(columns, [reply], f"{command.split()[0]} 1")
        return True

    def _usual(self, command: str) -> Reply:
        match command.split()[0]:
            case "ADMIT":
                return str(TERM), "0"
            case "WAIT_LSN" | "BARRIER":
                return self._wait(command)
            case "OUTCOME":
                return self.outcomes.get(command.split("'")[1], ("pending", None))
        return Error("42601", f"unknown: {command}")

    def _wait(self, command: str) -> Reply:
        match = _LSN.match(command)
        assert match is not None, command
        lsn, deadline = int(Lsn.parse(match[1])), time.monotonic() + int(match[2]) / 1000
        with self._changed:
            while self._commit_lsn < lsn and not self._is_stopping:
                left = deadline - time.monotonic()
                if left <= 0:
                    return "pending", format_lsn(Lsn(self._commit_lsn)), str(TERM)
                self._changed.wait(min(left, TIMEOUT_S))
            return "confirmed", format_lsn(Lsn(self._commit_lsn)), str(TERM)
