"""`Namespace`: a Linux network namespace without a name, which needs no cleaning up.

It is held by a descriptor of this process and by the processes in it, and by nothing else: the
kernel removes it with its last holder, however that one ends. Needs root.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from subprocess import CompletedProcess

from pg_fixtures.errors import FixtureError
from pg_server.program import run_program

CLONE_NEWNET = 0x40000000  # linux/sched.h
CURRENT = "/proc/thread-self/ns/net"

# os.unshare and os.setns came with Python 3.12.
_libc = ctypes.CDLL(None, use_errno=True)


class Namespace:
    """A new one, with nothing but its loopback, which is up. Raises FixtureError."""

    def __init__(self) -> None:
        before = os.open(CURRENT, os.O_RDONLY)
        try:
            _check(_libc.unshare(CLONE_NEWNET), "create a network namespace")
            self._fd = os.open(CURRENT, os.O_RDONLY)
        finally:
            _enter(before)
            os.close(before)
        self.run("ip", "link", "set", "lo", "up")

    def close(self) -> None:
        """Hold it no longer."""
        os.close(self._fd)

    @property
    def path(self) -> str:
        """By which other processes find it."""
        return f"/proc/{os.getpid()}/fd/{self._fd}"

    def command(self, program: Sequence[str | Path]) -> list[str]:
        """The command line that becomes `program`, inside."""
        return ["nsenter", f"--net={self.path}", *map(str, program)]

    def run(self, *program: str, check: bool = True) -> CompletedProcess[str]:
        """Run a program to its end, inside. Raises ProgramFailed, unless `check` is false."""
        return run_program(self.command(program), check=check)

    @contextmanager
    def entered(self) -> Iterator[None]:
        """In the block this thread is inside, and so are the programs that it starts."""
        before = os.open(CURRENT, os.O_RDONLY)
        try:
            _enter(self._fd)
            yield
        finally:
            _enter(before)
            os.close(before)


def _enter(fd: int) -> None:
    _check(_libc.setns(fd, CLONE_NEWNET), "enter a network namespace")


def _check(result: int, what: str) -> None:
    if result != 0:
        raise FixtureError(f"could not {what}: {os.strerror(ctypes.get_errno())}")
