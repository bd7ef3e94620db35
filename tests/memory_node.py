"""A safekeeper without a shell: an acceptor, and a disk in memory that can lose power.

The disk knows three things about the log: what the OS was handed, what of it was flushed, and
nothing else. A power loss keeps what was flushed and any part of the rest, as a page cache does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from wal_builder import PG_VERSION, START_LSN, SYSTEM_ID, WAL_SEG_SIZE

from consensus.ids import NodeId, TimelineId
from consensus.membership import Membership
from consensus.messages import ServerFacts
from consensus.term_history import TermHistory
from pgwal.end_of_wal import find_end_of_wal
from pgwal.history import TimelineHistory
from safekeeper.acceptor import Acceptor
from safekeeper.control_state import ControlState
from safekeeper.events import Action, Event, FlushWal, PersistControl, Reply, TruncateWal, WriteWal

SERVER = ServerFacts(SYSTEM_ID, PG_VERSION, WAL_SEG_SIZE)
TIMELINE = TimelineId(b"tenant".ljust(16, b"\0"), b"timeline".ljust(16, b"\0"))


def new_control_state(membership: Membership, *, active: bool = True) -> ControlState:
    """What the creation of a timeline writes on every member."""
    return ControlState(
        timeline=TIMELINE,
        server=SERVER,
        active=active,
        membership=membership,
        promised=NodeId.ZERO,
        term_history=TermHistory.initial(START_LSN),
        tli_history=TimelineHistory(1),
        timeline_start_lsn=START_LSN,
        local_start_lsn=START_LSN,
        commit_lsn=START_LSN,
        truncate_lsn=START_LSN,
        flush_lsn=START_LSN,
    )


class MemoryDisk:
    """Invariant: start_lsn <= flushed_lsn <= written_lsn."""

    def __init__(self, control: ControlState) -> None:
        self.control = control
        self.start_lsn = control.local_start_lsn
        self.wal = bytearray()
        self.flushed_lsn = self.start_lsn

    @property
    def written_lsn(self) -> int:
        return self.start_lsn + len(self.wal)

    def execute(self, action: Action) -> None:
        match action:
            case WriteWal(begin_lsn, wal):
                assert begin_lsn == self.written_lsn
                self.wal += wal
            case FlushWal():
                self.flushed_lsn = self.written_lsn
            case TruncateWal(end_lsn):
                assert self.start_lsn <= end_lsn < self.written_lsn
                self._cut(end_lsn)
            case PersistControl(state):
                self.control = state

    def lose_power(self, kept_bytes: int = 0) -> None:
        """Of what was written and not flushed, the first `kept_bytes` reached the platter."""
        self._cut(min(self.flushed_lsn + kept_bytes, self.written_lsn))

    def recover(self) -> int:
        """The end of the log, found by decoding; what lies beyond is forgotten, unless the log was
        flushed further: then that is remembered."""
        server = self.control.server
        end = find_end_of_wal(
            self.read,
            self.start_lsn,
            wal_seg_size=server.wal_seg_size,
            version_major=server.pg_major,
            system_id=server.system_id,
            tli_at=self.control.tli_history.tli_at,
        )
        found = self.control.found_to_end(int(end.end_lsn))
        if found == self.control:
            self._cut(end.end_lsn)
        self.control = found
        return int(end.end_lsn)

    def read(self, lsn: int, length: int) -> bytes:
        return bytes(self.wal[lsn - self.start_lsn : lsn - self.start_lsn + length])

    def _cut(self, end_lsn: int) -> None:
        del self.wal[end_lsn - self.start_lsn :]
        self.flushed_lsn = end_lsn


class MemoryNode:
    """One safekeeper. While it is down its acceptor is None; its disk is always there."""

    def __init__(self, name: str, safekeeper_id: int, membership: Membership) -> None:
        self.name = name
        self.safekeeper_id = safekeeper_id
        self.disk = MemoryDisk(new_control_state(membership))
        self.acceptor: Acceptor | None = None
        self.restart()

    def step(self, event: Event, before_reply: Callable[[MemoryNode, Reply], None]) -> list[Action]:
        """Step, execute in order; returns all actions, those for the network included."""
        assert self.acceptor is not None
        actions = self.acceptor.step(event)
        for action in actions:
            self.disk.execute(action)
            if isinstance(action, Reply):
                before_reply(self, action)
        return actions

    def save_flush_lsn(self) -> None:
        """What the housekeeper does once a second."""
        assert self.acceptor is not None
        self.disk.control = replace(self.disk.control, flush_lsn=self.acceptor.flush_lsn)

    def lose_power(self, kept_bytes: int = 0) -> None:
        self.acceptor = None
        self.disk.lose_power(kept_bytes)

    def restart(self) -> None:
        assert self.acceptor is None
        flush_lsn = self.disk.recover()
        self.acceptor = Acceptor(self.safekeeper_id, self.disk.control, flush_lsn)
