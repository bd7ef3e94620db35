"""The switch that connects namespaces: cables to it, and a delay line with changeable links.

A link leads from one end to another and has a delay and a loss. The opposite direction is another
link. `Links` is the table of all links, which the delay line (delay_line.c) maps into memory.
"""

from __future__ import annotations

import mmap
import shutil
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.namespaces import Namespace
from quorum_wal.pg_fixtures.failing_disk import COMPILERS
from quorum_wal.pg_fixtures.processes import ServiceProcess
from quorum_wal.pg_server.errors import Unavailable
from quorum_wal.pg_server.program import run_program

INTERFACE = "cable"
MAC_PREFIX = "02:00:00:00:00:"  # the last byte is the number of the end, from 1
SOURCE = Path(__file__).with_name("delay_line.c")
START_TIMEOUT = 10.0  # seconds

_LINK = struct.Struct("=qq")  # delay in ns, lost per million


class Links:
    """The links between all ends, numbered from 0. At first all have one delay, and no loss.

    set() changes the network at once.
    """

    def __init__(self, path: Path, ends: int, delay_ms: float) -> None:
        self.path = path
        self.ends = ends
        path.write_bytes(bytes(ends * ends * _LINK.size))
        with open(path, "r+b") as file:
            self._table = mmap.mmap(file.fileno(), 0)
        for source in range(ends):
            for destination in range(ends):
                self.set(source, destination, delay_ms)

    def close(self) -> None:
        self._table.close()

    def set(self, source: int, destination: int, delay_ms: float, loss_percent: float = 0) -> None:
        """100 percent disconnect it. The delay line needs a delay, because that sets how often it
        wakes up."""
        if delay_ms <= 0 or not 0 <= loss_percent <= 100:
            raise ValueError(f"invalid link: {delay_ms} ms, {loss_percent} % lost")
        offset = (source * self.ends + destination) * _LINK.size
        _LINK.pack_into(self._table, offset, int(delay_ms * 1e6), int(loss_percent * 1e4))


def mac_address(number: int) -> str:
    """The address of the end with that number, from 0."""
    return f"{MAC_PREFIX}{number + 1:02x}"


def cable(switch: Namespace, namespace: Namespace, number: int) -> str:
    """Connects the namespace to the switch. Returns the interface's name there."""
    port = f"port{number + 1}"
    namespace.ip(
        f"link add {INTERFACE} address {mac_address(number)} type veth"
        f" peer name {port} netns {switch.path}",
        f"link set {INTERFACE} up",
    )
    switch.ip(f"link set {port} up")
    return port


@contextmanager
def delay_line(
    switch: Namespace, ports: Sequence[str], links: Links, directory: Path
) -> Iterator[ServiceProcess]:
    """Forwards packets inside the block. Raises Unavailable, ProcessEnded."""
    compiler = next(filter(shutil.which, COMPILERS), None)
    if compiler is None:
        raise Unavailable(
            "a delay line needs a C compiler", hint=f"install one of {', '.join(COMPILERS)}"
        )
    program = directory / "delay_line"
    run_program([compiler, "-O2", "-Wall", "-o", program, SOURCE])
    process = ServiceProcess(
        switch.command([program, links.path, *ports]),
        name="delay line",
        log_path=directory / "delay_line.log",
    )
    with process:
        process.wait_until(lambda: "ready" in process.log_text(), START_TIMEOUT, "it to listen")
        yield process
