"""Recognises hosts that only this machine can reach. Does not resolve names: those can change."""

from __future__ import annotations

import ipaddress


def is_loopback(host: str) -> bool:
    """`host` is an address or a name."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
