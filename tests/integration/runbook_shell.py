"""The shell of an operator who follows docs/runbook.md.

bash runs the commands as they are on the page, with the variables of the page. A test has no
systemd: this module does the work of `systemctl` and `journalctl` on the processes of the cluster.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from runbook_page import read_entries

from quorum_wal.pg_fixtures.postgres import Postgres
from quorum_wal.pg_fixtures.processes import ServiceProcess, run_sk
from quorum_wal.pg_fixtures.waiting import wait_until
from quorum_wal.pg_server.errors import DeadlineExceeded

TIMEOUT = 120.0
COMMAND_TIMEOUT = 100.0
OVER = "Is it over?"
LOOK = "Look first"
POSTGRES_UNIT = "postgresql@15-main"
#: They report a fault by exit code 3; curl reports a port that does not answer by 7.
REPORTS = ("sk status", "sk check", "sk qsync status", "sk qsync check")
HEALTH = "curl -s $HTTP/healthz"
#: A line with one of these is more than one command.
OPERATORS = set("|&;<>`")


@dataclass(frozen=True, slots=True)
class Unit:
    """The actions of systemd on a service."""

    start: Callable[[], object]
    stop: Callable[[], object]
    kill: Callable[[], object]
    is_active: Callable[[], bool]
    log: Callable[[], str]


def service_unit(process: ServiceProcess) -> Unit:
    return Unit(
        start=process.start,
        stop=process.terminate,
        kill=process.kill,
        is_active=lambda: process.alive,
        log=process.log_text,
    )


def postgres_unit(postgres: Postgres) -> Unit:
    return Unit(
        start=postgres.start,
        stop=lambda: postgres.stop("immediate"),
        kill=postgres.crash,
        is_active=lambda: postgres.is_running,
        log=postgres.log_text,
    )


class RunbookShell:
    """`units` are the units of the machines on which the page runs a command, by name."""

    def __init__(
        self, folder: Path, units: dict[str, list[Unit]], variables: Mapping[str, str]
    ) -> None:
        self.units = units
        self._entries = read_entries()
        folder.mkdir(exist_ok=True)
        sk = folder / "sk"
        sk.write_text(
            f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m quorum_wal.cli.main "$@"\n'
        )
        sk.chmod(0o755)
        path = f"{folder}:{os.environ['PATH']}"
        self.env = {**os.environ, **variables, "PATH": path, "POSTGRES": POSTGRES_UNIT}

    def do(self, heading: str, *numbers: int) -> str:
        """Run these blocks of commands of an entry, by default the first one; returns the output.
        Each command must end with exit code 0, or report a fault."""
        blocks = self._entries[heading].blocks
        lines = [line for number in numbers or (0,) for line in blocks[number]]
        return "".join(self.run(line) for line in lines)

    def run(self, line: str) -> str:
        words = [word.replace("$POSTGRES", POSTGRES_UNIT) for word in shlex.split(line)]
        if words[0] == "systemctl":
            return self._systemctl(words[1], words[-1])
        if words[0] == "journalctl":
            (name,) = [word.removeprefix("--unit=") for word in words if "--unit=" in word]
            return "".join(unit.log() for unit in self.units[name])
        done = self._bash(line)
        codes = (0, 3) if line.startswith(REPORTS) else (0, 7) if line == HEALTH else (0,)
        assert done.returncode in codes, f"{line}\n{done.returncode}: {done.stdout}{done.stderr}"
        return done.stdout

    def look(self) -> str:
        """The output of `sk status`, whatever its exit code."""
        (line,) = self._entries[LOOK].commands
        return self._bash(line).stdout

    def wait_verdict(self, condition: str) -> None:
        """Return when `sk status` has a line of this verdict."""
        said = [""]

        def is_said() -> bool:
            said[0] = self.look()
            return any(line.startswith(f"{condition}:") for line in said[0].splitlines())

        try:
            wait_until(is_said, TIMEOUT, condition)
        except DeadlineExceeded as error:
            raise AssertionError(f"{error}: {said[0]}") from None

    def wait_over(self) -> None:
        """Return when each command of the section "Is it over?" ends with exit code 0."""
        for line in self._entries[OVER].commands:
            self._wait_done(line)

    def _wait_done(self, line: str) -> None:
        said = [""]

        def is_done() -> bool:
            done = self._bash(line)
            said[0] = done.stdout + done.stderr
            return done.returncode == 0

        try:
            wait_until(is_done, TIMEOUT, line)
        except DeadlineExceeded as error:
            raise AssertionError(f"{error}: {said[0]}") from None

    def _systemctl(self, action: str, name: str) -> str:
        for unit in self.units[name]:
            match action:
                case "start" if unit.is_active():
                    continue
                case "start":
                    unit.start()
                case "restart" | "reload":
                    unit.stop()
                    unit.start()
                case "stop":
                    unit.stop()
                case "kill":
                    unit.kill()
                case _:
                    raise AssertionError(f"systemctl {action} is not known here")
        return ""

    def _bash(self, line: str) -> subprocess.CompletedProcess[str]:
        """bash runs the line. If it is one command of sk, bash only makes its words, and the
        process is forked: a wait for a verdict repeats `sk status` many times."""
        if not line.startswith("sk ") or OPERATORS & set(line):
            return self._executed(line)
        words = self._executed(f"set -- {line}\nprintf '%s\\0' \"$@\"").stdout.split("\0")
        return run_sk(*words[1:-1], env=self.env, timeout=COMMAND_TIMEOUT)

    def _executed(self, script: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "-c", script],
            env=self.env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=COMMAND_TIMEOUT,
        )
