"""`FileDisk`: the files of one safekeeper, with the interface of the simulated `Disk` for the
invariants.

The `DroppingDisk` under the files decides what is durable, never the code that wrote them:
`control` is decoded from the bytes that a power loss cannot remove, and `flushed_lsn` is the
position of the first byte that it could remove.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

from quorum_wal.pgwal.errors import SegmentNameError
from quorum_wal.pgwal.segment import parse_segment_name
from quorum_wal.safekeeper.control_file import CONTROL_FILE_NAME
from quorum_wal.safekeeper.control_state import ControlState, decode_control_state
from quorum_wal.safekeeper.wal_store import SPARE_NAME, WalStore
from tests.dropping_disk import DroppingDisk, File, Folder, Loss

from .disk import ROT, Failure
from .log import START_LSN, WAL_SEG_SIZE


class FileDisk:
    """`store` is that of the timeline that runs, or ran last."""

    #: Of `wal`, which also has the removed WAL.
    start_lsn = START_LSN

    def __init__(self, machine: DroppingDisk, folder: Path) -> None:
        self.machine = machine
        self.folder = folder
        self.store: WalStore
        self.is_running = False
        self.failure: Failure | None = None
        #: As in `Disk`.
        self.damaged_lsn: int | None = None
        self.is_gone = False
        self.rotten_lsn: int | None = None
        self._flushed_lsn = START_LSN
        #: WAL that was removed because it was not needed, from START_LSN on.
        self._removed = b""
        self._control: tuple[File, ControlState] | None = None

    # ---- durable state

    @property
    def control(self) -> ControlState:
        folder = self.machine.find(self.folder)
        assert isinstance(folder, Folder)
        file = folder.durable[CONTROL_FILE_NAME]
        assert isinstance(file, File)
        assert not file.pending
        if self._control is None or self._control[0] is not file:
            self._control = file, decode_control_state(bytes(file.durable), "durable")
        return self._control[1]

    @property
    def flushed_lsn(self) -> int:
        if self.is_running:
            self._flushed_lsn = self._durable_end()
        return self._flushed_lsn

    def _durable_end(self) -> int:
        end_lsn, folder = self.written_lsn, self.machine.find(self.store.directory)
        assert isinstance(folder, Folder)
        for name, node in folder.entries.items():
            is_named = folder.durable.get(name) is node
            if is_named and isinstance(node, File) and not node.pending:
                continue
            begin_lsn = self._begin_of(name)
            if begin_lsn is None:
                continue
            assert isinstance(node, File)
            pending = [begin_lsn + at for at, data in node.pending if data is not None]
            end_lsn = min(end_lsn, *pending, end_lsn if is_named else begin_lsn)
        return end_lsn

    @property
    def is_synced(self) -> bool:
        """No segment, and no name of one, is pending."""
        folder = self.machine.find(self.store.directory)
        assert isinstance(folder, Folder)
        names = {name for names in folder.pending for name in names if _is_segment(name)}
        files = [node for name, node in folder.entries.items() if _is_segment(name)]
        return not names and not any(file.pending for file in files)

    def _begin_of(self, name: str) -> int | None:
        """The start of a file of the log; None for other files, and for those that a newer
        timeline's file has replaced."""
        try:
            segment = parse_segment_name(name, WAL_SEG_SIZE)
        except SegmentNameError:
            return None
        begin_lsn = segment.segno * WAL_SEG_SIZE
        return begin_lsn if self.store.newest_file(begin_lsn).name == name else None

    # ---- present content

    @property
    def written_lsn(self) -> int:
        if self.is_running and self.damaged_lsn is None:
            return self.store.end_lsn
        return START_LSN + len(self.wal.rstrip(b"\0"))

    @property
    def valid_lsn(self) -> int:
        return self.written_lsn if self.damaged_lsn is None else self.damaged_lsn

    @property
    def is_rotten(self) -> bool:
        return self.is_gone or self.rotten_lsn is not None or self.control.lost_lsn > 0

    @property
    def wal(self) -> bytearray:
        """The whole log; of a running process, only the written part."""
        wal = bytearray(self._removed)
        while part := self.store.read(START_LSN + len(wal), WAL_SEG_SIZE):
            wal += part
        if self.is_running and self.damaged_lsn is None:
            del wal[self.store.end_lsn - START_LSN :]
        return wal

    def read(self, begin_lsn: int, end_lsn: int) -> bytes:
        kept_lsn = START_LSN + len(self._removed)
        wal = bytearray(self._removed[begin_lsn - START_LSN : end_lsn - START_LSN])
        lsn = max(begin_lsn, kept_lsn)
        while lsn < end_lsn:
            part = self.store.read(lsn, end_lsn - lsn)
            if not part:
                break
            wal += part
            lsn += len(part)
        return bytes(wal)

    def as_written(self, begin_lsn: int, end_lsn: int) -> bytes:
        """The content without the damage that has not been detected yet."""
        wal = bytearray(self.read(begin_lsn, end_lsn))
        if self.rotten_lsn is not None and begin_lsn <= self.rotten_lsn < end_lsn:
            wal[self.rotten_lsn - begin_lsn] ^= ROT
        return bytes(wal)

    def keep_removed(self, lsn: int) -> None:
        """WAL below `lsn` is about to be removed."""
        self._removed = self.read(START_LSN, lsn)

    # ---- faults

    def stopped(self) -> None:
        """The process ended."""
        self._flushed_lsn = self.flushed_lsn
        self.is_running = False

    def started(self, store: WalStore) -> None:
        self.store, self.is_running = store, True
        self.rotten_lsn = None

    def lose_power(self, loss: Loss) -> None:
        self.failure = None
        self.machine.lose_power(loss, self.folder)

    def rot(self, lsn: int) -> None:
        """Flip a bit, unless the process runs: this world does not repair a running member."""
        if not self.is_running:
            self.rotten_lsn = lsn
            self.machine.flip(self.store.newest_file(lsn), lsn % WAL_SEG_SIZE, ROT)

    def maybe_fail(self, call: str, path: str) -> None:
        """Raises OSError if this is the call that fails."""
        failure = self.failure
        if failure is not None and _is_met(failure, call, path):
            self.failure = None
            code = errno.ENOSPC if failure is Failure.FULL else errno.EIO
            raise OSError(code, os.strerror(code))


def _is_segment(name: str) -> bool:
    return not name.startswith(SPARE_NAME)


def _is_met(failure: Failure, call: str, path: str) -> bool:
    is_wal = "/wal/" in path
    match failure:
        case Failure.WRITE:
            return is_wal and call == "pwrite"
        case Failure.FULL:
            return is_wal and call in ("pwrite", "open", "posix_fallocate")
        case Failure.FSYNC:
            return is_wal and call in ("fsync", "fdatasync")
        case Failure.CONTROL:
            return not is_wal and call in ("pwrite", "fsync", "rename")
