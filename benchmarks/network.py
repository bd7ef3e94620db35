"""What is between the primary, the proposer and the copies: nothing, or a delay.

`Network` is the loopback of this machine. In a `DelayedNetwork` each has a network namespace of its
own, and every packet from one to another takes the same time, one way:

    primary (pgbench too)   proposer   copy 1   copy 2   copy 3
              `---------------`----------`--------`--------'

Cables (veth) lead from all of them to one more namespace, the switch. Where the kernel has netem,
it is a bridge, and each one's own end of its cable delays what it sends. Where it has not, the
switch is a process that may interrupt the others (delay_line.c); its CPU time is shown, and is to
the debit of the setup that sends more packets.

Nothing of this is to be seen outside, and nothing is left: the kernel removes it with the last
process.
"""

from __future__ import annotations

import os
import shutil
import socket
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks.namespaces import Namespace
from pg_fixtures.errors import FixtureError
from pg_fixtures.failing_disk import COMPILERS
from pg_fixtures.ports import free_port
from pg_fixtures.processes import ServiceProcess
from pg_fixtures.proposer import ProposerProcess
from pg_fixtures.safekeeper import SafekeeperProcess
from pg_server.errors import Unavailable
from pg_server.program import run_program

PRIMARY, PROPOSER = "primary", "proposer"
COPIES = ("copy 1", "copy 2", "copy 3")
NODES = (PRIMARY, PROPOSER, *COPIES)

LOOPBACK = "127.0.0.1"  # where all fixtures listen
SUBNET = "10.88.0.0/24"
INTERFACE = "cable"
QUEUE_PACKETS = 10_000  # netem drops more than wait
SOURCE = Path(__file__).with_name("delay_line.c")
START_TIMEOUT = 10.0  # seconds
ROUND_TRIPS = 21


class Network:
    """Everything on the loopback."""

    subnet = ""  # of which clients come, beside the loopback
    service_options: tuple[str, ...] = ()
    description = ""

    def address(self, node: str) -> str:
        return LOOPBACK

    def place(self, process: ServiceProcess, node: str) -> None:
        """Before its first start: let it run at that node, and listen there."""

    @property
    def processes(self) -> list[ServiceProcess]:
        """The network's own."""
        return []


class DelayedNetwork(Network):
    """Made by delayed_network()."""

    subnet = SUBNET
    service_options = ("--insecure",)  # no TLS, as on the loopback

    def __init__(self, namespaces: dict[str, Namespace], delay_line: ServiceProcess | None) -> None:
        self._namespaces = namespaces
        self._delay_line = delay_line

    def address(self, node: str) -> str:
        return f"10.88.0.{NODES.index(node) + 1}"

    def place(self, process: ServiceProcess, node: str) -> None:
        own = self.address(node)
        words = [word.replace(LOOPBACK, own) for word in process.program]
        process.program = self._namespaces[node].command(words)
        if isinstance(process, SafekeeperProcess):
            process.address = process.address.replace(LOOPBACK, own)
        if isinstance(process, SafekeeperProcess | ProposerProcess):
            process.http_address = process.http_address.replace(LOOPBACK, own)

    @property
    def processes(self) -> list[ServiceProcess]:
        return [self._delay_line] if self._delay_line is not None else []

    def round_trip_ms(self) -> float:
        """The median of refused connections from the primary, where we are, to all others."""
        times = []
        port = free_port()
        for node in NODES[1:] * ROUND_TRIPS:
            with socket.socket() as client:
                begun = time.perf_counter()
                if client.connect_ex((self.address(node), port)) == 0:
                    raise FixtureError(f"somebody listens at {node} already")
                times.append(time.perf_counter() - begun)
        return statistics.median(times) * 1000


