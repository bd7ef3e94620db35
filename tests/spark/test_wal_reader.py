"""Any split of any range gives the same rows; lost WAL is reported."""

from __future__ import annotations

import random
import secrets
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest
from wal_rows import flip, lsns, rows_of, segment

from quorum_wal.spark.inputs.boundary import boundary_at, next_boundary
from quorum_wal.spark.inputs.folder_input import FolderInput
from quorum_wal.spark.inputs.wal_input import LostWal
from quorum_wal.spark.inputs.wal_reader import OnDamage

MIB = 1 << 20


@pytest.fixture(scope="module")
def whole(server_wal: Path) -> pa.Table:
    return rows_of(FolderInput(str(server_wal)))


def test_any_split_gives_the_same_rows(server_wal: Path, whole: pa.Table) -> None:
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    wal_input = FolderInput(str(server_wal))
    first_lsn, end_lsn = wal_input.extent()
    for _ in range(4):
        inner = sorted(rng.randrange(first_lsn, end_lsn) for _ in range(rng.randrange(1, 12)))
        cuts = [first_lsn, *inner, end_lsn]
        parts = [rows_of(wal_input, begin, end) for begin, end in pairwise(cuts)]
        assert pa.concat_tables(parts).equals(whole), cuts


def test_boundaries_need_nothing_below_their_page(server_wal: Path, whole: pa.Table) -> None:
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    wal_input = FolderInput(str(server_wal))
    facts = wal_input.facts()
    lsn, end_lsn = wal_input.extent()
    cuts = [lsn]
    while lsn < end_lsn:
        bytes_max = rng.choice((1, 100, 9000, 300_000, 2 * MIB, 5 * MIB))
        lsn = next_boundary(wal_input, facts, lsn, end_lsn, bytes_max)
        assert cuts[-1] < lsn <= end_lsn
        cuts.append(lsn)
    parts = [rows_of(wal_input, *cut, is_boundary=True) for cut in pairwise(cuts)]
    assert pa.concat_tables(parts).equals(whole)


def test_the_boundary_at_a_place_is_the_next_record(server_wal: Path, whole: pa.Table) -> None:
    wal_input = FolderInput(str(server_wal))
    facts, (first_lsn, end_lsn) = wal_input.facts(), wal_input.extent()
    starts = lsns(whole)
    for lsn in (starts[3] + 1, starts[100], starts[-1] - 1):
        expected = min(start for start in starts if start >= lsn)
        assert boundary_at(wal_input, facts, lsn, end_lsn) == expected
    assert boundary_at(wal_input, facts, starts[-1] + 1, end_lsn) == end_lsn
    assert boundary_at(wal_input, facts, first_lsn, end_lsn) == first_lsn


@pytest.mark.parametrize("offset", [100_000, 8192 + 1, 9], ids=("record", "page", "first page"))
def test_damage_fails_stops_or_is_a_gap(wal_folder: Path, whole: pa.Table, offset: int) -> None:
    damaged = segment(wal_folder, 1)
    flip(damaged, offset)
    wal_input = FolderInput(str(wal_folder))
    first_lsn, end_lsn = wal_input.extent()
    begin, end = first_lsn + MIB, first_lsn + 2 * MIB

    with pytest.raises(LostWal) as caught:
        rows_of(wal_input)
    assert str(damaged) in str(caught.value)
    assert begin - MIB // 2 < caught.value.lsn <= begin + offset

    stopped = rows_of(wal_input, on_damage=OnDamage.STOP)
    assert stopped.equals(whole.slice(0, stopped.num_rows))
    assert begin - MIB // 2 < lsns(stopped)[-1] < begin + offset

    skipped = rows_of(wal_input, on_damage=OnDamage.SKIP)
    is_gap = [operation == "GAP" for operation in skipped["operation"].to_pylist()]
    gaps = skipped.filter(pa.array(is_gap)).to_pylist()
    assert gaps[-1]["end_lsn"] == end
    assert all(row["rmgr"] is row["xid"] is row["record_length"] is None for row in gaps)
    assert skipped.slice(0, stopped.num_rows).equals(stopped)
    behind = [lsn for lsn in lsns(whole) if lsn >= end]
    assert lsns(skipped)[-len(behind) :] == behind

    cuts = range(first_lsn, end_lsn, MIB)
    parts = [
        rows_of(wal_input, cut, min(cut + MIB, end_lsn), on_damage=OnDamage.SKIP) for cut in cuts
    ]
    assert pa.concat_tables(parts).equals(skipped)
