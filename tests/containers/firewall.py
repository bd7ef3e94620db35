"""Drops packets between containers with the host's iptables, and cleans up after an engine.

The chain DOCKER-USER is evaluated before the engine's own rules and is reserved for users. A
dropped packet is neither answered nor refused: an open connection stalls, as on a broken network.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from quorum_wal.pg_server.errors import Unavailable
from quorum_wal.pg_server.program import run_program

USER_CHAIN = "DOCKER-USER"
TABLES = ("filter", "nat")
IP_FORWARD = Path("/proc/sys/net/ipv4/ip_forward")


class Firewall:
    """Our rules in DOCKER-USER; heal() removes all of them."""

    def __init__(self) -> None:
        self._rules: list[tuple[str, ...]] = []

    def drop(self, source: str, destination: str) -> None:
        """From now on no packet passes from one address to the other. Raises Unavailable."""
        if os.geteuid() != 0:
            raise Unavailable("only root can drop packets", hint="run as root, on Linux")
        rule = ("--source", source, "--destination", destination, "--jump", "DROP")
        iptables("--insert", USER_CHAIN, *rule)
        self._rules.append(rule)

    def partition(self, one_side: list[str], other_side: list[str]) -> None:
        """No packet passes between an address of one side and one of the other, in either
        direction."""
        for one in one_side:
            for other in other_side:
                self.drop(one, other)
                self.drop(other, one)

    def heal(self) -> None:
        while self._rules:
            iptables("--delete", USER_CHAIN, *self._rules.pop())

    @property
    def dropped_packets(self) -> list[int]:
        """By each drop(), in their order."""
        listing = iptables("--list", USER_CHAIN, "--verbose", "--numeric", "--exact")
        counts = [int(line.split()[0]) for line in listing.splitlines() if " DROP " in line]
        return counts[::-1]  # each was inserted at the top


class FirewallBefore:
    """The host's packet filter before our engine was started."""

    def __init__(self) -> None:
        self._ip_forward = IP_FORWARD.read_text()
        rules = iptables("--list-rules", "FORWARD").splitlines()
        self._forward_policy = rules[0].split()[-1]  # -P FORWARD ACCEPT

    def restore(self) -> None:
        """Remove the chains that a stopped engine leaves, and restore its policy."""
        iptables("--policy", "FORWARD", self._forward_policy)
        for table in TABLES:
            rules = [line.split() for line in iptables("-t", table, "-S").splitlines()]
            chains = [rule[1] for rule in rules if rule[0] == "-N" and "DOCKER" in rule[1]]
            for rule in rules:
                if rule[0] == "-A" and rule[-1] in chains:
                    iptables("-t", table, "-D", *rule[1:])
            for step in ("-F", "-X"):
                for chain in chains:
                    iptables("-t", table, step, chain)
        IP_FORWARD.write_text(self._ip_forward)


def iptables(*arguments: str) -> str:
    """Raises Unavailable without the program, ProgramFailed."""
    program = shutil.which("iptables", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if program is None:
        raise Unavailable("no iptables found", hint="install the package iptables")
    return run_program([program, "--wait", *arguments]).stdout