@contextmanager
def delayed_network(delay_ms: float, directory: Path) -> Iterator[DelayedNetwork]:
    """In the block this thread is at the primary. Raises FixtureError, Unavailable."""
    _check_requirements()
    with ExitStack() as stack:
        namespaces = {node: _namespace(stack) for node in NODES}
        switch = _namespace(stack)
        ports = [_port(switch, namespaces[node], number) for number, node in enumerate(NODES, 1)]
        delay_line = None
        if _has_netem():
            _bridge(switch, ports)
            for namespace in namespaces.values():
                _delay_by_netem(namespace, delay_ms)
        else:
            delay_line = stack.enter_context(_delay_line(switch, ports, delay_ms, directory))
            _wait_ready(delay_line)
        network = DelayedNetwork(namespaces, delay_line)
        for node, namespace in namespaces.items():
            namespace.run("ip", "address", "add", f"{network.address(node)}/24", "dev", INTERFACE)
        stack.enter_context(namespaces[PRIMARY].entered())
        round_trip = network.round_trip_ms()
        if round_trip < 2 * delay_ms:
            raise FixtureError(f"a round trip takes {round_trip:.3f} ms, less than two delays")
        means = "netem" if delay_line is None else "a delay line, for this kernel has no netem"
        network.description = (
            f"Every packet between primary, proposer and copies takes {delay_ms:g} ms one way, "
            f"by {means}; a round trip was measured as {round_trip:.2f} ms."
        )
        yield network


def _check_requirements() -> None:
    if os.geteuid() != 0:
        raise FixtureError("--delay-ms needs root, for network namespaces")
    for program in ("ip", "tc", "nsenter"):
        if shutil.which(program) is None:
            raise Unavailable(
                f'there is no program "{program}", which --delay-ms needs',
                hint="install iproute2 and util-linux",
            )


def _namespace(stack: ExitStack) -> Namespace:
    namespace = Namespace()
    stack.callback(namespace.close)
    return namespace


def _has_netem() -> bool:
    with ExitStack() as stack:
        words = ("tc", "qdisc", "add", "dev", "lo", "root", "netem", "delay", "1ms")
        return _namespace(stack).run(*words, check=False).returncode == 0


def _port(switch: Namespace, namespace: Namespace, number: int) -> str:
    """A cable from the namespace to the switch; returns what it is called there."""
    port = f"port{number}"
    address = ("address", f"02:00:00:00:00:{number:02x}")
    peer = ("peer", "name", port, "netns", switch.path)
    namespace.run("ip", "link", "add", INTERFACE, *address, "type", "veth", *peer)
    namespace.run("ip", "link", "set", INTERFACE, "up")
    switch.run("ip", "link", "set", port, "up")
    return port


def _bridge(switch: Namespace, ports: Sequence[str]) -> None:
    switch.run("ip", "link", "add", "bridge", "type", "bridge")
    switch.run("ip", "link", "set", "bridge", "up")
    for port in ports:
        switch.run("ip", "link", "set", port, "master", "bridge")


def _delay_by_netem(namespace: Namespace, delay_ms: float) -> None:
    """What it sends, and not what it gets."""
    delay = ("delay", f"{delay_ms * 1000:g}us", "limit", str(QUEUE_PACKETS))
    namespace.run("tc", "qdisc", "add", "dev", INTERFACE, "root", "netem", *delay)


def _delay_line(
    switch: Namespace, ports: Sequence[str], delay_ms: float, directory: Path
) -> ServiceProcess:
    compiler = next(filter(shutil.which, COMPILERS), None)
    if compiler is None:
        raise Unavailable(
            "--delay-ms needs netem in the kernel, or a C compiler for a delay line; "
            "there is neither",
            hint=f"load the module sch_netem, or install one of {', '.join(COMPILERS)}",
        )
    program = directory / "delay_line"
    run_program([compiler, "-O2", "-Wall", "-o", program, SOURCE])
    return ServiceProcess(
        switch.command([program, f"{delay_ms * 1e6:.0f}", *ports]),
        name="delay line",
        log_path=directory / "delay_line.log",
    )


def _wait_ready(delay_line: ServiceProcess) -> None:
    delay_line.wait_until(lambda: "ready" in delay_line.log_text(), START_TIMEOUT, "it to listen")
