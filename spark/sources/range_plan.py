"""The range of WAL that a batch reads, and its division into tasks.

    start_lsn                                   end_lsn        newest_lsn
        |--task--|----task----|----task----|--task--|.............|
                 ^ segments begin here     ^        ` the last record may go on there

Laws. Ranges are split at starts of segments. So a task reads no WAL that another task decodes,
except the rest of its last record. Times are those of commit records: a range begins with the first
commit at or after start_time, and ends before the first one at or after end_time. The search is a
binary search over segments, as if commits were in the order of their times. If a clock was set back
the result is inexact.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from itertools import pairwise

import pyarrow as pa
import pyarrow.compute as pc

from quorum_wal.consensus.messages import ServerFacts
from quorum_wal.pgwal.lsn import format_lsn
from quorum_wal.spark.errors import OptionError
from quorum_wal.spark.inputs.wal_input import WalInput
from quorum_wal.spark.inputs.wal_reader import OnDamage, WalRange, read_records
from quorum_wal.spark.records.wal_filter import WalFilter
from quorum_wal.spark.sources.input_options import InputOptions

_COMMITS = ("COMMIT", "COMMIT_PREPARED")


def plan_range(options: InputOptions, facts: ServerFacts) -> WalRange:
    """The whole range of a batch. Raises OptionError, WalInputError."""
    wal_input = options.wal_input
    newest_lsn = wal_input.newest_lsn()
    start_lsn = plan_start(options, facts, newest_lsn)
    end_lsn = newest_lsn if options.end_lsn is None else options.end_lsn
    if end_lsn > newest_lsn:
        raise OptionError(
            f"end_lsn {format_lsn(end_lsn)} is after the end of the WAL, {format_lsn(newest_lsn)}"
        )
    if options.end_time is not None:
        found = find_commit(wal_input, facts, options.end_time, start_lsn, newest_lsn)
        end_lsn = newest_lsn if found is None else found
    return WalRange(start_lsn, max(start_lsn, end_lsn), newest_lsn)


def plan_start(options: InputOptions, facts: ServerFacts, newest_lsn: int) -> int:
    """The start of a batch or of a new stream. Raises OptionError, WalInputError."""
    wal_input = options.wal_input
    if options.is_latest:
        return newest_lsn
    if options.start_lsn is not None:
        if options.start_lsn > newest_lsn:
            raise OptionError(
                f"start_lsn {format_lsn(options.start_lsn)} is after the end of the WAL, "
                f"{format_lsn(newest_lsn)}"
            )
        return options.start_lsn
    first_lsn = wal_input.extent()[0]
    if options.start_time is None:
        return first_lsn
    found = find_commit(wal_input, facts, options.start_time, first_lsn, newest_lsn)
    return newest_lsn if found is None else found


def split(whole: WalRange, facts: ServerFacts, partition_bytes: int) -> list[WalRange]:
    """At least one range, which may be empty."""
    step = max(1, partition_bytes // facts.wal_seg_size) * facts.wal_seg_size
    first = whole.start_lsn - whole.start_lsn % facts.wal_seg_size + step
    cuts = [whole.start_lsn, *range(first, whole.end_lsn, step), whole.end_lsn]
    return [
        WalRange(begin, end, whole.limit_lsn, whole.is_boundary if begin == cuts[0] else False)
        for begin, end in pairwise(cuts)
    ]


def find_commit(
    wal_input: WalInput, facts: ServerFacts, moment: datetime, start_lsn: int, newest_lsn: int
) -> int | None:
    """The start of the first commit record at or after `moment`; None if there is none."""
    seg_size = facts.wal_seg_size
    low, high = start_lsn // seg_size, newest_lsn // seg_size
    while low < high:  # the commit is not before the first one of segment `low`
        middle = (low + high + 1) // 2
        first = next(_commits(wal_input, facts, middle * seg_size, newest_lsn), None)
        if first is not None and first[1] < moment:
            low = middle
        else:
            high = middle - 1
    commits = _commits(wal_input, facts, max(start_lsn, low * seg_size), newest_lsn)
    return next((lsn for lsn, time in commits if time >= moment), None)


def _commits(
    wal_input: WalInput, facts: ServerFacts, start_lsn: int, newest_lsn: int
) -> Iterator[tuple[int, datetime]]:
    """Skips the rest of a segment where WAL is lost; the tasks that read it report that."""
    batches = read_records(
        wal_input,
        WalRange(start_lsn, newest_lsn, newest_lsn),
        columns=("lsn", "operation", "xact_time"),
        wal_filter=WalFilter(rmgrs=frozenset({"Transaction"})),
        on_damage=OnDamage.SKIP,
    )
    for batch in batches:
        is_commit = pc.is_in(batch["operation"], value_set=pa.array(_COMMITS))
        rows = batch.filter(is_commit)
        yield from zip(rows["lsn"].to_pylist(), rows["xact_time"].to_pylist(), strict=True)
