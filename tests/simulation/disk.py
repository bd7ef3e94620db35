"""`Disk`: the log and the control file of one safekeeper, on a machine that fails.

    start_lsn             flushed_lsn        written_lsn
       |===== on the platter ====|~~ in the cache ~~|

What was flushed stays; what was not is lost wholly, from some byte on, or sector by sector. A
failed write may have written a part. At rest, a byte may rot.
"""

from __future__ import annotations

from dataclasses import replace
from enum import Enum
from random import Random

import pgwal.end_of_wal
from safekeeper.control_state import ControlState
from safekeeper.events import Action, FlushWal, PersistControl, TruncateWal, WriteWal

SECTOR_BYTES = 512


class DiskFailed(Exception):
    """The operating system reported an error; the text says which."""


class Failure(Enum):
    """What the next action of a kind meets."""

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
        self.is_rotten = False
        self._random = random

    @property
    def written_lsn(self) -> int:
        return self.start_lsn + len(self.wal)

    def execute(self, action: Action) -> None:
        """Raises DiskFailed; then the caller trusts nothing that is not flushed."""
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

    def flush(self) -> None:
        if self.failure is Failure.FSYNC:
            self._lose_cache()  # the kernel may drop what it could not write, and call it clean
            self._fail()
        self.flushed_lsn = self.written_lsn

    def persist(self, state: ControlState) -> None:
        if self.failure is Failure.CONTROL:
            if self._random.random() < 0.5:
                self._publish(state)  # renamed, and then the folder could not be synced
            self._fail()
        self._publish(state)

    def _publish(self, state: ControlState) -> None:
        """Hints are only ever laid over older ones."""
        before = self.control
        self.control = replace(
            state,
            commit_lsn=max(state.commit_lsn, before.commit_lsn),
            truncate_lsn=max(state.truncate_lsn, before.truncate_lsn),
        )

    def save_hints(self, commit_lsn: int, truncate_lsn: int) -> None:
        self.control = replace(self.control, commit_lsn=commit_lsn, truncate_lsn=truncate_lsn)

    def truncate(self, end_lsn: int) -> None:
        assert self.start_lsn <= end_lsn < self.written_lsn, "a truncation of nothing"
        del self.wal[end_lsn - self.start_lsn :]
        self.flushed_lsn = end_lsn

    def truncate_partly(self, end_lsn: int) -> None:
        """The power failed during a truncation: some of the sectors were zeroed already."""
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
            del self.wal[self.flushed_lsn - self.start_lsn :]
        elif fate == 1:
            kept = self._random.randint(0, unflushed)
            del self.wal[self.flushed_lsn - self.start_lsn + kept :]
        elif fate == 2:
            self._zero_sectors(self.flushed_lsn)

    def _zero_sectors(self, begin_lsn: int) -> None:
        """Each sector at or above `begin_lsn` keeps what it had, or not."""
        begin, end = begin_lsn - self.start_lsn, len(self.wal)
        while begin < end:
            until = min(begin - begin % SECTOR_BYTES + SECTOR_BYTES, end)
            if self._random.random() < 0.5:
                self.wal[begin:until] = bytes(until - begin)
            begin = until

    def rot(self, lsn: int) -> None:
        """A bit of a record flips; below the saved commit_lsn the next start must notice."""
        self.is_rotten = True
        self.wal[lsn - self.start_lsn] ^= 0x40

    def recover(self) -> int | None:
        """The end of the log, decoded from the segment of the saved commit_lsn on, as after every
        start; None if committed WAL is not valid, and then nothing is touched."""
        known_lsn, server = self.control.commit_lsn, self.control.server
        end_lsn = pgwal.end_of_wal.find_end_of_wal(
            self._read_segment,
            known_lsn - known_lsn % server.wal_seg_size,
            wal_seg_size=server.wal_seg_size,
            version_major=server.pg_major,
            system_id=server.system_id,
        ).end_lsn
        if end_lsn < known_lsn:
            return None
        del self.wal[end_lsn - self.start_lsn :]
        self.flushed_lsn = self.written_lsn
        return int(end_lsn)

    def _read_segment(self, lsn: int, length: int) -> bytes:
        """Segments have their full size from the start: behind the log there are zeros."""
        return self.read(lsn, lsn + length).ljust(length, b"\0")

    def read(self, begin_lsn: int, end_lsn: int) -> bytes:
        return bytes(self.wal[begin_lsn - self.start_lsn : end_lsn - self.start_lsn])
