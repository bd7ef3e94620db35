"""A membership as JSON values on status pages, written by safekeepers and read by tools.

    {"author": "5/00112233445566778899aabbccddeeff", "generation": 3, "members": [1, 2, 3],
     "new_members": [], "forced": false, "roster": [
        {"id": 1, "instance": "8 bytes in hex", "address": "10.0.0.1:5454", "site": "a"}, ...]}


The roster contains the members of which more than the id is known. A page of an older release has
no `forced`.

Law: numbers are integers that `membership_codec.py` can encode. A page comes from another program,
and the loop that commits go through encodes the membership later.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from quorum_wal.consensus.errors import ConsensusError, MessageError
from quorum_wal.consensus.ids import NodeId
from quorum_wal.consensus.membership import Member, Membership, Stamp

PORT_MAX = 0xFFFF
#: As in `membership_codec.py`.
ID_MAX, GENERATION_MAX = (1 << 64) - 1, (1 << 32) - 1
#: A name or an address. With a comma it would be several hosts for libpq, with a slash a socket.
_HOST = re.compile(r"[^\s,/@\x00-\x1f\x7f]+")


def membership_page(membership: Membership) -> dict[str, Any]:
    return {
        "author": str(membership.stamp.author),
        "generation": membership.generation,
        "members": list(membership.members),
        "new_members": list(membership.new_members),
        "forced": membership.is_forced,
        "roster": [member_page(member) for member in membership.roster],
    }


def member_page(member: Member) -> dict[str, Any]:
    return {
        "id": member.id,
        "instance": member.instance.hex(),
        "address": member.address,
        "site": member.site,
    }


def membership_of_page(page: Mapping[str, Any]) -> Membership:
    """Raises MessageError."""
    try:
        return Membership(
            Stamp(NodeId.parse(page["author"]), _number(page["generation"], GENERATION_MAX)),
            tuple(_number(each, ID_MAX) for each in page["members"]),
            tuple(_number(each, ID_MAX) for each in page["new_members"]),
            tuple(member_of_page(member) for member in page["roster"]),
            bool(page.get("forced", False)),
        )
    except (ConsensusError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise MessageError(f"page does not show a membership: {error!r}") from error


def member_of_page(page: Mapping[str, Any]) -> Member:
    """Raises MessageError."""
    try:
        host, port = split_address(page["address"])
        instance = bytes.fromhex(page["instance"])
        return Member(_number(page["id"], ID_MAX), instance, host, port, page["site"])
    except (ConsensusError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise MessageError(f"page does not show a member: {error!r}") from error


def split_address(address: str) -> tuple[str, int]:
    """`host:port` or `[v6]:port` as a pair; "" as ("", 0). Raises MessageError."""
    if not address:
        return "", 0
    host, _, port = address.rpartition(":")
    digits = port if port.isascii() and port.isdecimal() and len(port) <= len("65535") else ""
    host = host.removeprefix("[").removesuffix("]")
    if not _HOST.fullmatch(host) or not digits or not 0 < int(digits) <= PORT_MAX:
        raise MessageError(f"invalid address {address[:80]!r}: expected host:port")
    return host, int(digits)


def _number(value: Any, greatest: int) -> int:
    """Raises MessageError. True is an int for Python, and 3.0 is equal to 3."""
    if type(value) is not int or not 0 <= value <= greatest:
        raise MessageError(f"expected a whole number up to {greatest}, got {str(value)[:40]}")
    return value
