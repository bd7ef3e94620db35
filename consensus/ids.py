"""Identities: `NodeId` (a ballot) and `TimelineId` (a log).

A NodeId is globally unique because it contains the uuid of one incarnation of one proposer. Two
incarnations may have the same term; the pair still orders them (`docs/protocol.md`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from msgspec import Struct

from quorum_wal.consensus.errors import MessageError

ID_BYTES = 16
TERM_DIGITS_MAX = 20  # of 64 bits


class NodeId(Struct, frozen=True, order=True, gc=False):
    """A ballot: (term, uuid of the proposer's incarnation), ordered as a pair."""

    term: int
    proposer_uuid: bytes

    ZERO: ClassVar[NodeId]

    def __str__(self) -> str:
        return f"{self.term}/{self.proposer_uuid.hex()}"

    @classmethod
    def parse(cls, text: str) -> NodeId:
        """`NodeId.parse("5/00112233445566778899aabbccddeeff")`. Raises MessageError."""
        term, _, uuid = text.partition("/")
        # The digits are counted first: int() refuses thousands of them.
        if not term.isascii() or not term.isdigit() or len(term) > TERM_DIGITS_MAX:
            raise MessageError(f"invalid node id {text[:80]!r}: expected term/uuid")
        return cls(int(term), parse_id(uuid, "proposer uuid"))


NodeId.ZERO = NodeId(0, bytes(ID_BYTES))


@dataclass(frozen=True, slots=True, order=True)
class TimelineId:
    """The name of one log: 16 bytes of tenant, 16 bytes of timeline. Never used twice."""

    tenant_id: bytes
    timeline_id: bytes

    def __str__(self) -> str:
        return f"{self.tenant_id.hex()}/{self.timeline_id.hex()}"

    @classmethod
    def parse(cls, text: str) -> TimelineId:
        """`TENANT/TIMELINE`; without a tenant, the tenant of zeros. Raises MessageError."""
        tenant, slash, timeline = text.rpartition("/")
        tenant_id = parse_id(tenant, "tenant id") if slash else bytes(ID_BYTES)
        return cls(tenant_id, parse_id(timeline, "timeline id"))


def parse_id(text: str, what: str) -> bytes:
    """16 bytes from 32 hex digits; dashes as in a UUID are allowed. Raises MessageError."""
    digits = text.replace("-", "")
    try:
        value = bytes.fromhex(digits)
    except ValueError:
        value = b""
    if len(value) != ID_BYTES or len(digits) != 2 * ID_BYTES:
        raise MessageError(f"invalid {what} {text!r}: expected 32 hex digits")
    return value
