"""`TransactionSummary`: the facts about transactions in a piece of the WAL, small enough to keep.

    running     | transactions 4 | subtransactions 4 | overflow 1, 3 | next 4 | oldest 4 |
                | latest 4 | xids 4 each, of both |
    checkpoint  | redo 8 | ..

Source: Postgres `storage/standbydefs.h`, `catalog/pg_control.h`.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np

from quorum_wal.pgwal.errors import WalFormatError
from quorum_wal.pgwal.lsn import format_lsn
from quorum_wal.spark.changes.heap_fields import (
    CHECKPOINT_ONLINE,
    CHECKPOINT_SHUTDOWN,
    LSN,
    MARK_KIND,
    MARK_LSN,
    MARK_RECORD,
    RUNNING_XACTS,
    XID,
    marks_of,
)
from quorum_wal.spark.changes.heap_scan import HeapScan
from quorum_wal.spark.changes.logical_messages import NO_XID
from quorum_wal.spark.changes.transaction_commits import ended_xids
from quorum_wal.walrecords.record_index import Array

_RUNNING = struct.Struct("<iiB3xIII")
_REDO = struct.Struct("<Q")
_XID = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class OpenList:
    """The transactions that were open at `lsn`, including prepared ones; subtransactions may be
    missing. `running` None: only prepared ones, at a shutdown."""

    lsn: int
    running: frozenset[int] | None


@dataclass(frozen=True, slots=True)
class TransactionSummary:
    """Facts in the order of the records. `first_lsns`: the first changes of `changing_xids`."""

    lists: tuple[OpenList, ...]
    #: the redo LSN of the last checkpoint in the piece
    redo_lsn: int | None
    #: of transactions and subtransactions, committed or aborted
    ended_xids: Array
    changing_xids: Array
    first_lsns: Array

    @classmethod
    def at(cls, scan: HeapScan) -> TransactionSummary:
        """Raises WalFormatError."""
        lists, redo_lsn = [], None
        kinds = (RUNNING_XACTS, CHECKPOINT_SHUTDOWN, CHECKPOINT_ONLINE)
        listing = marks_of(scan.marks, kinds)
        for lsn, kind, record in listing[[MARK_LSN, MARK_KIND, MARK_RECORD]].T.tolist():
            main_data = scan.body(record).main_data
            if kind == RUNNING_XACTS:
                lists.append(OpenList(lsn, _running(lsn, main_data)))
                continue
            redo_lsn = _redo(lsn, main_data)
            if kind == CHECKPOINT_SHUTDOWN:
                lists.append(OpenList(lsn, None))
        xid = scan.changes[XID]
        begins = np.flatnonzero(np.diff(xid, prepend=-1))  # few, so that less is sorted
        xids, places = np.unique(xid[begins], return_index=True)
        first_lsns, is_transaction = scan.changes[LSN][begins[places]], xids != NO_XID
        return cls(
            tuple(lists), redo_lsn, ended_xids(scan), xids[is_transaction],
            first_lsns[is_transaction],
        )  # fmt: skip


def redo_before(scan: HeapScan, lsn: int) -> int | None:
    """The redo LSN of the last checkpoint record before `lsn`. Raises WalFormatError."""
    checkpoints = marks_of(scan.marks, (CHECKPOINT_SHUTDOWN, CHECKPOINT_ONLINE))
    found = checkpoints[:, checkpoints[MARK_LSN] < lsn]
    if not found.shape[1]:
        return None
    at, record = found[[MARK_LSN, MARK_RECORD], -1].tolist()
    return _redo(at, scan.body(record).main_data)


def _redo(lsn: int, main_data: bytes) -> int:
    if len(main_data) < _REDO.size:
        raise WalFormatError(lsn, f"checkpoint record at {format_lsn(lsn)} is too short")
    (redo_lsn,) = _REDO.unpack_from(main_data)
    return int(redo_lsn)


def _running(lsn: int, main_data: bytes) -> frozenset[int]:
    """Raises WalFormatError unless the list is as long as the record says."""
    count = -1
    if len(main_data) >= _RUNNING.size:
        transactions, subtransactions, *_ = _RUNNING.unpack_from(main_data)
        count = transactions + subtransactions
    if count < 0 or len(main_data) != _RUNNING.size + _XID.size * count:
        raise WalFormatError(
            lsn,
            f"list of open transactions at {format_lsn(lsn)} has {len(main_data)} bytes, which "
            f"does not fit {count} transactions",
        )
    return frozenset(xid for (xid,) in _XID.iter_unpack(main_data[_RUNNING.size :]))
