"""A membership as JSON values on status pages, written by safekeepers and read by tools.

    {"author": "5/00112233445566778899aabbccddeeff", "generation": 3, "members": [1, 2, 3],
     "new_members": [], "forced": false, "roster": [
        {"id": 1, "instance": "8 bytes in hex", "address": "10.0.0.1:5454", "site": "a"}, ...]}


The roster contains the members of which more than the id is known. A page of an older release has
no `forced`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quorum_wal.consensus.errors import ConsensusError, MessageError
from quorum_wal.consensus.ids import NodeId
from quorum_wal.consensus.membership import Member, Membership, Stamp

PORT_MAX = 0xFFFF


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
            Stamp(NodeId.parse(page["author"]), int(page["generation"])),
            tuple(page["members"]),
            tuple(page["new_members"]),
            tuple(member_of_page(member) for member in page["roster"]),
            bool(page.get("forced", False)),
        )
    except (ConsensusError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise MessageError(f"page does not show a membership: {error!r}") from error


def member_of_page(page: Mapping[str, Any]) -> Member:
    """Raises MessageError."""
    try:
        host, port = split_address(page["address"])
        return Member(page["id"], bytes.fromhex(page["instance"]), host, port, page["site"])
    except (ConsensusError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise MessageError(f"page does not show a member: {error!r}") from error


def split_address(address: str) -> tuple[str, int]:
    """`host:port` or `[v6]:port` as a pair; "" as ("", 0). Raises MessageError."""
    if not address:
        return "", 0
    host, _, port = address.rpartition(":")
    digits = port if port.isascii() and port.isdecimal() and len(port) <= len("65535") else ""
    if not host or not digits or not 0 < int(digits) <= PORT_MAX:
        raise MessageError(f"invalid address {address[:80]!r}: expected host:port")
    return host.removeprefix("[").removesuffix("]"), int(digits)
