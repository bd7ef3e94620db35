"""Finds the WAL position of a time, from the end times of transactions in their records.

Law: as in recovery, the position of a time is before the first COMMIT or ABORT with a later time,
even if records with earlier times follow.
Source: Postgres `recoveryStopsBefore` in `xlogrecovery.c`.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import numpy as np

from quorum_wal.pageserver.errors import SurveyError
from quorum_wal.pgwal.lsn import format_lsn
from quorum_wal.pgwal.versions import wal_version
from quorum_wal.walrecords.filter_tables import pass_all
from quorum_wal.walrecords.record_index import RecordIndex
from quorum_wal.walrecords.record_survey import RecordSurveyor
from quorum_wal.walrecords.transaction import ENDS, ROW, TIME_US, read_ends

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
#: info >> 4 of a PREPARE, which does not end a transaction.
_PREPARE, _OPMASK = 0x1, 0x7


class EndTimes:
    """For the WAL of one major version."""

    def __init__(self, version_major: int) -> None:
        self._surveyor = RecordSurveyor(wal_version(version_major), pass_all())

    def first_after(self, index: RecordIndex, time: datetime) -> int | None:
        """The start of the first of these records that ends a transaction later than `time`, or
        None. Raises SurveyError."""
        facts, _, rows, bad = self._surveyor.survey(index)
        ends = np.empty((len(rows), ENDS), np.int64)
        found = 0
        if bad < 0:
            found, bad = read_ends(
                index.data, index.at, facts.main_length, rows, self._surveyor.xact_format, ends
            )
        if bad >= 0:
            raise SurveyError(
                f"could not decode the record at {format_lsn(int(index.start_lsn[bad]))}"
            )
        limit_us = (time - _EPOCH) // timedelta(microseconds=1)
        is_later = ends[:found, TIME_US] > limit_us
        for row in ends[:found, ROW][is_later].tolist():
            if int(facts.operation[row]) & _OPMASK != _PREPARE:
                return int(index.start_lsn[row])
        return None
