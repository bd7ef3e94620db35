"""Compares the pages of a running server with the WAL. Pages are read in batches, and compared with
pages as of the end of the reading, or of the available WAL.

    before ... pages are read ... end         X = the earlier one of `end` and the end of the WAL
    |------------------------------|
        a record of the page begins between `before` and X: a page that differs is read again

Law: `page_comparison` decides about damage from one reading of a page. A page that changes at each
reading is counted as such after TRIES.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from random import Random

import numpy as np

from quorum_wal.pageserver.checks.check_report import CheckReport, DamagedPage, Skip
from quorum_wal.pageserver.checks.directory_check import OpenPoint
from quorum_wal.pageserver.checks.page_comparison import Expectation, Verdict, compare
from quorum_wal.pageserver.checks.page_sample import choose_pages
from quorum_wal.pageserver.checks.server_pages import Batch, ServedFork, ServerPages
from quorum_wal.pageserver.epochs.touch_survey import TouchSurveyor
from quorum_wal.pageserver.errors import PageserverError
from quorum_wal.pageserver.layers.fork import Fork
from quorum_wal.pageserver.layers.touches import Numbers, Touches
from quorum_wal.pageserver.pitr.page_at import PageReader, PagesAt
from quorum_wal.pageserver.pitr.restore_points import RecoveryTarget
from quorum_wal.pgwal.history import TimelineHistory
from quorum_wal.pgwal.lsn import format_lsn
from quorum_wal.walrecords.record_index import as_boundary

#: number of pages in memory; each batch replays the WAL after the newest cut once
BATCH_PAGES = 16384
TRIES = 3

Page = tuple[ServedFork, int]


class ServerCheck:
    """Checks one server; run() may be called again."""

    def __init__(self, server: ServerPages, reader: PageReader, wal_seg_size: int) -> None:
        self._server = server
        self._reader = reader
        self._wal_seg_size = wal_seg_size
        self._report = CheckReport()

    def run(
        self,
        open_point: OpenPoint,
        count: int | None,
        rng: Random,
        *,
        table: str | None = None,
        also: frozenset[tuple[Fork, int]] = frozenset(),
    ) -> CheckReport:
        """Checks `count` pages, or all, and the existing pages of `also`. Raises PageserverError,
        ObjectStoreError, BackupError."""
        self._report = CheckReport()
        inventory = self._server.inventory(table)
        self._report.skipped.update(inventory.skipped)
        lengths = {fork: served.length for fork, served in inventory.forks.items()}
        chosen = {
            (fork, block)
            for fork, blocks in choose_pages(lengths, count, rng).items()
            for block in blocks.tolist()
        }
        self._report.again = {(fork, block) for fork, block in also if block < lengths.get(fork, 0)}
        chosen |= self._report.again
        pages = [(inventory.forks[fork], block) for fork, block in sorted(chosen)]
        for first in range(0, len(pages), BATCH_PAGES):
            again = pages[first : first + BATCH_PAGES]
            for _ in range(TRIES):
                if again:
                    again = list(self._check(open_point, again))
            for served, block in again:
                self._report.skip(Skip.MOVING, served.fork, block)
        return self._report

    def _check(self, open_point: OpenPoint, wanted: list[Page]) -> Iterator[Page]:
        """Yields the pages that must be read again."""
        batch = self._server.read(wanted)
        for (fork, block), why in batch.skipped.items():
            self._report.skip(why, fork, block)
        point = open_point(
            RecoveryTarget(lsn=as_boundary(batch.end_lsn, self._wal_seg_size), may_end=True)
        )
        blocks: dict[Fork, list[int]] = {}
        for fork, block in batch.pages:
            blocks.setdefault(fork, []).append(block)
        numbers = {fork: np.array(sorted(each), np.uint32) for fork, each in blocks.items()}
        with self._reader.open(point, numbers) as pages:
            batch_check = _BatchCheck(self._server, self._report, batch, pages)
            for served, block in wanted:
                if (served.fork, block) in batch.refused:
                    batch_check.refuse(served, block)
            by_fork = {served.fork: served for served, _ in wanted}
            for fork, each in numbers.items():
                yield from (
                    (by_fork[fork], block) for block in batch_check.moving(by_fork[fork], each)
                )


class _BatchCheck:
    """Judges one batch."""

    def __init__(
        self, server: ServerPages, report: CheckReport, batch: Batch, pages: PagesAt
    ) -> None:
        self._server = server
        self._report = report
        self._batch = batch
        self._pages = pages
        self._later = _touched_after(batch.before_lsn, pages)

    def refuse(self, served: ServedFork, block: int) -> None:
        self._damaged(served, block, self._batch.refused[served.fork, block])

    def moving(self, served: ServedFork, blocks: Numbers) -> Iterator[int]:
        """Judges these blocks, and yields those that must be read again."""
        fork, pages = served.fork, self._pages
        if pages.is_copied(fork):
            for block in blocks.tolist():
                self._report.skip(Skip.COPIED, fork, block)
            return
        expected = pages.read(fork, blocks)
        for block in blocks.tolist():
            finding = compare(
                fork.kind,
                block,
                self._batch.pages[fork, block],
                Expectation(
                    expected.get(block), pages.point.target_lsn, pages.is_known(fork),
                    self._is_moving(fork, block), self._batch.end_lsn,
                    partial(self._are_bits_valid, served, block),
                ),
                has_checksum=False,
            )  # fmt: skip
            match finding.verdict:
                case Verdict.SAME:
                    self._report.checked += 1
                case Verdict.DAMAGED:
                    self._damaged(served, block, finding.reason)
                case Verdict.MOVING:
                    yield block
                case Verdict.NEWER:
                    self._report.skip(Skip.NEWER, fork, block)
                case Verdict.UNKNOWN:
                    self._report.skip(Skip.UNKNOWN, fork, block)

    def _are_bits_valid(self, served: ServedFork, block: int, heap_block: int, _: int) -> bool:
        """`_` is the bits that were read; the present bits may differ."""
        return self._server.are_bits_valid(served, block, heap_block)

    def _is_moving(self, fork: Fork, block: int) -> bool:
        limit = self._later.limits.get(fork)
        if limit is not None and limit <= block:
            return True
        named = self._later.by_fork.get(fork)
        return named is not None and block in named.blocks

    def _damaged(self, served: ServedFork, block: int, reason: str) -> None:
        self._report.checked += 1
        self._report.damaged.append(
            DamagedPage(
                served.fork,
                served.path,
                block,
                self._server.database,
                served.relation,
                reason,
                self._pages.point.target_lsn,
            )
        )


def _touched_after(lsn: int, pages: PagesAt) -> Touches:
    """The pages changed by records that begin at or after `lsn` and before the pages' position."""
    point = pages.point
    surveyor = TouchSurveyor(point.wal.server.pg_major)
    lsn = as_boundary(lsn, point.wal.server.wal_seg_size)
    if lsn < point.target_lsn:
        for index in point.wal.records(lsn, point.target_lsn, point.tli):
            surveyor.feed(index)
    return surveyor.finish()


def check_server(server: ServerPages, system_id: int, history: TimelineHistory) -> None:
    """Raises PageserverError if the server belongs to another cluster or timeline."""
    if server.system_id != system_id:
        raise PageserverError(
            f"the server belongs to another cluster: expected system identifier {system_id}, found "
            f"{server.system_id}",
            hint="Specify the archive of the server's cluster.",
        )
    tli, lsn = server.position()
    if tli not in {history.tli_at(lsn), history.tli_at(max(0, lsn - 1))}:
        raise PageserverError(
            f"the server is on another timeline: at {format_lsn(lsn)} it is on timeline {tli}, the "
            f"archive is on timeline {history.tli_at(lsn)}",
            hint="Specify the primary or one of its standbys. After a promotion, wait until the "
            "archive contains the new timeline.",
        )
