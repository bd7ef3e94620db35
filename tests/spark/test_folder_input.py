"""A folder of segments in every form that tools leave; missing or contradictory files are named
with their LSN."""

from __future__ import annotations

import gzip
import pickle
import re
import shutil
import sys
from pathlib import Path

import pyarrow as pa
import pytest
import zstandard
from wal_log import SYSTEM_ID, WAL_SEG_SIZE, WalLog
from wal_rows import flip, lsns, name_of, rows_of, segment

from quorum_wal.pgwal.history import TimelineHistory, TimelineSwitch
from quorum_wal.pgwal.lsn import Lsn, format_lsn
from quorum_wal.pgwal.page import WAL_PAGE_SIZE
from quorum_wal.spark.errors import WalInputError
from quorum_wal.spark.inputs.folder_input import FolderInput
from quorum_wal.spark.inputs.segment_folder import SegmentFolder
from quorum_wal.spark.inputs.wal_input import LostWal
from quorum_wal.spark.inputs.wal_reader import Gap, OnDamage, WalRange, read_indexes

MIB = 1 << 20


@pytest.fixture(scope="module")
def whole(server_wal: Path) -> pa.Table:
    return rows_of(FolderInput(str(server_wal)))


def reads(folder: Path) -> pa.Table:
    return rows_of(pickle.loads(pickle.dumps(FolderInput(str(folder)))))


def starts_of(folder: Path, tli: int | None = None) -> list[int]:
    """Where records start in a log of WalLog; all are of one system."""
    wal_input = FolderInput(str(folder), tli)
    facts = wal_input.facts()
    assert (facts.system_id, facts.wal_seg_size) == (SYSTEM_ID, WAL_SEG_SIZE)
    first_lsn, end_lsn = wal_input.extent()
    found: list[int] = []
    for index in read_indexes(wal_input, facts, WalRange(first_lsn, end_lsn, end_lsn)):
        assert not isinstance(index, Gap)
        found += index.start_lsn.tolist()
    return found


def test_compressed_segments_are_read(wal_folder: Path, whole: pa.Table) -> None:
    for number, pack in ((1, gzip.compress), (3, zstandard.compress), (4, gzip.compress)):
        path = segment(wal_folder, number)
        suffix = ".gz" if pack is gzip.compress else ".zst"
        path.with_name(f"{path.name}{suffix}.packed").write_bytes(pack(path.read_bytes()))
    for path in wal_folder.glob("*.packed"):
        path.rename(path.with_suffix(""))
        path.with_suffix("").with_suffix("").unlink()
    assert len(list(wal_folder.glob("*.gz"))) == 2
    assert reads(wal_folder).equals(whole)


