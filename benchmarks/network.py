"""The network between the primary, the proposer and the copies: the loopback, or one with a delay.

`Network` is the loopback of this machine. In a `DelayedNetwork` each has a network namespace of its
own, and every packet from one to another takes the same time, one way:

    primary (pgbench too)   proposer   copy 1   copy 2   copy 3
              `---------------`----------`--------`--------'

Cables (veth) connect all of them to one more namespace, the switch. If the kernel has netem, the
switch is a bridge, and each end of a cable delays what it sends. Otherwise the switch is a process
with real-time priority (delay_line.c). Its CPU time is shown, and penalises the setup that sends
more packets.

Nothing of this is visible outside, and nothing remains: the kernel removes it with the last
process.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

from benchmarks.namespaces import (
    LOOPBACK,
    Namespace,
    check_programs,
    move_into,
    new_namespace,
    refusal_seconds,
)
from benchmarks.switch import INTERFACE, Links, cable, delay_line
from quorum_wal.pg_fixtures.errors import FixtureError
from quorum_wal.pg_fixtures.ports import free_port
from quorum_wal.pg_fixtures.processes import ServiceProcess

PRIMARY, PROPOSER = "primary", "proposer"
COPIES = ("copy 1", "copy 2", "copy 3")
NODES = (PRIMARY, PROPOSER, *COPIES)

SUBNET = "10.88.0.0/24"
QUEUE_PACKETS = 10_000  # netem drops packets above this number
ROUND_TRIPS = 21


class Network:
    """All processes are on the loopback."""

    subnet = ""  # the subnet of clients, besides the loopback
    service_options: tuple[str, ...] = ()
    description = ""

    def address(self, node: str) -> str:
        return LOOPBACK

    def place(self, process: ServiceProcess, node: str) -> None:
        """Before the first start: makes it run at that node, and listen there."""

    @property
    def processes(self) -> list[ServiceProcess]:
        """The processes of the network itself."""
        return []


class DelayedNetwork(Network):
    """Created by delayed_network()."""

    subnet = SUBNET
    service_options = ("--insecure",)  # no TLS, as on the loopback

    def __init__(self, namespaces: dict[str, Namespace], delay_line: ServiceProcess | None) -> None:
        self._namespaces = namespaces
        self._delay_line = delay_line

    def address(self, node: str) -> str:
        return f"10.88.0.{NODES.index(node) + 1}"

    def place(self, process: ServiceProcess, node: str) -> None:
        move_into(self._namespaces[node], self.address(node), process)

    @property
    def processes(self) -> list[ServiceProcess]:
        return [self._delay_line] if self._delay_line is not None else []

    def round_trip_ms(self) -> float:
        """The median duration of refused connections from the primary to all others."""
        port = free_port()
        times = [
            refusal_seconds(self.address(node), port)
            for node in NODES[1:]
            for _ in range(ROUND_TRIPS)
        ]
        return statistics.median(times) * 1000


@contextmanager
def delayed_network(delay_ms: float, directory: Path) -> Iterator[DelayedNetwork]:
    """Inside the block this thread is at the primary. Raises FixtureError, Unavailable."""
    check_programs("--delay-ms", "ip", "tc", "nsenter")
    with ExitStack() as stack:
        namespaces = {node: new_namespace(stack) for node in NODES}
        switch = new_namespace(stack)
        ports = [cable(switch, namespaces[node], number) for number, node in enumerate(NODES)]
        line = None
        if _has_netem():
            _bridge(switch, ports)
            for namespace in namespaces.values():
                _delay_by_netem(namespace, delay_ms)
        else:
            links = stack.enter_context(closing(Links(directory / "links", len(NODES), delay_ms)))
            line = stack.enter_context(delay_line(switch, ports, links, directory))
        network = DelayedNetwork(namespaces, line)
        for node, namespace in namespaces.items():
            namespace.ip(f"address add {network.address(node)}/24 dev {INTERFACE}")
        stack.enter_context(namespaces[PRIMARY].entered())
        round_trip = network.round_trip_ms()
        if round_trip < 2 * delay_ms:
            raise FixtureError(f"a round trip takes {round_trip:.3f} ms, less than two delays")
        means = "netem" if line is None else "a delay line, because this kernel has no netem"
        network.description = (
            f"Every packet between primary, proposer and copies takes {delay_ms:g} ms one way, "
            f"by {means}; a round trip was measured as {round_trip:.2f} ms."
        )
        yield network


def _has_netem() -> bool:
    with ExitStack() as stack:
        words = ("tc", "qdisc", "add", "dev", "lo", "root", "netem", "delay", "1ms")
        return new_namespace(stack).run(*words, check=False).returncode == 0


def _bridge(switch: Namespace, ports: Sequence[str]) -> None:
    joined = [f"link set {port} master bridge" for port in ports]
    switch.ip("link add bridge type bridge", "link set bridge up", *joined)


def _delay_by_netem(namespace: Namespace, delay_ms: float) -> None:
    """Delays what it sends, not what it receives."""
    delay = ("delay", f"{delay_ms * 1000:g}us", "limit", str(QUEUE_PACKETS))
    namespace.run("tc", "qdisc", "add", "dev", INTERFACE, "root", "netem", *delay)
