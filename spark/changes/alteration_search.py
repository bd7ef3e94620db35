"""Searches the WAL after a catalog snapshot for tables that were altered.

    catalog          start_lsn            end_lsn
       |--- searched ---|---- searched -----|        tasks begin in [start_lsn, end_lsn]

Only commit records are read, ten times faster than decoding. The driver searches once for each
query; each task searches its own range. Law: WAL that was not searched is reported.
"""

from __future__ import annotations

from dataclasses import replace

from quorum_wal.pgwal.errors import WalFormatError
from quorum_wal.pgwal.versions import wal_version
from quorum_wal.spark.changes.alterations import Alterations, CatalogKeys
from quorum_wal.spark.changes.catalog import Catalog
from quorum_wal.spark.changes.heap_scan import scan_heap
from quorum_wal.spark.errors import WalInputError
from quorum_wal.spark.inputs.wal_input import LostWal, WalInput
from quorum_wal.spark.inputs.wal_reader import Gap, OnDamage, WalRange, read_indexes

#: searching more takes minutes, and a new catalog snapshot takes a second
SEARCH_BYTES_MAX = 32 << 30


def find_alterations(
    wal_input: WalInput,
    catalog: Catalog,
    whole: WalRange,
    on_damage: OnDamage,
    known: Alterations | None = None,
) -> Alterations:
    """The alterations that tasks beginning in `whole`, or at its end, must know, including those
    `known` from an earlier search. Raises WalInputError."""
    if known is None:
        known = Alterations(_last_catalog_lsn(catalog, whole.start_lsn))
    if known.until_lsn >= whole.end_lsn:
        return known
    begin_lsn = max(known.until_lsn, whole.end_lsn - SEARCH_BYTES_MAX)
    part = replace(whole, start_lsn=begin_lsn, is_boundary=False)
    try:
        found = _search(wal_input, catalog, part, OnDamage.FAIL)
    except LostWal:
        first_lsn = min(wal_input.extent()[0], whole.end_lsn)
        if on_damage is not OnDamage.SKIP and begin_lsn >= first_lsn:
            raise
        part = replace(part, start_lsn=max(begin_lsn, first_lsn))
        strictness = on_damage if on_damage is OnDamage.SKIP else OnDamage.FAIL
        found = _search(wal_input, catalog, part, strictness)
    if part.start_lsn > known.until_lsn:
        found.unseen.insert(0, (known.until_lsn, part.start_lsn))
    return known.joined(found)


def _last_catalog_lsn(catalog: Catalog, lsn: int) -> int:
    """The LSN of the last catalog, of those merged into this one, that was taken at or before
    `lsn`. Files that were deleted before do not matter."""
    taken_lsns = catalog.taken_lsns()
    return max((taken for taken in taken_lsns if taken <= lsn), default=taken_lsns[0])


def _search(
    wal_input: WalInput, catalog: Catalog, part: WalRange, on_damage: OnDamage
) -> Alterations:
    found, keys, facts = Alterations(part.end_lsn), CatalogKeys(catalog), wal_input.facts()
    version = wal_version(facts.pg_major)
    for piece in read_indexes(wal_input, facts, part, on_damage):
        if isinstance(piece, Gap):
            found.unseen.append((piece.lsn, piece.end_lsn))
            continue
        try:
            found.add(scan_heap(piece, version, with_images=False), keys)
        except WalFormatError as error:
            raise WalInputError(str(error)) from error
    return found