@pytest.mark.parametrize("form", [".partial", ".gz.partial", ".zst.partial"])
def test_the_last_segment_may_be_partial(wal_folder: Path, whole: pa.Table, form: str) -> None:
    end_lsn = FolderInput(str(wal_folder)).newest_lsn()
    last = wal_folder / name_of((end_lsn - 1) // MIB)
    content = last.read_bytes()
    last.unlink()
    if form != ".partial":
        content = content[: end_lsn % MIB]
        content = gzip.compress(content) if "gz" in form else zstandard.compress(content)
        content = content[:-1] if "gz" in form else content  # its end was not written yet
    last.with_name(last.name + form).write_bytes(content)
    assert reads(wal_folder).equals(whole)


def test_a_file_that_gets_another_name_is_found_again(wal_folder: Path, whole: pa.Table) -> None:
    """pg_receivewal removes `.partial` from the name when a segment is whole."""
    path = segment(wal_folder, 3)
    partial = path.rename(path.with_name(f"{path.name}.partial"))
    wal_input = FolderInput(str(wal_folder))
    begin, end_lsn = wal_input.extent()
    chunks = wal_input.read(begin, end_lsn)
    wal = next(chunks).data
    partial.rename(path)
    wal += b"".join(chunk.data for chunk in chunks)
    assert wal == b"".join(chunk.data for chunk in wal_input.read(begin, end_lsn))


def test_lz4_without_its_library_is_said(wal_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lz4.frame", None)
    path = segment(wal_folder, 1)
    path.rename(path.with_name(f"{path.name}.lz4"))
    with pytest.raises(WalInputError, match="lz4 is not installed") as caught:
        reads(wal_folder)
    assert "pip install lz4" in caught.value.hint


def test_files_kept_for_later_are_no_wal(wal_folder: Path, whole: pa.Table) -> None:
    last = max(int(path.name[16:], 16) for path in wal_folder.iterdir() if len(path.name) == 24)
    shutil.copy(segment(wal_folder, 0), wal_folder / name_of(last + 1))
    (wal_folder / name_of(last + 2)).write_bytes(bytes(MIB))
    (wal_folder / name_of(last + 3)).with_suffix(".partial").write_bytes(bytes(MIB))
    assert reads(wal_folder).equals(whole)


def test_a_missing_segment_is_named(wal_folder: Path, whole: pa.Table) -> None:
    missing = segment(wal_folder, 2)
    begin = int(missing.name[16:], 16) * MIB
    missing.unlink()
    with pytest.raises(LostWal, match=rf"no WAL of segment \w+ from {format_lsn(begin)}"):
        reads(wal_folder)
    wal_input = FolderInput(str(wal_folder))
    assert wal_input.extent()[1] in whole["end_lsn"].to_pylist()
    assert begin - 3 * MIB < wal_input.extent()[1] <= begin
    assert wal_input.extent(begin + MIB) == (begin + MIB, wal_input.newest_lsn())
    rows = rows_of(wal_input, on_damage=OnDamage.SKIP)
    gaps = [row for row in rows.to_pylist() if row["operation"] == "GAP"]
    assert gaps[-1]["lsn"] == begin
    assert gaps[-1]["end_lsn"] == begin + MIB
    assert lsns(rows)[-1] == lsns(whole)[-1]


def test_a_truncated_segment_is_named(wal_folder: Path) -> None:
    cut = segment(wal_folder, 2)
    content = cut.read_bytes()
    cut.write_bytes(content[:300_000])
    lsn = int(cut.name[16:], 16) * MIB + 300_000
    with pytest.raises(LostWal, match=f"{cut} ends there at {format_lsn(lsn)}"):
        reads(wal_folder)
    packed = cut.with_name(f"{cut.name}.gz")
    packed.write_bytes(gzip.compress(content)[:-100])
    cut.unlink()
    with pytest.raises(LostWal, match=f"{packed} is damaged: the compressed data ends too early"):
        reads(wal_folder)


def test_damage_in_the_last_segment_is_not_its_end(wal_folder: Path) -> None:
    end_lsn = FolderInput(str(wal_folder)).newest_lsn()
    last = wal_folder / name_of((end_lsn - 1) // MIB)
    assert end_lsn % MIB > 100_000
    flip(last, 50_000)
    with pytest.raises(LostWal, match=str(last)):
        reads(wal_folder)


def test_wal_that_is_written_meanwhile_is_no_damage(
    wal_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Postgres writes on between the search for the end and the look at later pages."""
    end_lsn = FolderInput(str(wal_folder)).newest_lsn()
    last = wal_folder / name_of((end_lsn - 1) // MIB)
    content, written = last.read_bytes(), end_lsn % MIB - 4 * WAL_PAGE_SIZE
    assert written > WAL_PAGE_SIZE
    last.write_bytes(content[:written] + bytes(MIB - written))
    before_lsn = FolderInput(str(wal_folder)).newest_lsn()
    look = SegmentFolder.continues_after

    def written_meanwhile(self: SegmentFolder, lsn: int) -> bool:
        last.write_bytes(content)
        return look(self, lsn)

    monkeypatch.setattr(SegmentFolder, "continues_after", written_meanwhile)
    last.write_bytes(content[:written] + bytes(MIB - written))
    assert FolderInput(str(wal_folder)).newest_lsn() == before_lsn < end_lsn
    assert FolderInput(str(wal_folder)).newest_lsn() == end_lsn


def test_the_same_segment_twice(wal_folder: Path, whole: pa.Table) -> None:
    path = segment(wal_folder, 1)
    content = path.read_bytes()
    path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(content))
    partial = path.with_name(f"{path.name}.partial")
    partial.write_bytes(content[:70_000] + bytes(MIB - 70_000))
    assert reads(wal_folder).equals(whole)
    lsn = int(path.name[16:], 16) * MIB + 60_000
    flip(partial, 60_000)
    with pytest.raises(LostWal, match=f"{path} and {partial} differ at {format_lsn(lsn)}"):
        reads(wal_folder)


def test_a_strangers_segment_is_refused(wal_folder: Path) -> None:
    path = segment(wal_folder, 1)
    flip(path, 24)  # the first byte of the system identifier
    with pytest.raises(LostWal, match=rf"different database system.*{path}"):
        reads(wal_folder)


def test_folders_without_wal(tmp_path: Path) -> None:
    with pytest.raises(WalInputError, match="no readable WAL segment"):
        FolderInput(str(tmp_path)).facts()
    with pytest.raises(WalInputError, match="could not read folder"):
        FolderInput(str(tmp_path / "nowhere")).facts()


# ---- timelines


@pytest.fixture
def forked(tmp_path: Path) -> tuple[Path, WalLog, WalLog]:
    """Timeline 1 continues after the position where timeline 2 left it."""
    old = WalLog(3 * MIB)
    while old.lsn < 5 * MIB + 400_000:
        old.append("old", 5000)
    switch = old.boundary_after(4 * MIB + 500_000)
    new = old.cut(switch, tli=2)
    while new.lsn < 6 * MIB + 300_000:
        new.append("new", 7000)
    folder = tmp_path / "forked"
    folder.mkdir()
    for tli, builder, segnos in ((1, old, (3, 4, 5)), (2, new, (4, 5, 6))):
        for segno in segnos:
            content = builder.read(segno * MIB, (segno + 1) * MIB)
            (folder / name_of(segno, tli)).write_bytes(content.ljust(MIB, b"\0"))
    history = TimelineHistory(2, (TimelineSwitch(1, Lsn(switch), "promoted"),))
    (folder / "00000002.history").write_text(history.format())
    return folder, old, new


def test_the_newest_timeline_is_read(forked: tuple[Path, WalLog, WalLog]) -> None:
    folder, old, new = forked
    assert starts_of(folder) == new.starts
    assert starts_of(folder, tli=1) == old.starts


def test_an_older_file_ends_where_its_timeline_was_left(
    forked: tuple[Path, WalLog, WalLog],
) -> None:
    folder, old, new = forked
    for segno in (4, 5, 6):
        (folder / name_of(segno, 2)).unlink()
    below = [start for start, end in zip(old.starts, old.ends, strict=True) if end <= new.lsn]
    switch = TimelineHistory.parse(2, (folder / "00000002.history").read_text())
    left = int(switch.entries[0].switch_lsn)
    assert starts_of(folder) == [lsn for lsn in below if lsn < left]


def test_a_history_that_is_missing_is_asked_for(
    forked: tuple[Path, WalLog, WalLog],
) -> None:
    folder, old, _ = forked
    (folder / "00000002.history").unlink()
    with pytest.raises(WalInputError, match=re.escape("not 00000002.history")):
        starts_of(folder)
    assert starts_of(folder, tli=1) == old.starts
    with pytest.raises(WalInputError, match="no WAL of timeline 7"):
        starts_of(folder, tli=7)
