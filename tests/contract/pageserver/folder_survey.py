"""The survey of WAL in a folder, for a restore point that no archive has."""

from __future__ import annotations

from quorum_wal.pageserver.epochs.wal_folder import WalFolder
from quorum_wal.pageserver.pitr.page_wal import PageWal
from quorum_wal.pageserver.pitr.restore_point import SurveyedWal, WalSurvey


def survey_folder(
    wal: WalFolder, redo_lsn: int, target_lsn: int, tli: int, of_page: PageWal | None = None
) -> SurveyedWal:
    """Of the records that begin in [redo_lsn, target_lsn) on timeline `tli`."""
    survey = WalSurvey(wal.server.pg_major, redo_lsn, of_page)
    for index in wal.records(redo_lsn, target_lsn, tli):
        survey.feed(index)
    return survey.finish(tli)
