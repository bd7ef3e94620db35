"""`RestorePoint`: a cut, a target, and what the WAL between them changes.

cut C_i          target X
|--- WAL --------|         stock Postgres replays from the redo position of C_i, and stops at
                           the end of the last record that begins before X
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from quorum_wal.pageserver.epochs.in_place_tablespaces import WAL_FOLDER, link_histories, link_range
from quorum_wal.pageserver.epochs.page_files import Give
from quorum_wal.pageserver.epochs.touch_survey import TouchSurveyor
from quorum_wal.pageserver.epochs.wal_folder import WalFolder
from quorum_wal.pageserver.layers.fork import Fork
from quorum_wal.pageserver.layers.frame import Frame
from quorum_wal.pageserver.layers.page_stack import PageBase
from quorum_wal.pageserver.layers.touches import Touches
from quorum_wal.pageserver.pitr.page_wal import PageWal
from quorum_wal.pageserver.pitr.promoted_server import StopPoint
from quorum_wal.pgwal.lsn import format_lsn
from quorum_wal.walrecords.record_index import RecordIndex


@dataclass(frozen=True, slots=True)
class SurveyedWal:
    """`touches`: what the records change. `stop`: the last of them. `of_page`: what one page needs
    of them."""

    touches: Touches
    stop: StopPoint
    of_page: PageWal | None = None


class WalSurvey:
    """Takes the records from a redo position up to a target, in order, and those that `of_page`
    needs."""

    def __init__(self, pg_major: int, redo_lsn: int, of_page: PageWal | None = None) -> None:
        self._surveyor = TouchSurveyor(pg_major)
        self._of_page = of_page
        self._last_lsn = self._end_lsn = redo_lsn

    def feed(self, index: RecordIndex) -> None:
        """Raises SurveyError if a record cannot be decoded."""
        survey = self._surveyor.feed(index)
        if self._of_page is not None:
            self._of_page.feed(index, survey)
        if len(index):
            self._last_lsn, self._end_lsn = int(index.start_lsn[-1]), int(index.end_lsn[-1])

    @property
    def end_lsn(self) -> int:
        """The end of the last record, or the redo position."""
        return self._end_lsn

    def finish(self, tli: int) -> SurveyedWal:
        """For a target on that timeline."""
        stop = StopPoint(self._last_lsn, self._end_lsn, tli)
        return SurveyedWal(self._surveyor.finish(), stop, self._of_page)


@dataclass(frozen=True, slots=True)
class RestorePoint:
    """`source` has the pages of the cut of `frame`, which ends at `cut_lsn`. Recovery begins at
    `redo_lsn`, and applies all records that begin before `target_lsn` on timeline `tli`. `wal` has
    these records, and `surveyed` describes them."""

    frame: Frame
    source: PageBase
    wal: WalFolder
    redo_lsn: int
    cut_lsn: int
    target_lsn: int
    tli: int
    surveyed: SurveyedWal

    @property
    def target(self) -> str:
        return format_lsn(self.target_lsn)

    @property
    def touches(self) -> Touches:
        return self.surveyed.touches

    @property
    def stop(self) -> StopPoint:
        return self.surveyed.stop

    @property
    def prepared_max(self) -> int:
        """The greatest max_prepared_transactions up to the target."""
        return max(self.frame.control_file().prepared_max, self.touches.prepared_max)

    def wal_of_page(self, fork: Fork, block: int) -> PageWal | None:
        """What the replay needs to obtain that page, if that is known, and not the whole WAL."""
        wanted = self.surveyed.of_page
        is_enough = wanted is not None and wanted.is_enough(fork, block, self.tli, self.touches)
        return wanted if is_enough else None

    def link_wal(self, data_dir: Path, give: Give) -> StopPoint:
        """For a server in `data_dir`, which replays the WAL up to the returned record. Raises
        PageserverError."""
        link_range(
            self.wal, self.redo_lsn, self.stop.end_lsn, self.stop.tli,
            self.touches.tablespaces_created, data_dir, give,
        )  # fmt: skip
        return self.stop

    def link_wal_of_page(self, fork: Fork, block: int, data_dir: Path, give: Give) -> StopPoint:
        """As link_wal(), for a server of which only this page is read. Raises PageserverError."""
        wanted = self.wal_of_page(fork, block)
        if wanted is None:
            return self.link_wal(data_dir, give)
        link_histories(self.wal, data_dir)
        return wanted.write(self.redo_lsn, self.stop, data_dir / WAL_FOLDER, give)
