"""The durable state of one timeline on a safekeeper, and its bytes on disk. Pure.

    0        4         8             8+n      8+n+4
    | "QWAL" | version | body ...    | CRC32C of all bytes before it |
      magic    u32 BE    n bytes       u32 BE

    body: tenant 16 | timeline 16 | system_id u64 | pg_version u32 | wal_seg_size u32 | active u8 |
          membership | promised node_id | term_history | tli_history |
          timeline_start u64 | local_start u64 |
          commit u64 | truncate u64 | archived u64 | remote_consistent u64 | flush u64 | lost u64 |
          flags u8 (1 has_left, 2 forced)
    (node_id and histories as in `consensus/wire.py`, membership as in `membership_codec.py`;
    version 2 ended before the flags, version 1 before `flush`; their memberships had no stamp)


Law: only the promise, the histories, the membership, `lost` and the flags are persisted
synchronously. The other positions are hints that may lag. `flush` is never above the WAL on disk:
it is lowered before a truncation. A file that fails any check is refused, never reset.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace

import crc32c

from quorum_wal.consensus.errors import MessageError
from quorum_wal.consensus.ids import NodeId, TimelineId
from quorum_wal.consensus.membership import Membership
from quorum_wal.consensus.membership_codec import (
    encode_membership,
    read_membership,
    read_membership_v1,
)
from quorum_wal.consensus.messages import ServerFacts
from quorum_wal.consensus.term_history import TermHistory
from quorum_wal.consensus.wire import (
    Reader,
    encode_node_id,
    encode_term_history,
    encode_tli_history,
)
from quorum_wal.pgwal.history import TimelineHistory
from quorum_wal.safekeeper.errors import ControlFileError

MAGIC = b"QWAL"
FORMAT_VERSION = 3
#: Has no stamps and no `has_left`.
FORMAT_VERSION_2 = 2
#: Has no `flush` and `lost` either.
FORMAT_VERSION_1 = 1

_HEAD = struct.Struct("!4sI")
_IDENTITY = struct.Struct("!16s16sQIIB")
_POSITIONS = struct.Struct("!QQQQQQ")
_FLUSHED = struct.Struct("!QQ")
_FLAGS = struct.Struct("!B")
_HAS_LEFT, _FORCED = 1, 2
_CRC = struct.Struct("!I")


@dataclass(frozen=True, slots=True)
class ControlState:
    """One immutable version of the durable state; changed by dataclasses.replace, then persisted.


    `active` is False between the two steps of a creation; an inactive timeline never votes.
    `flush_lsn`: the log was flushed up to here, and may be acknowledged. An end found below it is
    damage, not a torn tail. `lost_lsn`: the log was flushed up to here and was damaged since. The
    member follows without a vote until the log is repaired; then `lost_lsn` is 0.
    `has_left`: the safekeeper is in no set of its membership and has removed the WAL. It keeps the
    promise and the membership for ever.
    """

    timeline: TimelineId
    server: ServerFacts
    active: bool
    membership: Membership
    promised: NodeId
    term_history: TermHistory
    tli_history: TimelineHistory
    timeline_start_lsn: int
    local_start_lsn: int
    commit_lsn: int = 0
    truncate_lsn: int = 0
    archived_lsn: int = 0
    remote_consistent_lsn: int = 0
    #: Never below commit_lsn.
    flush_lsn: int = 0
    lost_lsn: int = 0
    has_left: bool = False
    #: An operator made this safekeeper the only member (`force_rule.py`). The others learn this
    #: from the membership; one that an older release forced has no mark.
    forced: bool = False

    @property
    def horizon_lsn(self) -> int:
        """The log was flushed at least up to here."""
        return max(self.local_start_lsn, self.flush_lsn)

    @property
    def is_forced(self) -> bool:
        """Acknowledged commits may be missing in the log."""
        return self.forced or self.membership.is_forced

    @property
    def is_unproven(self) -> bool:
        """True for a joined log of which nothing is acknowledged. It may begin inside a record
        whose head is missing here. No checksum covers the rest of that record, so a start trusts
        none of this log."""
        return self.horizon_lsn == self.local_start_lsn != self.timeline_start_lsn

    def found_to_end(self, end_lsn: int) -> ControlState:
        """The state after a start that found the log's end; sets `lost_lsn` if WAL is missing."""
        if end_lsn >= self.horizon_lsn:
            return self
        return replace(self, lost_lsn=max(self.lost_lsn, self.horizon_lsn))


