"""The name of a prepared transaction of qsync. It has all that a restarted coordinator must know.
Pure.

    skq1.d.19c1f0a3e55.2-16b374d848-2f1-64a53a4f1c2d0.019c1f0a3e557b2c8d0e4f6a7b8c9d0e
    |    | |           | |          |   |             '- uuid, version 7: never used twice
    |    | |           | |          |   '- server_start_us: pg_postmaster_start_time() of the
    |    | |           | |          |      primary it is prepared on, since the Unix epoch
    |    | |           | |          '- xid, 64 bits: pg_current_xact_id_if_assigned()
    |    | |           | '- begin_lsn: pg_current_wal_insert_lsn() just before PREPARE, so
    |    | |           |      the record of PREPARE ends above it
    |    | |           '- tli: the timeline of that primary
    |    | '- deadline: milliseconds since the Unix epoch
    |    '- policy: d (detach) or r (rollback)
    '- format

`tli` decides the outcome of a transaction after a failover, so it must be the timeline of the WAL
that the server writes now: the first 8 digits of pg_walfile_name(pg_current_wal_insert_lsn()). For
a while after a promotion the control file may still have the previous timeline.

Two servers that are promoted from one log get the same timeline number, and assign the same xids at
the same positions. Only `server_start_us` distinguishes them.

Numbers are lower-case hex digits without leading zeros. Every other gid belongs to another program,
and qsync never changes its transaction. A gid has fewer than 200 bytes (Postgres `twophase.c`,
GIDSIZE); ours has at most 116.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache

PREFIX = "skq1."
UUID_ENTROPY_BYTES = 10
#: A coordinator parses each gid about six times, within milliseconds.
PARSED_MAX = 1000

_NUMBER = "0|[1-9a-f][0-9a-f]{0,15}"
_GID = re.compile(
    rf"skq1\.(?P<policy>[dr])\.(?P<deadline>{_NUMBER})"
    rf"\.(?P<tli>{_NUMBER})-(?P<begin>{_NUMBER})-(?P<xid>{_NUMBER})-(?P<start>{_NUMBER})"
    rf"\.(?P<uuid>[0-9a-f]{{32}})"
)
_TLI_MAX = (1 << 32) - 1


class GidError(ValueError):
    """The text is not a gid of qsync."""


class Policy(Enum):
    """The action at the deadline if the quorum has not confirmed the PREPARE."""

    DETACH = "d"  # it stays prepared, and is committed when the quorum has it
    ROLLBACK = "r"  # its client or the janitor may roll it back


@dataclass(frozen=True, slots=True)
class Gid:
    """`uuid` has 32 lower-case hex digits."""

    policy: Policy
    deadline_ms: int
    tli: int
    begin_lsn: int
    xid: int
    server_start_us: int
    uuid: str

    def __str__(self) -> str:
        place = f"{self.tli:x}-{self.begin_lsn:x}-{self.xid:x}-{self.server_start_us:x}"
        return f"{PREFIX}{self.policy.value}.{self.deadline_ms:x}.{place}.{self.uuid}"

    @staticmethod
    @lru_cache(PARSED_MAX)
    def parse(text: str) -> Gid:
        """Raises GidError."""
        match = _GID.fullmatch(text)
        if match is None:
            raise GidError(
                f"invalid gid {text[:80]!r}: expected skq1.POLICY.DEADLINE.TLI-LSN-XID-START.UUID"
            )
        deadline_ms, tli, begin_lsn, xid, start_us = (
            int(match[name], 16) for name in ("deadline", "tli", "begin", "xid", "start")
        )
        if not 1 <= tli <= _TLI_MAX:
            raise GidError(f"invalid gid {text!r}: timeline {tli} does not exist")
        policy = Policy(match["policy"])
        return Gid(policy, deadline_ms, tli, begin_lsn, xid, start_us, match["uuid"])

    @staticmethod
    def is_ours(text: str) -> bool:
        """Whether `parse` accepts it."""
        try:
            Gid.parse(text)
        except GidError:
            return False
        return True


def uuid7(unix_ms: int, entropy: bytes) -> str:
    """32 hex digits: 48 bits of time, the version, and 74 bits of `entropy` (RFC 9562, 5.7)."""
    assert len(entropy) == UUID_ENTROPY_BYTES
    random_bits = int.from_bytes(entropy, "big")
    high = (unix_ms & (1 << 48) - 1) << 16 | 0x7000 | random_bits >> 62 & 0xFFF
    low = 0b10 << 62 | random_bits & (1 << 62) - 1
    return f"{high << 64 | low:032x}"
