"""How much WAL a safekeeper keeps, and for which users of it. Pure.

    oldest WAL ... | slots | pageserver | members or archive | wal_keep | tail | commit_lsn
                   ^ the least of these horizons; WAL below its segment may be removed

slots       the least restart_lsn of a slot, but no more WAL than the limit for slots
pageserver  WAL that the newest pageserver has not made durable as pages, with the same limit; below
            it the pageserver reads the WAL from the archive
members     truncate_lsn: WAL that a lagging member will request from another one, but no more than
            the limit for members
archive     archived_lsn: WAL that is not in the object store yet; with an archive, a lagging member
            reads removed WAL from there
wal_keep    a configured amount, for replicas without a slot
tail        WAL that the next proposer compares with the primary before it leads

Law: removed WAL lies below the tail of the committed WAL. So a quorum has flushed it, and no
election compares it. Only a member that lacks this WAL needs it: that member is left behind. It
still votes, but confirms nothing until it gets the WAL from elsewhere.

Source of the states of a slot: Postgres `xlog.c`, `GetWALAvailability`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from quorum_wal.pgwal.lsn import format_lsn

GIB = 1 << 30
WAL_KEEP_BYTES = 1 * GIB
# An unused slot must not fill the disk: a safekeeper without space stops acknowledging commits. A
# standby with a slot on each of three safekeepers advances only one of them at a time.
MAX_SLOT_WAL_KEEP_BYTES = 64 * GIB
# A lost member must not fill the disks of the others either: the loss of one would stop all.
MAX_MEMBER_WAL_KEEP_BYTES = 64 * GIB
# No new segment is created below this much free space: control files must always find room.
DISK_RESERVE_BYTES = 32 << 20
# The proposer compares the last segment if the log ends with it, otherwise the last MiB.
TAIL_SEGMENTS = 2


@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """The operator's settings. A maximum of 0 means no limit."""

    wal_keep_bytes: int = WAL_KEEP_BYTES
    max_slot_wal_keep_bytes: int = MAX_SLOT_WAL_KEEP_BYTES
    disk_reserve_bytes: int = DISK_RESERVE_BYTES
    max_member_wal_keep_bytes: int = MAX_MEMBER_WAL_KEEP_BYTES


DEFAULT_RETENTION = RetentionPolicy()


@dataclass(frozen=True, slots=True)
class Horizon:
    """WAL from `lsn` on is kept because of `holder`."""

    lsn: int
    holder: str

    def describe(self) -> dict[str, str]:
        return {"keep_lsn": format_lsn(self.lsn), "held_by": self.holder}


@dataclass(frozen=True, slots=True)
class LogExtent:
    """The WAL that exists: its oldest position and its committed end, the position that members
    need, and the archived position (None without an archive)."""

    local_start_lsn: int
    commit_lsn: int
    truncate_lsn: int
    wal_seg_size: int
    archived_lsn: int | None = None

    @property
    def is_member_left_behind(self) -> bool:
        """A member lacks WAL that was removed here and is not in an archive."""
        return self.archived_lsn is None and self.truncate_lsn < self.local_start_lsn


class WalStatus(Enum):
    """`wal_status` of pg_replication_slots."""

    RESERVED = "reserved"  #: within wal_keep
    EXTENDED = "extended"  #: beyond it, held by the slot
    UNRESERVED = "unreserved"  #: beyond the limit for slots: not removed yet, may be at any time
    LOST = "lost"  #: removed


def wal_horizon(
    policy: RetentionPolicy,
    log: LogExtent,
    slot: tuple[str, int] | None,
    damaged: bool = False,
    pageserver_lsn: int | None = None,
) -> Horizon:
    """The first byte to keep, a segment's start, and the reason. `slot` is the name and restart_lsn
    of the slot that needs the oldest WAL. `damaged` slots may need all WAL. `pageserver_lsn` is the
    horizon of a pageserver, or None."""
    if damaged:
        return Horizon(log.local_start_lsn, "slots that cannot be read")
    horizons = [
        Horizon(log.commit_lsn - policy.wal_keep_bytes, "wal_keep"),
        Horizon(log.commit_lsn - TAIL_SEGMENTS * log.wal_seg_size, "tail"),
    ]
    if log.archived_lsn is not None:
        horizons.append(Horizon(log.archived_lsn, "archive"))
    else:
        limit_lsn = _limit_lsn(policy.max_member_wal_keep_bytes, log)
        horizons.append(Horizon(max(log.truncate_lsn, limit_lsn), "members"))
    if slot is not None:
        name, restart_lsn = slot
        horizons.append(Horizon(max(restart_lsn, slot_limit_lsn(policy, log)), f"slot {name}"))
    if pageserver_lsn is not None:
        held_lsn = max(pageserver_lsn, slot_limit_lsn(policy, log))
        horizons.append(Horizon(held_lsn, "pageserver"))
    least = min(horizons, key=lambda horizon: horizon.lsn)
    lsn = max(least.lsn, log.local_start_lsn)
    return Horizon(lsn - lsn % log.wal_seg_size, least.holder)


def slot_limit_lsn(policy: RetentionPolicy, log: LogExtent) -> int:
    """Slots below this position are beyond the limit; a segment's start."""
    return _limit_lsn(policy.max_slot_wal_keep_bytes, log)


def member_safe_wal_bytes(policy: RetentionPolicy, log: LogExtent) -> int | None:
    """WAL that may still be written before the slowest member is left behind. None without a limit
    or with an archive: then it never is."""
    if not policy.max_member_wal_keep_bytes or log.archived_lsn is not None:
        return None
    limit_lsn = _limit_lsn(policy.max_member_wal_keep_bytes, log)
    return max(0, _segment_start(log.truncate_lsn, log) - limit_lsn)


def wal_status(
    policy: RetentionPolicy, log: LogExtent, restart_lsn: int, *, is_lost: bool
) -> WalStatus | None:
    """Returns None for a slot that reserves nothing."""
    if is_lost or 0 < restart_lsn < log.local_start_lsn:
        return WalStatus.LOST
    if not restart_lsn:
        return None
    if _segment_start(restart_lsn, log) < slot_limit_lsn(policy, log):
        return WalStatus.UNRESERVED
    kept_lsn = log.commit_lsn - policy.wal_keep_bytes
    return WalStatus.RESERVED if restart_lsn >= kept_lsn else WalStatus.EXTENDED


def safe_wal_bytes(policy: RetentionPolicy, log: LogExtent, restart_lsn: int) -> int | None:
    """WAL that may still be written before the slot is in danger; None without a limit."""
    if not policy.max_slot_wal_keep_bytes or not restart_lsn:
        return None
    return _segment_start(restart_lsn, log) - slot_limit_lsn(policy, log)


def _limit_lsn(limit_bytes: int, log: LogExtent) -> int:
    """WAL below this position is beyond the limit; a segment's start. 0 without a limit."""
    if not limit_bytes:
        return 0
    return _segment_start(log.commit_lsn, log) - _segment_start(limit_bytes, log)


def _segment_start(lsn: int, log: LogExtent) -> int:
    return lsn - lsn % log.wal_seg_size
