"""`ServiceProcess`: a program as a child of ours that can be killed, frozen, awaited and read.

Law: nothing outlives the one who started it. Each child leads its own session, so its own children
end with it; and the kernel ends it when we end, however we end (see pg_server/launcher.py). The
kernel counts the *thread* that called start() as the parent: start from a thread that lives as long
as the child.
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

from pg_fixtures.errors import FixtureError, ProcessEnded
from pg_fixtures.fork_server import ForkedProcess, ForkServers
from pg_fixtures.process_table import ends_within, rss_bytes, session_members, signal_entry
from pg_fixtures.waiting import wait_until
from pg_server.account import Account
from pg_server.errors import DeadlineExceeded
from pg_server.program import launcher_argv

T = TypeVar("T")

SK = (sys.executable, "-m", "cli.main")  # our own command, in this very installation
#: For a run that starts `sk` many times; None executes each. Set by tests/conftest.py.
fork_servers: ForkServers | None = None
KILL_TIMEOUT = 30.0  # seconds; a killed process lingers only while the kernel finishes its disk I/O
LOG_TAIL_LINES = 25


class ServiceProcess:
    """A context manager: the program runs inside the block and is killed at its end.

    The same object can be started again after the program has ended. Standard output and error are
    appended to `log_path`; `env` is added to our own environment, and may be changed between runs.
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
        """Start the program; do not wait for anything. Raises FixtureError when it runs already."""
        if self.alive:
            raise FixtureError(f"{self.name} is running already, as process {self.pid}")
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
        """The process id; raises ProcessEnded when the program was never started."""
        if self._popen is None:
            raise ProcessEnded(self._obituary())
        return self._popen.pid

    @property
    def alive(self) -> bool:
        """It was started and has not ended. A paused process is alive."""
        return self._popen is not None and self.exit_code is None

    @property
    def exit_code(self) -> int | None:
        """None before the end; -N when signal N ended it, as in `subprocess`."""
        if self._popen is None:
            return None
        if self._popen.returncode is None and self._popen.poll() is not None:
            self._end_session()
        return self._popen.returncode

    def kill(self) -> None:
        """kill -9 of the process and its children; returns when all are gone. Legal when dead."""
        if self._popen is None or self.exit_code is not None:
            return
        try:
            self.send_signal(signal.SIGKILL)
        except ProcessEnded:
            return  # since the line above
        self.wait(KILL_TIMEOUT)

    def pause(self) -> None:
        """SIGSTOP: it runs no instruction more, its sockets stay open. Returns when it has."""
        self.send_signal(signal.SIGSTOP)
        wait_until(
            lambda: all(entry.state == "T" for entry in session_members(self.pid)),
            KILL_TIMEOUT,
            f"{self.name} to stop",
        )

    def resume(self) -> None:
        """SIGCONT, the end of pause()."""
        self.send_signal(signal.SIGCONT)

    def terminate(self, timeout: float = 20.0) -> int:
        """Ask it to end (SIGTERM) and return its exit code.

        Raises DeadlineExceeded when it does not end, and leaves it running.
        """
        if self.alive:
            self.send_signal(signal.SIGTERM)
        return self.wait(timeout)

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal to the process and to its children, all of the process group."""
        if not self.alive:
            raise ProcessEnded(self._obituary())
        os.killpg(self.pid, number)

    def wait(self, timeout: float) -> int:
        """Wait for its end and return the exit code. Raises DeadlineExceeded."""
        if self._popen is None:
            raise ProcessEnded(self._obituary())
        if self.alive and not ends_within(self.pid, timeout):
            raise DeadlineExceeded(f"waited {timeout:g} s for the end of {self.name}")
        # At once, unless another thread is just asking.
        return wait_until(self._end, KILL_TIMEOUT, f"the exit code of {self.name}")[0]

    def _end(self) -> tuple[int] | None:
        exit_code = self.exit_code
        return None if exit_code is None else (exit_code,)

    def wait_until(
        self, condition: Callable[[], T | Literal[False] | None], timeout: float, what: str
    ) -> T:
        """wait_until(), given up with ProcessEnded as soon as the process has ended."""

        def condition_while_alive() -> T | Literal[False] | None:
            if not self.alive:
                raise ProcessEnded(self._obituary(f"while waiting for {what}"))
            return condition()

        try:
            return wait_until(condition_while_alive, timeout, f"{what} ({self.name})")
        except DeadlineExceeded as error:
            raise DeadlineExceeded(f"{error}\n{self.log_tail()}") from None

    def rss_bytes(self) -> int:
        """Resident memory of the process and of its children."""
        return sum(rss_bytes(entry.pid) for entry in session_members(self.pid))

    def log_text(self) -> str:
        """All that every run of it wrote to standard output and error."""
        try:
            return self.log_path.read_text(errors="replace")
        except FileNotFoundError:
            return ""

    def log_tail(self) -> str:
        """The last lines of the log, for error messages."""
        return "\n".join(self.log_text().splitlines()[-LOG_TAIL_LINES:])

    def _obituary(self, when: str = "") -> str:
        end = "was not started" if self._popen is None else f"ended with exit code {self.exit_code}"
        return "\n".join(filter(None, (f"{self.name} {end} {when}".rstrip(), self.log_tail())))

    def _end_session(self) -> None:
        """Kill what the leader left behind; called once, at its end: later the id may be reused."""
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
