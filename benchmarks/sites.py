"""`Sites`: a network namespace for each site, with a delay for each pair of sites, and faults.

    site a ---. 5 ms .--- site b
               switch                outside: clients and operators, 1 ms from every site
    site c ---'

Processes at the same site use its loopback, without delay or loss. All sites are reachable from
outside. The switch is always the delay line, even if the kernel has netem, which delays by
interface and not by pair. So all figures are measured in the same way, and one table controls the
network.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from itertools import permutations
from pathlib import Path

from benchmarks.namespaces import (
    Namespace,
    check_programs,
    move_into,
    new_namespace,
    refusal_seconds,
)
from benchmarks.switch import INTERFACE, Links, cable, delay_line, mac_address
from quorum_wal.pg_fixtures.errors import FixtureError
from quorum_wal.pg_fixtures.processes import ServiceProcess

OUTSIDE = "outside"
OUTSIDE_DELAY_MS = 1.0
SUBNET = "10.89.0.0/24"
CUT = 100.0  # percent lost
PROBE_PORT = 9  # unused, because each namespace is our own
PROBES = 5

Delays = Mapping[tuple[str, str], float]  # ms, one way, of a pair in either order


class Sites:
    """Created by open_sites()."""

    subnet = SUBNET
    service_options = ("--insecure",)  # no TLS, as on the loopback

    def __init__(
        self,
        names: Sequence[str],
        delays: Delays,
        namespaces: Mapping[str, Namespace],
        links: Links,
        line: ServiceProcess,
    ) -> None:
        self.names = tuple(names)
        self._delays = delays
        self._namespaces = namespaces
        self._ends = (*names, OUTSIDE)
        self._links = links
        self._line = line
        self.repair()

    def address(self, site: str) -> str:
        return _address(self._ends.index(site))

    def at(self, site: str) -> AbstractContextManager[None]:
        """Inside the block this thread, and all that it starts, are at the site."""
        return self._namespaces[site].entered()

    def place(self, process: ServiceProcess, site: str) -> None:
        """Before the first start: makes it run at that site, and listen there."""
        move_into(self._namespaces[site], self.address(site), process)

    # ---- changes of the network

    def repair(self, loss_percent: float = 0) -> None:
        """Restores all links, but loses that percentage of packets between sites."""
        for one, other in permutations(self._ends, 2):
            is_outside = OUTSIDE in (one, other)
            self._set(one, other, 0 if is_outside else loss_percent)

    def separate(self, *lost: str) -> None:
        """Disconnects these sites from all other sites; the outside still reaches all sites."""
        self._cut(lost, [site for site in self.names if site not in lost])

    def cut_off(self, *lost: str) -> None:
        """Disconnects these sites from all other sites and the outside."""
        self._cut(lost, [end for end in self._ends if end not in lost])

    def _cut(self, some: Sequence[str], others: Sequence[str]) -> None:
        for one in some:
            for other in others:
                self._set(one, other, CUT)
                self._set(other, one, CUT)

    def _set(self, one: str, other: str, loss_percent: float) -> None:
        numbers = self._ends.index(one), self._ends.index(other)
        self._links.set(*numbers, self.delay_ms(one, other), loss_percent)

    # ---- properties of the network

    def delay_ms(self, one: str, other: str) -> float:
        """The configured delay, one way."""
        if OUTSIDE in (one, other):
            return OUTSIDE_DELAY_MS
        return (
            self._delays[one, other] if (one, other) in self._delays else self._delays[other, one]
        )

    def sent_bytes(self, site: str) -> int:
        """The bytes sent to other sites and the outside so far, including all packet headers."""
        return self._namespaces[site].sent_bytes(INTERFACE)

    def check(self) -> None:
        """Raises FixtureError if a round trip is shorter than two delays, or the line ended."""
        for one, other in permutations(self.names, 2):
            with self.at(one):
                least = min(
                    refusal_seconds(self.address(other), PROBE_PORT) * 1000 for _ in range(PROBES)
                )
            if least < 2 * self.delay_ms(one, other):
                raise FixtureError(f"a round trip from {one} to {other} takes only {least:.3f} ms")
        self.check_line()

    def check_line(self) -> None:
        """Raises FixtureError if it has ended, because no packet has arrived since."""
        if not self._line.alive:
            raise FixtureError(f"the delay line has ended: {self._line.log_tail()}")


@contextmanager
def open_sites(names: Sequence[str], delays: Delays, directory: Path) -> Iterator[Sites]:
    """Inside the block this thread is outside. Raises FixtureError, Unavailable."""
    check_programs("a network of sites", "ip", "nsenter")
    ends = (*names, OUTSIDE)
    with ExitStack() as stack:
        namespaces = {end: new_namespace(stack) for end in ends}
        switch = new_namespace(stack)
        ports = [cable(switch, namespaces[end], number) for number, end in enumerate(ends)]
        for number, end in enumerate(ends):
            _give_addresses(namespaces[end], number, len(ends))
        links = Links(directory / "links", len(ends), OUTSIDE_DELAY_MS)
        stack.enter_context(closing(links))
        line = stack.enter_context(delay_line(switch, ports, links, directory))
        sites = Sites(names, delays, namespaces, links, line)
        stack.enter_context(sites.at(OUTSIDE))
        sites.check()
        try:
            yield sites
        except Exception:
            sites.check_line()  # if it has ended, that is the cause
            raise


def _give_addresses(namespace: Namespace, own: int, ends: int) -> None:
    """Adds its address, and those of its neighbours. Between real sites there is no ARP. With it, a
    restored link would not work for seconds, until the next request."""
    neighbours = [
        f"neighbour replace {_address(end)} lladdr {mac_address(end)} dev {INTERFACE} nud permanent"
        for end in range(ends)
        if end != own
    ]
    namespace.ip(f"address add {_address(own)}/24 dev {INTERFACE}", *neighbours)


def _address(number: int) -> str:
    return f"10.89.0.{number + 1}"
