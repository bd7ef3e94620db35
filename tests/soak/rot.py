"""Faults of a safekeeper's disk without a process: damaged bytes, removed folders.

The wiped folder is kept aside and is put back at the end, like a disk that was unplugged: it has
the member's promises, and the member promised nothing meanwhile.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from quorum_wal.pg_fixtures.cluster import flush_lsn
from quorum_wal.pg_fixtures.errors import FixtureError
from quorum_wal.pg_fixtures.safekeeper import SafekeeperProcess
from quorum_wal.pg_fixtures.waiting import wait_until
from quorum_wal.pg_fixtures.wal_comparison import find_segments
from quorum_wal.pgwal.segment import SegmentName, segment_start_lsn
from quorum_wal.safekeeper.control_file import ControlFile

SAVED_TIMEOUT = 60.0
#: The distance of a damaged byte below a flushed position: in acknowledged WAL, and within the part
#: that a start takes for the end of the log.
TAIL_BYTES = 32 * 1024


@dataclass(slots=True)
class Damage:
    """One flipped byte."""

    path: Path
    offset: int
    good: int

    @property
    def is_there(self) -> bool:
        """False if the byte is right again, or its file was removed in time."""
        try:
            with open(self.path, "rb") as file:
                return os.pread(file.fileno(), 1, self.offset) != bytes([self.good])
        except FileNotFoundError:
            return False


@dataclass
class RottenDisk:
    """The disk of one safekeeper, with segments of `wal_seg_size`."""

    safekeeper: SafekeeperProcess
    wal_seg_size: int
    rng: random.Random
    damages: list[Damage] = field(default_factory=list)

    @property
    def is_mended(self) -> bool:
        return not any(damage.is_there for damage in self.damages)

    def rot_cold(self) -> None:
        """A byte of a complete segment, while the safekeeper runs."""
        *cold, _newest = self._segments()
        _, path = self.rng.choice(cold)
        self._flip(path, self.rng.randrange(self.wal_seg_size))

    def rot_tail(self) -> None:
        """A byte near the end of the log, after a kill -9. It was acknowledged so long ago that the
        safekeeper has saved its flushed position: later WAL cannot be distinguished from a torn
        end."""
        safekeeper = self.safekeeper
        flushed = flush_lsn(safekeeper)
        wait_until(
            lambda: self._saved_flush_lsn() >= flushed,
            SAVED_TIMEOUT,
            f"{safekeeper.name} to save how far it has flushed",
        )
        safekeeper.kill()
        lsn = flushed - self.rng.randrange(1, TAIL_BYTES)
        for name, path in self._segments():
            begin_lsn = segment_start_lsn(name.segno, self.wal_seg_size)
            if begin_lsn <= lsn < begin_lsn + self.wal_seg_size:
                self._flip(path, lsn - begin_lsn)
        safekeeper.start()

    def _saved_flush_lsn(self) -> int:
        (folder,) = (self.safekeeper.data_dir / "timelines").iterdir()
        return ControlFile.read(folder).state.flush_lsn

    def _segments(self) -> list[tuple[SegmentName, Path]]:
        """Oldest first; if several timelines have a file of one segment, that of the newest."""
        newest = {
            name.segno: (name, path)
            for name, path in sorted(
                find_segments(self.safekeeper.data_dir, self.wal_seg_size).items(),
                key=lambda item: (item[0].segno, item[0].tli),
            )
        }
        return list(newest.values())

    def _flip(self, path: Path, offset: int) -> None:
        with open(path, "r+b") as file:
            (good,) = os.pread(file.fileno(), 1, offset)
            os.pwrite(file.fileno(), bytes([good ^ (1 << self.rng.randrange(8))]), offset)
        self.damages = [damage for damage in self.damages if damage.is_there]
        self.damages.append(Damage(path, offset, good))

    # ---- a removed folder

    def wipe(self) -> None:
        """Kill -9, and start again without its timelines."""
        self.safekeeper.kill()
        for folder, aside in self._folders():
            folder.rename(aside)
        self.safekeeper.start()

    def give_back(self) -> None:
        """Kill -9, and start again with the old folder."""
        self.safekeeper.kill()
        for folder, aside in self._folders():
            if folder.exists():
                raise FixtureError(f"{self.safekeeper.name} has made {folder} anew")
            aside.rename(folder)
        self.safekeeper.start()

    def _folders(self) -> Iterator[tuple[Path, Path]]:
        """Each timeline's folder, and the place where it is kept."""
        data_dir = self.safekeeper.data_dir
        timelines, kept = data_dir / "timelines", data_dir / "kept-aside"
        kept.mkdir(exist_ok=True)
        for folder in [*timelines.iterdir(), *kept.iterdir()]:
            yield timelines / folder.name, kept / folder.name
