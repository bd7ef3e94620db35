"""`CheckpointScan`: validates WAL as it is received, and finds its checkpoints."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from quorum_wal.consensus.messages import ServerFacts
from quorum_wal.pageserver.errors import SurveyError
from quorum_wal.pageserver.layers.touches import Checkpoint
from quorum_wal.pgwal.errors import WalFormatError
from quorum_wal.pgwal.record import RECORD_HEADER_SIZE
from quorum_wal.walrecords.record_index import RecordIndex, RecordIndexer

_RM_XLOG = 0
#: CHECKPOINT_SHUTDOWN and CHECKPOINT_ONLINE, info >> 4.
_CHECKPOINTS = (0, 1)
#: After the record header: id 255 and the length.
_MAIN_AT = RECORD_HEADER_SIZE + 2
_MAIN_BYTES = 88


class CheckpointScan:
    """Scans from `begin_lsn`, a record boundary."""

    def __init__(self, begin_lsn: int, server: ServerFacts) -> None:
        self._indexer = RecordIndexer(
            begin_lsn,
            wal_seg_size=server.wal_seg_size,
            version_major=server.pg_major,
            system_id=server.system_id,
            is_boundary=True,
        )

    @property
    def fed_lsn(self) -> int:
        """Position of the next byte to feed; initially the address of a page."""
        return self._indexer.fed_lsn

    @property
    def checked_lsn(self) -> int:
        """The end of the last complete record."""
        return self._indexer.next_lsn

    def feed(self, wal: bytes) -> list[Checkpoint]:
        """Takes whole pages, except in the last call. Raises SurveyError."""
        try:
            return list(checkpoints_of(self._indexer.feed(wal)))
        except WalFormatError as error:
            raise SurveyError(
                f"received WAL is not valid: {error}",
                hint="Use sk archive verify and sk status to find the damaged copy.",
            ) from error


def checkpoints_of(index: RecordIndex) -> Iterator[Checkpoint]:
    """The checkpoints among these records."""
    data, at = index.data, index.at
    is_checkpoint = (data[at + 17] == _RM_XLOG) & np.isin(data[at + 16] >> 4, _CHECKPOINTS)
    for row in np.flatnonzero(is_checkpoint).tolist():
        begin = int(at[row]) + _MAIN_AT
        main = data[begin : begin + _MAIN_BYTES].tobytes()
        yield Checkpoint.parse(main, int(index.start_lsn[row]), int(index.end_lsn[row]))
