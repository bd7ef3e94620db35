"""The archive returns the log that was written, with joined timelines; damage is named."""

from __future__ import annotations

import pickle
from pathlib import Path

import pyarrow as pa
import pytest
from archived_log import TIMELINE, log, log_facts
from wal_log import WalLog
from wal_rows import archive_of, lsns, rows_of

from quorum_wal.objectstore.archive import TimelineArchive
from quorum_wal.objectstore.keys import ArchivedWal
from quorum_wal.objectstore.local import LocalStore
from quorum_wal.pgwal.history import TimelineHistory, TimelineSwitch
from quorum_wal.pgwal.lsn import Lsn, format_lsn
from quorum_wal.spark.errors import OptionError, WalInputError
from quorum_wal.spark.inputs import archive_input
from quorum_wal.spark.inputs.archive_input import ArchiveInput
from quorum_wal.spark.inputs.boundary import next_boundary
from quorum_wal.spark.inputs.folder_input import FolderInput
from quorum_wal.spark.inputs.wal_input import LostWal
from quorum_wal.spark.inputs.wal_reader import Gap, OnDamage, WalRange, read_indexes

MIB = 1 << 20


@pytest.fixture(scope="module")
def whole(server_wal: Path) -> pa.Table:
    return rows_of(FolderInput(str(server_wal)))


def test_an_archive_has_the_rows_of_its_segments(
    server_wal: Path, tmp_path: Path, whole: pa.Table
) -> None:
    archive_of(server_wal, tmp_path / "archive")
    wal_input = pickle.loads(pickle.dumps(ArchiveInput(str(tmp_path / "archive"))))
    source = FolderInput(str(server_wal))
    assert wal_input.facts() == source.facts()
    assert wal_input.extent() == source.extent()
    assert rows_of(wal_input).equals(whole)
    first_lsn, end_lsn = source.extent()
    middle = first_lsn + 3 * MIB + 12345
    parts = [rows_of(wal_input, first_lsn, middle), rows_of(wal_input, middle, end_lsn)]
    assert pa.concat_tables(parts).equals(whole)


def test_a_missing_object_is_a_gap(
    server_wal: Path, tmp_path: Path, whole: pa.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive_input, "ARRIVAL_SECONDS", 0.1)
    archive = archive_of(server_wal, tmp_path / "archive")
    wal_input = ArchiveInput(str(tmp_path / "archive"), str(TIMELINE))
    first_lsn, end_lsn = wal_input.extent()
    segno = first_lsn // MIB + 1
    archive.store.delete(archive.keys.segment(1, segno))
    assert wal_input.extent() == (first_lsn, segno * MIB)
    assert wal_input.newest_lsn() == end_lsn
    with pytest.raises(LostWal, match=f"no WAL from {format_lsn(segno * MIB)} on"):
        rows_of(wal_input)
    rows = rows_of(wal_input, on_damage=OnDamage.SKIP)
    assert "GAP" in rows["operation"].to_pylist()
    assert lsns(rows)[-1] == lsns(whole)[-1]


def test_a_damaged_object_is_named(server_wal: Path, tmp_path: Path) -> None:
    archive = archive_of(server_wal, tmp_path / "archive")
    wal_input = ArchiveInput(str(tmp_path / "archive"))
    lsn = wal_input.extent()[0] + 2 * MIB
    key = archive.keys.segment(1, lsn // MIB)
    sealed = bytearray(archive.store.get(key))
    sealed[len(sealed) // 2] ^= 1
    archive.store.put(key, bytes(sealed))
    with pytest.raises(LostWal, match=rf"WAL at {format_lsn(lsn)}: .*{key}") as caught:
        rows_of(wal_input)
    assert caught.value.lsn == lsn


def test_a_batch_ends_at_a_record_where_the_archive_does_not(
    server_wal: Path, tmp_path: Path, whole: pa.Table
) -> None:
    archive = archive_of(server_wal, tmp_path / "archive")
    wal_input = ArchiveInput(str(tmp_path / "archive"))
    first_lsn, end_lsn = wal_input.extent()
    inside = next(
        row["end_lsn"] - row["end_lsn"] % MIB
        for row in whole.to_pylist()
        if row["end_lsn"] - row["lsn"] > 2 * MIB
    )
    for segno in range(inside // MIB, end_lsn // MIB + 1):
        archive.store.delete(archive.keys.segment(1, segno))
        for info in list(archive.store.list(archive.keys.partials(1, segno))):
            archive.store.delete(info.key)
    assert wal_input.extent() == (first_lsn, inside)
    boundary = next_boundary(wal_input, wal_input.facts(), first_lsn, inside, None)
    assert boundary in whole["end_lsn"].to_pylist()
    long_lsn = next(r["lsn"] for r in whole.to_pylist() if r["end_lsn"] > inside)
    assert boundary <= long_lsn < boundary + 100


def test_timelines_are_joined_at_their_switch(tmp_path: Path) -> None:
    old = log().cut(log().ends[500])
    new = old.cut(old.lsn, tli=2)
    while new.lsn < old.lsn + 3 * MIB:
        new.append("new", 9000)
    archive = TimelineArchive.create(LocalStore(str(tmp_path)), TIMELINE, log_facts())
    archive.put_history(TimelineHistory(2, (TimelineSwitch(1, Lsn(old.lsn)),)))
    put(archive, old, 1, old.start_lsn, old.lsn)
    wal_input = ArchiveInput(str(tmp_path))
    assert starts_of(wal_input) == old.starts
    put(archive, new, 2, old.lsn - old.lsn % MIB, new.lsn)
    assert starts_of(wal_input) == new.starts
    assert starts_of(ArchiveInput(str(tmp_path), tli=1)) == old.starts


def test_what_is_no_archive_is_said(tmp_path: Path) -> None:
    with pytest.raises(WalInputError, match="has 0 timelines"):
        ArchiveInput(str(tmp_path)).facts()
    with pytest.raises(OptionError, match="option timeline"):
        ArchiveInput(str(tmp_path), "no timeline").facts()
    with pytest.raises(WalInputError, match="has no timeline"):
        ArchiveInput(str(tmp_path), str(TIMELINE)).facts()
    assert "geheim" not in repr(ArchiveInput("s3://b", options=(("secret", "geheim"),)))


def put(archive: TimelineArchive, log: WalLog, tli: int, begin: int, end: int) -> None:
    for start in range(begin, end, MIB):
        stop = min(start + MIB, end)
        archive.put_wal(ArchivedWal(tli, start // MIB, stop), log.read(start, stop))


def starts_of(wal_input: ArchiveInput) -> list[int]:
    first_lsn, end_lsn = wal_input.extent()
    whole = WalRange(first_lsn, end_lsn, end_lsn)
    found: list[int] = []
    for index in read_indexes(wal_input, wal_input.facts(), whole):
        assert not isinstance(index, Gap)
        found += index.start_lsn.tolist()
    return found
