"""`Primary`: an imagined Postgres server: its WAL, its timeline history, and its misfortunes."""

from __future__ import annotations

from random import Random

from pgwal.history import TimelineHistory, TimelineSwitch
from pgwal.lsn import Lsn

from .log import PAGE_SIZE, START_LSN, Log

#: Small, a few to a page, one of several pages; 0 fills the page exactly.
RECORD_BYTES = (64, 64, 64, 64, 64, 200, 200, 1000, 0, 9000, 20_000)
#: How long the WAL of one run may get.
WAL_BYTES_MAX = 700 * 1024
FAR_AWAY_LSN = 1 << 40


class Primary:
    """`is_restored`: a server restored from whatever log wins the next election, so that two of
    them write different bytes at one position as often as can be."""

    def __init__(self, name: str, log: Log, history: TimelineHistory, is_restored: bool) -> None:
        self.name = name
        self.log = log
        self.tli_history = history
        self.is_restored = is_restored
        #: It has its log: a restored one gets it from the election.
        self.is_ready = not is_restored
        #: It was refused, or somebody was promoted after it.
        self.is_deposed = False
        self.acked_lsn = START_LSN
        self._records = 0

    @property
    def flush_lsn(self) -> int:
        return FAR_AWAY_LSN if self.is_restored else self.log.lsn

    def write(self, random: Random) -> None:
        """Some client commits, or there is a bulk load."""
        if not self.is_ready or len(self.log.wal) > WAL_BYTES_MAX:
            return
        for _ in range(random.choice((1, 1, 1, 2, 5))):
            self._records += 1
            name, length = f"{self.name}r{self._records}", random.choice(RECORD_BYTES)
            if length:
                self.log.append(name, length)
            else:
                self.log.fill_page(name)

    def somewhere(self, begin_lsn: int, random: Random) -> int:
        """Where its walsender may cut a message: at the end, or at a page boundary before."""
        end_lsn = self.log.lsn
        page_lsn = begin_lsn - begin_lsn % PAGE_SIZE + PAGE_SIZE
        if page_lsn >= end_lsn or random.random() < 0.4:
            return end_lsn
        return random.choice(range(page_lsn, end_lsn, PAGE_SIZE))

    def roll_back(self, random: Random) -> None:
        """The machine is set back to a snapshot: older WAL on the same timeline, then other WAL."""
        ends = self.log.ends
        floor = self.tli_history.entries[-1].switch_lsn if self.tli_history.entries else START_LSN
        choices = [lsn for lsn in ends[-40:] if lsn > floor]
        if choices:
            self.log = self.log.cut(random.choice(choices))
            self._records += 1000  # what it writes from here on was never written before

    def promoted(self, name: str, log: Log, tli: int) -> Primary:
        """A standby of this server that had replayed all of `log`, on a timeline of its own."""
        switches = self.tli_history.entries
        history = TimelineHistory(
            tli, (*switches, TimelineSwitch(self.tli_history.tli, Lsn(log.lsn), "promoted"))
        )
        other = Primary(name, log.cut(log.lsn, tli), history, False)
        other._records = self._records + 10_000
        return other
