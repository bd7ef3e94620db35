"""`ServiceProcess`: a program as a child process that can be killed, stopped, and waited for.

Law: no child outlives the process that started it. Each child leads its own session, so its own
children end with it. The kernel ends it when we end, even if we crash (see pg_server/launcher.py).
For the kernel the *thread* that called start() is the parent: use a thread that lives as long as
the child.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryFile
from types import TracebackType
from typing import BinaryIO, Literal, Self, TypeVar

from quorum_wal.pg_fixtures.errors import FixtureError, ProcessEnded
from quorum_wal.pg_fixtures.fork_server import ForkedProcess, ForkServers
from quorum_wal.pg_fixtures.process_table import (
    ends_within,
    rss_bytes,
    session_members,
    signal_entry,
)
from quorum_wal.pg_fixtures.waiting import wait_until
from quorum_wal.pg_server.account import Account
from quorum_wal.pg_server.errors import DeadlineExceeded
from quorum_wal.pg_server.program import launcher_argv

T = TypeVar("T")

SK = (sys.executable, "-m", "quorum_wal.cli.main")  # our own command, of this installation
#: For a run that starts `sk` many times; None executes each. Set by tests/conftest.py.
fork_servers: ForkServers | None = None
KILL_TIMEOUT = 30.0  # seconds; a killed process ends late only while its disk I/O completes
LOG_TAIL_LINES = 25


class ServiceProcess:
    """A context manager: the program runs inside the block and is killed at its end.

    It can be started again after the program has ended. Standard output and error are appended to
    `log_path`; `env` is added to our own environment, and may be changed between runs.
    """

    def __init__(
        self,
        program: Sequence[str | Path],
        *,
        log_path: Path,
        name: str = "",
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        account: Account | None = None,
        death_signal: signal.Signals = signal.SIGKILL,
    ) -> None:
        self.program = [str(word) for word in program]
        self.name = name or Path(self.program[0]).name
        self.log_path = log_path
        self.env = dict(env or {})
        self._cwd = cwd
        self._account = account
        self._death_signal = death_signal
        self._popen: subprocess.Popen[bytes] | ForkedProcess | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.kill()

    def start(self) -> None:
        """Starts the program without waiting. Raises FixtureError if it already runs."""
        if self.alive:
            raise FixtureError(f"{self.name} is already running, as process {self.pid}")
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        with open(self.log_path, "ab") as log:
            self._popen = self._forked(log) or subprocess.Popen(
                launcher_argv(self.program, self._account, self._death_signal),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._cwd,
                env={**os.environ, **self.env},
                start_new_session=True,
            )

    def _forked(self, log: BinaryIO) -> ForkedProcess | None:
        env = {**os.environ, **self.env}
        server = fork_servers.find(self.program, env) if fork_servers else None
        if server is None or self._account is not None:
            return None
        with open(os.devnull, "rb") as nothing:
            files = (nothing.fileno(), log.fileno(), log.fileno())
            return server.start(self.program, files, env, self._cwd, self._death_signal)

    @property
    def pid(self) -> int:
        """The process id. Raises ProcessEnded if the program was never started."""
        if self._popen is None:
            raise ProcessEnded(self._end_text())
        return self._popen.pid

    @property
    def alive(self) -> bool:
        """It was started and has not ended. A paused process is alive."""
        return self._popen is not None and self.exit_code is None

    @property
    def exit_code(self) -> int | None:
        """None before the end; -N if signal N ended it, as in `subprocess`."""
        if self._popen is None:
            return None
        if self._popen.returncode is None and self._popen.poll() is not None:
            self._end_session()
        return self._popen.returncode

    def kill(self) -> None:
        """Kills the process and its children. Returns when all have ended. May be called twice."""
        if self._popen is None or self.exit_code is not None:
            return
        try:
            self.send_signal(signal.SIGKILL)
        except ProcessEnded:
            return  # since the line above
        self.wait(KILL_TIMEOUT)

    def pause(self) -> None:
        """SIGSTOP: the process stops, its sockets stay open. Returns when it has stopped."""
        self.send_signal(signal.SIGSTOP)
        wait_until(
            lambda: all(entry.state == "T" for entry in session_members(self.pid)),
            KILL_TIMEOUT,
            f"{self.name} to stop",
        )

    def resume(self) -> None:
        """SIGCONT: ends pause()."""
        self.send_signal(signal.SIGCONT)

    def terminate(self, timeout: float = 20.0) -> int:
        """Asks it to end (SIGTERM). Returns its exit code.

        Raises DeadlineExceeded if it does not end, and leaves it running.
        """
        if self.alive:
            self.send_signal(signal.SIGTERM)
        return self.wait(timeout)

    def send_signal(self, number: signal.Signals) -> None:
        """Sends a signal to the process and its children, which are one process group."""
        if not self.alive:
            raise ProcessEnded(self._end_text())
        os.killpg(self.pid, number)

    def wait(self, timeout: float) -> int:
        """Waits for the end. Returns the exit code. Raises DeadlineExceeded."""
        if self._popen is None:
            raise ProcessEnded(self._end_text())
        if self.alive and not ends_within(self.pid, timeout):
            raise DeadlineExceeded(f"waited {timeout:g} s for the end of {self.name}")
        # Immediate, unless another thread is reading the exit code.
        return wait_until(self._end, KILL_TIMEOUT, f"the exit code of {self.name}")[0]

    def _end(self) -> tuple[int] | None:
        exit_code = self.exit_code
        return None if exit_code is None else (exit_code,)

    def wait_until(
        self, condition: Callable[[], T | Literal[False] | None], timeout: float, what: str
    ) -> T:
        """Like wait_until(), but raises ProcessEnded as soon as the process has ended."""

        def condition_while_alive() -> T | Literal[False] | None:
            if not self.alive:
                raise ProcessEnded(self._end_text(f"while waiting for {what}"))
            return condition()

        try:
            return wait_until(condition_while_alive, timeout, f"{what} ({self.name})")
        except DeadlineExceeded as error:
            raise DeadlineExceeded(f"{error}\n{self.log_tail()}") from None

    def rss_bytes(self) -> int:
        """Resident memory of the process and its children."""
        return sum(rss_bytes(entry.pid) for entry in session_members(self.pid))

    def log_text(self) -> str:
        """All output of all runs."""
        try:
            return self.log_path.read_text(errors="replace")
        except FileNotFoundError:
            return ""

    def log_tail(self) -> str:
        """The last lines of the log, for error messages."""
        return "\n".join(self.log_text().splitlines()[-LOG_TAIL_LINES:])

    def _end_text(self, when: str = "") -> str:
        end = "was not started" if self._popen is None else f"ended with exit code {self.exit_code}"
        return "\n".join(filter(None, (f"{self.name} {end} {when}".rstrip(), self.log_tail())))

    def _end_session(self) -> None:
        """Kills the remaining children. Called once, at the end: the id may be reused later."""
        for entry in session_members(self.pid):
            signal_entry(entry, signal.SIGKILL)
        wait_until(
            lambda: not session_members(self.pid), KILL_TIMEOUT, f"the children of {self.name}"
        )


def run_sk(
    *arguments: object, env: Mapping[str, str] | None = None, stdin: str = "", timeout: float
) -> subprocess.CompletedProcess[str]:
    """Run `sk` to its end, whatever its exit code. `env` is added to our own environment.

    Raises DeadlineExceeded or TimeoutExpired.
    """
    program, env = [*SK, *map(str, arguments)], {**os.environ, **(env or {})}
    server = fork_servers.find(program, env) if fork_servers else None
    if server is None:
        return subprocess.run(
            program, env=env, input=stdin, capture_output=True, text=True, timeout=timeout
        )
    with ExitStack() as files:
        given, stdout, stderr = (files.enter_context(TemporaryFile("w+")) for _ in range(3))
        given.write(stdin)
        given.seek(0)
        process = server.start(program, (given.fileno(), stdout.fileno(), stderr.fileno()), env)
        exit_code = process.wait(timeout)
        stdout.seek(0)
        stderr.seek(0)
        return subprocess.CompletedProcess(program, exit_code, stdout.read(), stderr.read())
