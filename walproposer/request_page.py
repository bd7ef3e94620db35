"""A request to change the members, as JSON values of the proposer's HTTP port.

POST /members  {"generation": 3, "members": [
                   {"id": 1, "instance": "8 bytes in hex", "address": "host:port", "site": ""}]}
POST /members/outside  {"address": "host:port"}

For a present member, instance (zeros) and address ("") may be unknown.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quorum_wal.consensus.errors import MessageError
from quorum_wal.consensus.membership import MEMBERS_MAX, UNKNOWN_INSTANCE, Membership
from quorum_wal.consensus.membership_page import member_of_page, member_page, split_address
from quorum_wal.walproposer.stream.events import ChangeRequest

GENERATION_MAX = (1 << 32) - 3  # entering and leaving add one each


def request_page(request: ChangeRequest) -> dict[str, Any]:
    members = [member_page(member) for member in request.members]
    return {"generation": request.generation, "members": members}


def request_of_page(page: object) -> ChangeRequest:
    """Raises MessageError."""
    if not isinstance(page, Mapping) or page.keys() != {"generation", "members"}:
        raise MessageError("expected an object with generation and members")
    generation, listed = page["generation"], page["members"]
    if type(generation) is not int or not 0 < generation <= GENERATION_MAX:
        raise MessageError(f"generation is {str(generation)[:80]}, expected that of the members")
    if not isinstance(listed, list) or not 1 <= len(listed) <= MEMBERS_MAX:
        raise MessageError(f"expected 1 to {MEMBERS_MAX} members")
    members = tuple(sorted(member_of_page(each) for each in listed))
    ids = [member.id for member in members]
    addresses = [member.address for member in members if member.host]
    instances = [member.instance for member in members if member.instance != UNKNOWN_INSTANCE]
    for each, what in ((ids, "id"), (addresses, "address"), (instances, "instance")):
        if len({*each}) != len(each):
            raise MessageError(f"two members have the same {what}")
    return ChangeRequest(generation, members)


def outsider_of_page(page: object) -> tuple[str, int]:
    """Raises MessageError."""
    if not isinstance(page, Mapping) or page.keys() != {"address"}:
        raise MessageError("expected an object with address")
    host, port = split_address(str(page["address"]))
    if not host:
        raise MessageError("expected the address of a safekeeper")
    return host, port


def is_done(request: ChangeRequest, membership: Membership) -> bool:
    """Whether the members are exactly these."""
    if membership.is_joint or membership.members != request.ids:
        return False
    return all(membership.member(member.id) == member for member in request.members)
