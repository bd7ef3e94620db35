"""Which hosts can be reached from this machine alone. No name is looked up: it could change."""

from __future__ import annotations

import ipaddress


def is_loopback(host: str) -> bool:
    """Of an address or a name."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
