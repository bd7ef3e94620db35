"""Reads the segments before a position, the last one first, as summaries of transactions.

Law: reading backwards ends only where no older WAL exists. Damage fails, or is skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from quorum_wal.spark.changes.heap_scan import HeapScan
from quorum_wal.spark.changes.transaction_summary import TransactionSummary
from quorum_wal.spark.inputs.wal_input import LostWal, WalInput
from quorum_wal.spark.inputs.wal_reader import OnDamage, WalRange

Scan = Callable[[WalRange, OnDamage], Iterator[HeapScan]]


def look_backwards(
    wal_input: WalInput, lsn: int, limit_lsn: int, scan: Scan, on_damage: OnDamage
) -> Iterator[tuple[int, list[TransactionSummary]]]:
    """(start of a segment, its summaries in order). Raises WalInputError."""
    seg_size = wal_input.facts().wal_seg_size
    while lsn > seg_size:  # the first segment is never written
        begin_lsn = (lsn - 1) // seg_size * seg_size
        wal_range = WalRange(begin_lsn, lsn, limit_lsn)
        try:
            found = [TransactionSummary.at(each) for each in scan(wal_range, OnDamage.FAIL)]
        except LostWal:
            if begin_lsn < wal_input.extent()[0]:
                return
            found = [TransactionSummary.at(each) for each in scan(wal_range, on_damage)]
        yield begin_lsn, found
        lsn = begin_lsn
