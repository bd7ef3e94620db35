"""Whether the primary's last bytes below the term's start equal the donor's (rule 3). Pure.

Until the primary has passed, its WAL is only buffered. The two sides may arrive in any order: the
donor's tail as a whole, the primary's in the pieces of its walsender.
"""

from __future__ import annotations

from quorum_wal.walproposer.stream.election import tail_problem
from quorum_wal.walproposer.stream.events import Outcome, Stop


class TailCheck:
    """Compares [begin_lsn, end_lsn); `end_lsn` is the term's start. If that is empty, the donor is
    not read."""

    def __init__(self, begin_lsn: int, end_lsn: int) -> None:
        self.begin_lsn, self.end_lsn = begin_lsn, end_lsn
        self._donor_tail: bytes | None = b"" if begin_lsn == end_lsn else None
        self._primary_wal = bytearray()

    @property
    def awaits_donor(self) -> bool:
        return self._donor_tail is None

    @property
    def wants_wal(self) -> bool:
        return self.begin_lsn + len(self._primary_wal) < self.end_lsn

    def take_wal(self, begin_lsn: int, wal: bytes) -> None:
        assert begin_lsn == self.begin_lsn + len(self._primary_wal)
        self._primary_wal += wal

    def take_donor(self, wal: bytes) -> None:
        self._donor_tail = wal

    def result(self) -> Stop | bytes | None:
        """Passed: the primary's WAL from the term's start on, as far as it has arrived. None: not
        complete yet."""
        tail_bytes = self.end_lsn - self.begin_lsn
        if self._donor_tail is None or self.wants_wal:
            return None
        if len(self._donor_tail) != tail_bytes:
            return Stop(Outcome.RESTART, "the donor's tail is too short")
        ours, wal = bytes(self._primary_wal[:tail_bytes]), bytes(self._primary_wal[tail_bytes:])
        return tail_problem(self.begin_lsn, ours, self._donor_tail) or wal
