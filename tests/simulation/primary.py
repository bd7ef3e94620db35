"""`Primary`: a simulated Postgres server: its WAL, its timeline history, and its faults."""

from __future__ import annotations

from random import Random

from quorum_wal.pgwal.history import TimelineHistory, TimelineSwitch
from quorum_wal.pgwal.lsn import Lsn

from .log import PAGE_SIZE, START_LSN, Log

#: Small, a few to a page, one of several pages; 0 fills the page exactly.
RECORD_BYTES = (64, 64, 64, 64, 64, 200, 200, 1000, 0, 9000, 20_000)
#: How often pg_switch_wal() is called, or archive_timeout has passed, before a write.
SWITCHES = 0.01
#: The limit for the WAL of one run, and the position from which new records are small: a run whose
#: primaries cannot write any more proves nothing.
WAL_BYTES_MAX, LARGE_BYTES_MAX = 900 * 1024, 500 * 1024
FAR_AWAY_LSN = 1 << 40


class Primary:
    """`is_restored`: a server restored from the log that wins the next election, so that two of
    them write different bytes at one position as often as possible."""

    def __init__(self, name: str, log: Log, history: TimelineHistory, is_restored: bool) -> None:
        self.name = name
        self.log = log
        self.tli_history = history
        self.is_restored = is_restored
        #: It has its log: a restored one gets it from the election.
        self.is_ready = not is_restored
        #: It was refused, or another server was promoted after it.
        self.is_deposed = False
        self.acked_lsn = START_LSN
        #: The number in the name of its newest record.
        self.records = 0

    @property
    def flush_lsn(self) -> int:
        return FAR_AWAY_LSN if self.is_restored else self.log.lsn

    def write(self, random: Random, *, is_bulk: bool = False) -> None:
        """A client commits; the longer the log, the smaller its records, except for bulk loads."""
        if not self.is_ready or len(self.log.wal) > WAL_BYTES_MAX:
            return
        if random.random() < SWITCHES:
            self.log.maybe_switch()
        is_small = not is_bulk and random.randrange(LARGE_BYTES_MAX) < len(self.log.wal)
        for _ in range(1 if is_small else random.choice((1, 1, 1, 2, 5))):
            self.records += 1
            name = f"{self.name}r{self.records}"
            length = RECORD_BYTES[0] if is_small else random.choice(RECORD_BYTES)
            if length:
                self.log.append(name, length)
            else:
                self.log.fill_page(name)

    def somewhere(self, begin_lsn: int, random: Random) -> int:
        """A position where its walsender may end a message: at the end, or at an earlier page
        boundary."""
        end_lsn = self.log.lsn
        page_lsn = begin_lsn - begin_lsn % PAGE_SIZE + PAGE_SIZE
        if page_lsn >= end_lsn or random.random() < 0.4:
            return end_lsn
        return random.choice(range(page_lsn, end_lsn, PAGE_SIZE))

    def roll_back(self, random: Random) -> None:
        """The machine is reset to a snapshot: older WAL on the same timeline, then other WAL."""
        ends = self.log.ends
        floor = self.tli_history.entries[-1].switch_lsn if self.tli_history.entries else START_LSN
        choices = [lsn for lsn in ends[-40:] if lsn > floor]
        if choices:
            self.log = self.log.cut(random.choice(choices))
            self.records += 1000  # what it writes from here on was never written before

    def promoted(self, name: str, log: Log, tli: int) -> Primary:
        """A standby of this server that had replayed all of `log`, on its own timeline. It has seen
        no switch above the end of the replayed WAL."""
        before, end_lsn = self.tli_history, Lsn(log.lsn)
        switches = [entry for entry in before.entries if entry.switch_lsn <= end_lsn]
        unseen = [entry.tli for entry in before.entries if entry.switch_lsn > end_lsn]
        left = unseen[0] if unseen else before.tli
        history = TimelineHistory(tli, (*switches, TimelineSwitch(left, end_lsn, "promoted")))
        other = Primary(name, log.cut(log.lsn, tli), history, False)
        other.records = self.records + 10_000
        return other
