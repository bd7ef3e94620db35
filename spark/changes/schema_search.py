"""Follows the system catalogs in the WAL between a catalog snapshot and the end of a query.

    redo, open transactions     catalog        start_lsn          end_lsn
            |--------------------- followed ------------------------|

The driver does this once for each query; a stream goes on from batch to batch. A task gets the
history from it. Law: WAL that was not followed is reported.
"""

from __future__ import annotations

from collections.abc import Iterator

from quorum_wal.pgwal.errors import WalFormatError
from quorum_wal.pgwal.lsn import format_lsn
from quorum_wal.pgwal.versions import wal_version
from quorum_wal.spark.changes.catalog import Catalog
from quorum_wal.spark.changes.catalog_follower import CatalogFollower
from quorum_wal.spark.changes.change_schema import Note
from quorum_wal.spark.changes.heap_scan import HeapScan, scan_heap
from quorum_wal.spark.changes.schema_history import Problem, SchemaHistory
from quorum_wal.spark.changes.transaction_progress import (
    OpenTransactions,
    last_list_without,
    last_redo,
)
from quorum_wal.spark.changes.transaction_summary import TransactionSummary, redo_before
from quorum_wal.spark.changes.wal_lookback import look_backwards
from quorum_wal.spark.errors import CatalogError, WalInputError
from quorum_wal.spark.inputs.wal_input import WalInput
from quorum_wal.spark.inputs.wal_reader import Gap, OnDamage, WalRange, read_indexes

#: following more takes minutes, and a new catalog snapshot takes a second
SEARCH_BYTES_MAX = 32 << 30


class SchemaSearch:
    """Follows one catalog, which has rows, and goes on from where it ended."""

    def __init__(self, wal_input: WalInput, catalog: Catalog, on_damage: OnDamage) -> None:
        self._input = wal_input
        self._facts = wal_input.facts()
        self._version = wal_version(self._facts.pg_major)
        self._catalog = catalog
        self._on_damage = on_damage
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._follower = CatalogFollower(self._catalog)
        self._problems: list[Problem] = []
        #: up to where the WAL was followed
        self._until_lsn: int | None = None
        #: of the last checkpoint in the WAL that was followed
        self._redo_lsn: int | None = None

    def follow(self, whole: WalRange) -> SchemaHistory:
        """The history up to the end of this range. Lost WAL before it is an error, unless it is
        skipped. Raises WalInputError."""
        try:
            if whole.end_lsn > self._catalog.lsn:
                older = self._on_damage if self._on_damage is OnDamage.SKIP else OnDamage.FAIL
                if whole.start_lsn > self._catalog.lsn:
                    self._go_on(whole.start_lsn, whole.limit_lsn, older)
                self._go_on(whole.end_lsn, whole.limit_lsn, self._on_damage)
        except BaseException as error:
            self._begin_anew()
            if isinstance(error, WalFormatError):
                raise WalInputError(str(error)) from error
            raise
        history = self._follower.history
        history.until_lsn = whole.end_lsn
        history.gaps = self._problems
        return history

    def advance(self, end_lsn: int, limit_lsn: int) -> Catalog:
        """The catalog at `end_lsn`, which is not after the end of the WAL, nor before the end of an
        earlier call. Raises WalInputError, CatalogError."""
        history = self.follow(WalRange(self._catalog.lsn, end_lsn, limit_lsn))
        for problem in (*history.gaps, *history.problems):
            raise CatalogError(
                f"the catalog cannot be advanced: {problem.text}",
                hint="Take a new one with sk catalog snapshot.",
            )
        redo_lsn = self._redo_lsn or last_redo(self._backwards(end_lsn, limit_lsn))
        rows = self._catalog.rows
        assert rows is not None
        return self._follower.catalog_at(end_lsn, redo_lsn or rows.redo_lsn)

    def _go_on(self, end_lsn: int, limit_lsn: int, on_damage: OnDamage) -> None:
        if self._until_lsn is None:
            self._until_lsn = self._begin_lsn(end_lsn, limit_lsn)
        if end_lsn <= self._until_lsn:
            return
        part = WalRange(self._until_lsn, end_lsn, limit_lsn)
        for scan in self._scan(part, on_damage):
            self._follower.add(scan)
            self._redo_lsn = redo_before(scan, end_lsn) or self._redo_lsn
        self._until_lsn = end_lsn

    def _begin_lsn(self, end_lsn: int, limit_lsn: int) -> int:
        """The start of the WAL with which all later changes of the catalogs are known."""
        catalog, rows = self._catalog, self._catalog.rows
        assert rows is not None
        first_lsn = min(self._input.extent()[0], end_lsn)
        first_lsn = max(first_lsn, end_lsn - SEARCH_BYTES_MAX)
        if not rows.open and rows.xmax is not None:
            begin_lsn = needed_lsn = catalog.lsn
        else:
            begin_lsn = needed_lsn = self._open_lsn(catalog.lsn, limit_lsn) or 0
        begin_lsn = max(first_lsn, min(rows.redo_lsn, begin_lsn))
        if begin_lsn > needed_lsn:
            self._problems.append(_unseen(needed_lsn, begin_lsn))
        return begin_lsn

    def _open_lsn(self, lsn: int, limit_lsn: int) -> int | None:
        """A position from which on all changes of the transactions that were open are seen, and
        the images of the pages that they change; None if no WAL is that old."""
        rows = self._catalog.rows
        assert rows is not None
        running = frozenset(rows.open)
        if rows.xmax is None:
            found = OpenTransactions.look_back(lsn, self._backwards(lsn, limit_lsn))
            running = frozenset(found.first_lsns) | (found.running or frozenset())
        begin_lsn = last_list_without(running, self._backwards(lsn, limit_lsn))
        if begin_lsn is None:
            return None
        return last_redo(self._backwards(begin_lsn, limit_lsn)) or begin_lsn

    def _backwards(
        self, lsn: int, limit_lsn: int
    ) -> Iterator[tuple[int, list[TransactionSummary]]]:
        older = self._on_damage if self._on_damage is OnDamage.SKIP else OnDamage.FAIL
        return look_backwards(self._input, lsn, limit_lsn, self._scan, older)

    def _scan(self, part: WalRange, on_damage: OnDamage) -> Iterator[HeapScan]:
        for found in read_indexes(self._input, self._facts, part, on_damage):
            if not isinstance(found, Gap):
                yield scan_heap(found, self._version, with_images=True)
            elif found.end_lsn > self._catalog.lsn:
                self._problems.append(_unseen(found.lsn, found.end_lsn))


def _unseen(lsn: int, end_lsn: int) -> Problem:
    text = (
        f"the WAL from {format_lsn(lsn)} to {format_lsn(end_lsn)} was not searched for changes of "
        "tables: tables altered in it are shown as they were before"
    )
    return Problem(lsn, lsn, Note.NOT_SEARCHED, text)
