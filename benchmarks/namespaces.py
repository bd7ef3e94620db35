"""`Namespace`: a Linux network namespace without a name, which needs no clean-up.

Only a descriptor of this process and the processes inside hold it. The kernel removes it with its
last holder, even after a crash. Needs root. Services that listen on the loopback can be moved into
a namespace.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from subprocess import CompletedProcess

from quorum_wal.pg_fixtures.errors import FixtureError
from quorum_wal.pg_fixtures.processes import ServiceProcess
from quorum_wal.pg_fixtures.proposer import ProposerProcess
from quorum_wal.pg_fixtures.safekeeper import SafekeeperProcess
from quorum_wal.pg_server.errors import Unavailable
from quorum_wal.pg_server.program import run_program

LOOPBACK = "127.0.0.1"  # where all fixtures listen
CLONE_NEWNET = 0x40000000  # linux/sched.h
CURRENT = "/proc/thread-self/ns/net"

# os.unshare and os.setns came with Python 3.12.
_libc = ctypes.CDLL(None, use_errno=True)


class Namespace:
    """A new namespace with an active loopback. Raises FixtureError."""

    def __init__(self) -> None:
        before = os.open(CURRENT, os.O_RDONLY)
        try:
            _check(_libc.unshare(CLONE_NEWNET), "create a network namespace")
            self._fd = os.open(CURRENT, os.O_RDONLY)
        finally:
            _enter(before)
            os.close(before)
        self.ip("link set lo up")

    def close(self) -> None:
        """Releases this process's descriptor."""
        os.close(self._fd)

    @property
    def path(self) -> str:
        """The path by which other processes find it."""
        return f"/proc/{os.getpid()}/fd/{self._fd}"

    def command(self, program: Sequence[str | Path]) -> list[str]:
        """A command line that runs `program` inside."""
        return ["nsenter", f"--net={self.path}", *map(str, program)]

    def run(self, *program: str, check: bool = True) -> CompletedProcess[str]:
        """Runs a program to its end, inside. Raises ProgramFailed, unless `check` is False."""
        return run_program(self.command(program), check=check)

    def ip(self, *commands: str) -> None:
        """Runs these `ip` commands inside, in one process. Raises ProgramFailed."""
        self.run("sh", "-ec", "\n".join(f"ip {command}" for command in commands))

    def sent_bytes(self, interface: str) -> int:
        """The bytes sent by the interface since it exists."""
        shown = self.run("ip", "-json", "-statistics", "link", "show", "dev", interface).stdout
        (link,) = json.loads(shown)
        return int(link["stats64"]["tx"]["bytes"])

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Inside the block this thread is in the namespace, and so are programs that it starts."""
        before = os.open(CURRENT, os.O_RDONLY)
        try:
            _enter(self._fd)
            yield
        finally:
            _enter(before)
            os.close(before)


def new_namespace(stack: ExitStack) -> Namespace:
    """A namespace that is held as long as the stack is open."""
    namespace = Namespace()
    stack.callback(namespace.close)
    return namespace


def check_programs(user: str, *programs: str) -> None:
    """Raises Unavailable unless the programs exist and this process is root."""
    if os.geteuid() != 0:
        raise Unavailable(f"{user} needs root, for network namespaces")
    for program in programs:
        if shutil.which(program) is None:
            raise Unavailable(
                f'there is no program "{program}", which {user} needs',
                hint="install iproute2 and util-linux",
            )


def move_into(namespace: Namespace, address: str, process: ServiceProcess) -> None:
    """Before the first start: makes it run inside, and listen at that address."""
    words = [word.replace(LOOPBACK, address) for word in process.program]
    process.program = namespace.command(words)
    if isinstance(process, SafekeeperProcess):
        process.address = process.address.replace(LOOPBACK, address)
    if isinstance(process, SafekeeperProcess | ProposerProcess):
        process.http_address = process.http_address.replace(LOOPBACK, address)


def refusal_seconds(address: str, port: int) -> float:
    """The duration of a refused connection, which is one round trip. Raises FixtureError."""
    with socket.socket() as client:
        begun = time.perf_counter()
        if client.connect_ex((address, port)) == 0:
            raise FixtureError(f"another process already listens at {address}")
        return time.perf_counter() - begun


def _enter(fd: int) -> None:
    _check(_libc.setns(fd, CLONE_NEWNET), "enter a network namespace")


def _check(result: int, what: str) -> None:
    if result != 0:
        raise FixtureError(f"could not {what}: {os.strerror(ctypes.get_errno())}")
