"""Recognises addresses, and hosts that only this machine can reach. Does not resolve names: those
can change."""

from __future__ import annotations

import ipaddress


def is_loopback(host: str) -> bool:
    """`host` is an address or a name."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def is_address(host: str) -> bool:
    """Whether `host` is an address, not a name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