def encode_control_state(state: ControlState) -> bytes:
    timeline, server = state.timeline, state.server
    content = b"".join((
        _HEAD.pack(MAGIC, FORMAT_VERSION),
        _IDENTITY.pack(
            timeline.tenant_id, timeline.timeline_id, server.system_id, server.pg_version,
            server.wal_seg_size, state.active,
        ),
        encode_membership(state.membership),
        encode_node_id(state.promised),
        encode_term_history(state.term_history),
        encode_tli_history(state.tli_history),
        _POSITIONS.pack(
            state.timeline_start_lsn, state.local_start_lsn, state.commit_lsn,
            state.truncate_lsn, state.archived_lsn, state.remote_consistent_lsn,
        ),
        _FLUSHED.pack(state.flush_lsn, state.lost_lsn),
        _FLAGS.pack(_HAS_LEFT * state.has_left | _FORCED * state.forced),
    ))  # fmt: skip
    return content + _CRC.pack(crc32c.crc32c(content))


def decode_control_state(data: bytes, name: str) -> ControlState:
    """Decodes the control file; messages call it `name`. Raises ControlFileError."""
    version = _check_frame(data, name)
    body = Reader(memoryview(data)[_HEAD.size : -_CRC.size])
    try:
        tenant, timeline, system_id, pg_version, seg_size, active = body.unpack(_IDENTITY)
        membership = (
            read_membership(body) if version == FORMAT_VERSION else read_membership_v1(body)
        )
        promised = body.node_id()
        histories = body.term_history(), body.tli_history()
        positions = body.unpack(_POSITIONS)
        commit_lsn = positions[2]
        positions += (commit_lsn, 0) if version == FORMAT_VERSION_1 else body.unpack(_FLUSHED)
        flags = body.u8() if version == FORMAT_VERSION else 0
        if flags & ~(_HAS_LEFT | _FORCED):
            raise MessageError(f"flags are {flags}, expected at most {_HAS_LEFT | _FORCED}")
        body.finish()
    except MessageError as error:
        raise ControlFileError(f"control file {name}: {error}", hint=_HINT) from error
    state = ControlState(
        TimelineId(tenant, timeline), ServerFacts(system_id, pg_version, seg_size), bool(active),
        membership, promised, *histories, *positions,
    )  # fmt: skip
    return replace(state, has_left=bool(flags & _HAS_LEFT), forced=bool(flags & _FORCED))


_HINT = (
    "The promise in it must not be guessed. Restore the file, or remove this member and add a new"
    " one with another id."
)


def _check_frame(data: bytes, name: str) -> int:
    """Checks magic, version and checksum; returns the format version."""
    if len(data) < _HEAD.size + _CRC.size:
        raise ControlFileError(
            f"control file {name} has {len(data)} bytes, too few for a control file", hint=_HINT
        )
    magic, version = _HEAD.unpack_from(data)
    if magic != MAGIC:
        raise ControlFileError(
            f"control file {name} begins with {magic!r}, expected {MAGIC!r}", hint=_HINT
        )
    if version not in (FORMAT_VERSION_1, FORMAT_VERSION_2, FORMAT_VERSION):
        raise ControlFileError(
            f"control file {name} has format version {version}, expected {FORMAT_VERSION}",
            hint="Another release wrote it. Run that release, or upgrade in the documented order.",
        )
    (stored,) = _CRC.unpack_from(data, len(data) - _CRC.size)
    computed = crc32c.crc32c(data[: -_CRC.size])
    if stored != computed:
        raise ControlFileError(
            f"control file {name} has checksum {stored:08X}, computed {computed:08X}", hint=_HINT
        )
    return int(version)
