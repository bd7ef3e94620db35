"""`Disk`: the log and the control file of one safekeeper, on a machine that fails.

    start_lsn             flushed_lsn        written_lsn
       |===== on the platter ====|~~ in the cache ~~|

What was flushed stays; what was not is lost wholly, from some byte on, or sector by sector. A
failed write may have written a part. At any time, a byte may rot.

What leaves it is checked by the safekeeper's own `CheckedWal`.
"""

from __future__ import annotations

from dataclasses import replace
from enum import Enum
from pathlib import Path
from random import Random

import quorum_wal.pgwal.end_of_wal
from quorum_wal.pgwal.end_of_wal import EndOfWal
from quorum_wal.safekeeper.checked_wal import CheckedWal
from quorum_wal.safekeeper.control_state import ControlState
from quorum_wal.safekeeper.events import Action, FlushWal, PersistControl, TruncateWal, WriteWal
from quorum_wal.safekeeper.record_check import WalFacts

SECTOR_BYTES = 512
#: The bit that flips.
ROT = 0x40
#: Checksums are kept in memory: there is no such folder.
NOWHERE = Path("/nowhere/checksums")


class DiskFailed(Exception):
    """The operating system reported an error; the text names it."""


class Failure(Enum):
    """The failure of the next action of a kind."""

    WRITE = "write"
    FSYNC = "fsync"
    CONTROL = "control file"
    FULL = "full"


