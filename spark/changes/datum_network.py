"""`inet`, `cidr`, `macaddr`, `macaddr8` as text.

    inet, cidr   | family 1: 2 IPv4, 3 IPv6 | bits of the netmask 1 | address 4 or 16 |

Source: Postgres `utils/inet.h`, `network.c`, `inet_net_ntop.c`.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address

_IPV4, _IPV6 = 2, 3


def inet_text(data: bytes) -> str:
    """The output of inet_out: the netmask is omitted if it covers the whole address."""
    address, bits, bits_max = _parse(data)
    return address if bits == bits_max else f"{address}/{bits}"


def cidr_text(data: bytes) -> str:
    address, bits, _ = _parse(data)
    return f"{address}/{bits}"


def _parse(data: bytes) -> tuple[str, int, int]:
    family, bits = data[0], data[1]
    if family == _IPV4 and len(data) == 6:
        return str(IPv4Address(data[2:])), bits, 32
    if family == _IPV6 and len(data) == 18:
        return _ipv6_text(data[2:]), bits, 128
    raise ValueError(f"inet of family {family} with {len(data)} bytes")


def _ipv6_text(data: bytes) -> str:
    """IPv4 in the last four bytes is printed in IPv4 notation, as inet_net_ntop does."""
    address = IPv6Address(data)
    is_mapped = data[:12] == bytes(10) + b"\xff\xff"
    is_compatible = data[:12] == bytes(12) and data[12:14] != bytes(2)
    if is_mapped or is_compatible:
        prefix = "::ffff:" if is_mapped else "::"
        return prefix + str(IPv4Address(data[12:]))
    return str(address)


def macaddr_text(data: bytes) -> str:
    return data.hex(":")