class Disk:
    def __init__(self, control: ControlState, random: Random) -> None:
        self.control = control
        self.start_lsn = control.local_start_lsn
        self.wal = bytearray()
        self.flushed_lsn = self.start_lsn
        self.failure: Failure | None = None
        #: The end of the valid log, as long as damaged bytes follow it.
        self.damaged_lsn: int | None = None
        #: The position of a damaged byte, until it is detected or truncated.
        self.rotten_lsn: int | None = None
        server = control.server
        self.checked = CheckedWal(NOWHERE, server.wal_seg_size, self._read_written)
        self.checked.cut(self.start_lsn)
        #: Permanent: the member has no timeline any more.
        self.is_gone = False
        self._random = random

    @property
    def written_lsn(self) -> int:
        return self.start_lsn + len(self.wal)

    @property
    def valid_lsn(self) -> int:
        return self.written_lsn if self.damaged_lsn is None else self.damaged_lsn

    @property
    def is_rotten(self) -> bool:
        """A part of it was lost, and has not been restored."""
        return self.is_gone or self.rotten_lsn is not None or self.control.lost_lsn > 0

    def execute(self, action: Action) -> None:
        """Raises DiskFailed; then the caller trusts only what is flushed."""
        if isinstance(action, WriteWal):
            self.write(action)
        elif isinstance(action, FlushWal):
            self.flush()
        elif isinstance(action, PersistControl):
            self.persist(action.state)
        elif isinstance(action, TruncateWal):
            self.truncate(action.end_lsn)

    def write(self, action: WriteWal) -> None:
        assert action.begin_lsn == self.written_lsn, "a write that leaves a gap or overwrites"
        if self.failure in (Failure.WRITE, Failure.FULL):
            self.wal += action.wal[: self._random.randrange(len(action.wal))]
            self._fail()
        self.wal += action.wal
        view, lsn, seg_size = memoryview(action.wal), action.begin_lsn, self._seg_size
        while view:
            part = view[: seg_size - lsn % seg_size]
            self.checked.written(lsn, part)
            view, lsn = view[len(part) :], lsn + len(part)

    @property
    def _seg_size(self) -> int:
        return self.control.server.wal_seg_size

    def flush(self) -> None:
        if self.failure is Failure.FSYNC:
            self._lose_cache()  # the kernel may drop pages and mark them clean
            self._fail()
        self.flushed_lsn = self.written_lsn

    def persist(self, state: ControlState) -> None:
        if self.failure is Failure.CONTROL:
            if self._random.random() < 0.5:
                self._publish(state)  # renamed, but the folder could not be synced
            self._fail()
        self._publish(state)

    def _publish(self, state: ControlState) -> None:
        """Hints only ever replace older ones."""
        before = self.control
        self.control = replace(
            state,
            commit_lsn=min(max(state.commit_lsn, before.commit_lsn), state.flush_lsn),
            truncate_lsn=max(state.truncate_lsn, before.truncate_lsn),
            local_start_lsn=max(state.local_start_lsn, before.local_start_lsn),
        )

    def save_hints(self, flush_lsn: int, commit_lsn: int, truncate_lsn: int) -> None:
        self.control = replace(
            self.control,
            flush_lsn=max(flush_lsn, self.control.flush_lsn),
            commit_lsn=commit_lsn,
            truncate_lsn=truncate_lsn,
        )

    def truncate(self, end_lsn: int) -> None:
        assert self.start_lsn <= end_lsn < self.written_lsn, "a truncation of nothing"
        self.checked.cutting(end_lsn)
        del self.wal[end_lsn - self.start_lsn :]
        self.checked.cut(end_lsn)
        self.flushed_lsn = end_lsn
        self.damaged_lsn = None
        if self.rotten_lsn is not None and self.rotten_lsn >= end_lsn:
            self.rotten_lsn = None

    def truncate_partly(self, end_lsn: int) -> None:
        """The power failed in a truncation: some of the sectors were zeroed already, or none."""
        if self._random.random() < 0.5:
            self._zero_sectors(end_lsn)

    def _fail(self) -> None:
        failure, self.failure = self.failure, None
        raise DiskFailed(failure.value if failure else "")

    def lose_power(self) -> None:
        self.failure = None
        self._lose_cache()

    def _lose_cache(self) -> None:
        unflushed = self.written_lsn - self.flushed_lsn
        fate = self._random.randrange(4)
        if fate == 0:
            self.keep_unflushed(0)
        elif fate == 1:
            self.keep_unflushed(self._random.randint(0, unflushed))
        elif fate == 2:
            self._zero_sectors(self.flushed_lsn)

    def keep_unflushed(self, count: int) -> None:
        """That many bytes of the unflushed ones remain."""
        del self.wal[self.flushed_lsn - self.start_lsn + count :]

    def _zero_sectors(self, begin_lsn: int) -> None:
        """Each sector at or above `begin_lsn` keeps its content, or not."""
        begin, end = begin_lsn - self.start_lsn, len(self.wal)
        while begin < end:
            until = min(begin - begin % SECTOR_BYTES + SECTOR_BYTES, end)
            if self._random.random() < 0.5:
                self.wal[begin:until] = bytes(until - begin)
            begin = until

    def rot(self, lsn: int) -> None:
        """Flip a bit. If it is below the position that was surely flushed, the next start must
        detect it."""
        self.rotten_lsn = lsn
        self.wal[lsn - self.start_lsn] ^= ROT

    def recover(self) -> int:
        """The end of the log, decoded from the segment of the saved commit_lsn on, as after every
        start. If more was flushed, that is remembered, and nothing is changed."""
        control, seg_size = self.control, self._seg_size
        start_lsn = control.commit_lsn - control.commit_lsn % seg_size
        if control.is_unproven:
            del self.wal[:]
        if (
            self.rotten_lsn is not None
        ):  # a scrub finds damage below the start; here it is found now
            start_lsn = self.start_lsn
        end = self._find_end(start_lsn)
        while self._may_be_padding(end) and start_lsn > self.start_lsn:
            start_lsn -= seg_size
            end = self._find_end(start_lsn)
        end_lsn = end.end_lsn
        self.control = control.found_to_end(int(end_lsn))
        self.flushed_lsn = self.written_lsn
        if end_lsn < control.horizon_lsn:
            self.damaged_lsn = int(end_lsn)
        else:
            self.damaged_lsn = self.rotten_lsn = None
            del self.wal[end_lsn - self.start_lsn :]
            self.wal += bytes(end_lsn - self.written_lsn)  # after a switch, with zeros
            self.flushed_lsn = self.written_lsn
        self.checked = CheckedWal(NOWHERE, self._seg_size, self._read_written)
        self.checked.cut(int(end_lsn))
        return int(end_lsn)

    def _may_be_padding(self, end: EndOfWal) -> bool:
        return not end.last_record_lsn and end.end_lsn < self.control.horizon_lsn

    def _find_end(self, start_lsn: int) -> EndOfWal:
        control = self.control
        return quorum_wal.pgwal.end_of_wal.find_end_of_wal(
            self._read_segment,
            start_lsn,
            wal_seg_size=control.server.wal_seg_size,
            version_major=control.server.pg_major,
            system_id=control.server.system_id,
            tli_at=control.tli_history.tli_at,
        )

    def _read_segment(self, lsn: int, length: int) -> bytes:
        """Segments have their full size from the start: zeros follow the log."""
        return self.read(lsn, lsn + length).ljust(length, b"\0")

    def _read_written(self, lsn: int, length: int) -> bytes:
        return self.read(lsn, lsn + length)

    def read_checked(self, begin_lsn: int, end_lsn: int) -> bytes:
        """WAL that the member sends. Raises WalDamaged."""
        control = self.control
        server, tli_at = control.server, control.tli_history.tli_at
        facts = WalFacts(
            server.wal_seg_size, server.pg_major, server.system_id, tli_at, self.start_lsn
        )
        wal = b""
        while begin_lsn + len(wal) < end_lsn:
            lsn = begin_lsn + len(wal)
            length = min(end_lsn - lsn, self._seg_size - lsn % self._seg_size)
            part = self.checked.read(lsn, length, facts)
            if not part:
                break  # it was truncated
            wal += part
        return wal

    def remove_below(self, lsn: int) -> None:
        """Whole segments that are not needed any more."""
        begin_lsn = lsn - lsn % self._seg_size
        if begin_lsn > self.start_lsn and self.rotten_lsn is None and self.damaged_lsn is None:
            del self.wal[: begin_lsn - self.start_lsn]
            self.start_lsn = begin_lsn
            self.control = replace(self.control, local_start_lsn=begin_lsn)

    def as_written(self, begin_lsn: int, end_lsn: int) -> bytes:
        """The content without the damage that has not been detected yet."""
        if self.rotten_lsn is None or not begin_lsn <= self.rotten_lsn < end_lsn:
            return self.read(begin_lsn, end_lsn)
        wal = bytearray(self.read(begin_lsn, end_lsn))
        wal[self.rotten_lsn - begin_lsn] ^= ROT
        return bytes(wal)

    def read(self, begin_lsn: int, end_lsn: int) -> bytes:
        return bytes(self.wal[begin_lsn - self.start_lsn : end_lsn - self.start_lsn])
