"""WalStore on a real disk: segments, flushes, truncation, and starts after a crash."""

from __future__ import annotations

import os
from pathlib import Path
from random import Random

import pytest
from new_timeline import SERVER
from wal_log import PAGE_SIZE, START_LSN, WAL_SEG_SIZE, WalLog

from quorum_wal.pgwal.history import TimelineHistory
from quorum_wal.safekeeper.wal_store import WalStore
from quorum_wal.storage import durable
from quorum_wal.storage.errors import StorageError

MIB = 1024 * 1024


def open_store(folder: Path, history: TimelineHistory | None = None) -> WalStore:
    """As after a start: recovered from the log's beginning."""
    store = WalStore(folder / "wal", SERVER, history or TimelineHistory(1))
    store.recover(START_LSN, START_LSN)
    return store


def build_log(size_bytes: int, record_bytes: int = 60_000, tli: int = 1) -> WalLog:
    log = WalLog(tli=tli)
    while log.lsn < START_LSN + size_bytes:
        log.append(f"R{len(log.ends)}", record_bytes)
    return log


def write_all(store: WalStore, log: WalLog, chunk_bytes: int = 128 * 1024) -> None:
    """Writes the part of the log that the store lacks, in chunks."""
    while store.end_lsn < log.lsn:
        store.write(store.end_lsn, log.read(store.end_lsn, store.end_lsn + chunk_bytes))


def read_all(store: WalStore, end_lsn: int) -> bytes:
    wal = bytearray()
    while START_LSN + len(wal) < end_lsn:
        part = store.read(START_LSN + len(wal), end_lsn - START_LSN - len(wal))
        assert part, f"nothing at {START_LSN + len(wal):X}"
        wal += part
    return bytes(wal)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "wal").iterdir())


def segment(number: int, tli: int = 1) -> str:
    return f"{tli:08X}{0:08X}{number:08X}"


# ---- writing


@pytest.mark.parametrize("chunk_bytes", [1, 7, 8192, 128 * 1024, 3 * MIB])
def test_a_log_spans_segments_for_all_chunk_sizes(tmp_path: Path, chunk_bytes: int) -> None:
    log = build_log(20_000 if chunk_bytes < 100 else 3 * MIB + 500_000)
    store = open_store(tmp_path)
    write_all(store, log, chunk_bytes)
    store.flush()
    count = -(-len(log.wal) // WAL_SEG_SIZE)
    assert names(tmp_path) == [segment(i) for i in range(1, 1 + count)]
    sizes = {(tmp_path / "wal" / name).stat().st_size for name in names(tmp_path)}
    assert sizes == {WAL_SEG_SIZE}, "preallocated in full"
    assert read_all(store, log.lsn) == log.wal
    assert open_store(tmp_path).end_lsn == log.lsn


def test_a_full_segment_is_flushed_before_the_next_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of a log with a hole could not be found by decoding."""
    store = open_store(tmp_path)
    synced: list[str] = []
    sync_data = durable.sync_data

    def counted(fd: int, path: Path) -> None:
        synced.append(path.name)
        sync_data(fd, path)

    monkeypatch.setattr(durable, "sync_data", counted)
    write_all(store, build_log(2 * MIB + 1000))
    assert synced == [segment(1), segment(2)]
    store.flush()
    assert synced == [segment(1), segment(2), segment(3)]


def test_the_next_segment_is_prepared_off_the_append_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(tmp_path)
    log = build_log(2 * MIB)
    write_all(store, log.cut(log.ends[0]))
    store.prepare_next_segment()
    assert names(tmp_path) == [segment(1), "next-segment"]
    monkeypatch.setattr(durable, "create_zeroed", lambda *_: pytest.fail("it was there"))
    write_all(store, log.cut(log.ends[-5]))
    assert names(tmp_path) == [segment(1), segment(2)]


def test_appends_do_not_wait_for_zeros(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No spare is ready: the next segment is allocated; the spare being filled is not used."""
    store = open_store(tmp_path)
    log = build_log(2 * MIB)
    write_all(store, log.cut(log.ends[0]))
    (tmp_path / "wal" / "next-segment.tmp").write_bytes(b"less")
    monkeypatch.setattr(durable, "create_zeroed", lambda *_: pytest.fail("it would be waited for"))
    write_all(store, log.cut(log.ends[-5]))
    assert (tmp_path / "wal" / segment(2)).stat().st_size == WAL_SEG_SIZE
    assert names(tmp_path) == [segment(1), segment(2), "next-segment.tmp"]


def test_a_spare_that_was_being_filled_at_a_crash_is_not_used(tmp_path: Path) -> None:
    open_store(tmp_path)
    (tmp_path / "wal" / "next-segment").write_bytes(b"half")
    (tmp_path / "wal" / "next-segment.tmp").write_bytes(b"less")
    store = open_store(tmp_path)
    assert names(tmp_path) == []
    write_all(store, build_log(1000))
    assert (tmp_path / "wal" / segment(1)).stat().st_size == WAL_SEG_SIZE


# ---- after a start


def crashed(tmp_path: Path, log: WalLog) -> Path:
    """The log as a crash leaves it; returns the last segment's file."""
    store = open_store(tmp_path)
    write_all(store, log)
    store.close()
    return tmp_path / "wal" / segment((log.lsn - 1) // WAL_SEG_SIZE)


def overwrite(path: Path, lsn: int, content: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(lsn % WAL_SEG_SIZE)
        file.write(content[: WAL_SEG_SIZE - lsn % WAL_SEG_SIZE])


def rest_of(path: Path, lsn: int) -> bytes:
    return path.read_bytes()[lsn % WAL_SEG_SIZE :]


def test_a_torn_record_is_cut_off(tmp_path: Path) -> None:
    log = build_log(1_300_000)
    last = crashed(tmp_path, log)
    end_lsn = log.starts[-1]
    overwrite(last, end_lsn + 1000, bytes(200_000))
    store = open_store(tmp_path)
    assert store.end_lsn == log.ends[-2]
    assert not rest_of(last, store.end_lsn).strip(b"\0"), "nothing of it is left"
    write_all(store, log)
    assert open_store(tmp_path).end_lsn == log.lsn


@pytest.mark.parametrize("seed", range(5))
def test_garbage_behind_the_end_is_zeroed_before_the_first_write(tmp_path: Path, seed: int) -> None:
    log = build_log(1_300_000)
    last = crashed(tmp_path, log)
    overwrite(last, log.lsn, Random(seed).randbytes(300_000))
    store = open_store(tmp_path)
    assert store.end_lsn == log.lsn
    assert not rest_of(last, log.lsn).strip(b"\0")


def test_a_stale_tail_is_never_found_again(tmp_path: Path) -> None:
    """Records of the same sizes: after a rewrite, the old ones behind would fit by their links."""
    old = WalLog()
    for i in range(20):
        old.append(f"old{i}")
    crashed(tmp_path, old)
    store = open_store(tmp_path)
    store.truncate(old.ends[4])
    new = old.cut(old.ends[4])
    new.append("new")
    write_all(store, new)
    store.close()
    store = open_store(tmp_path)
    assert store.end_lsn == new.lsn
    assert read_all(store, new.lsn) == new.wal


def test_a_short_last_file_is_extended(tmp_path: Path) -> None:
    """As left by a crash of an older release, or by a truncated copy."""
    log = build_log(1_300_000)
    last = crashed(tmp_path, log)
    os.truncate(last, log.starts[-1] % WAL_SEG_SIZE + 500)
    store = open_store(tmp_path)
    assert store.end_lsn == log.ends[-2]
    assert last.stat().st_size == WAL_SEG_SIZE


def test_segments_behind_the_end_are_removed(tmp_path: Path) -> None:
    log = build_log(3_500_000)
    crashed(tmp_path, log)
    overwrite(tmp_path / "wal" / segment(2), 2 * MIB + 100 * PAGE_SIZE, bytes(PAGE_SIZE))
    store = open_store(tmp_path)
    assert store.end_lsn < 2 * MIB + 100 * PAGE_SIZE
    assert names(tmp_path) == [segment(1), segment(2)]


def test_an_end_below_the_known_position_changes_nothing(tmp_path: Path) -> None:
    log = build_log(2_500_000)
    crashed(tmp_path, log)
    overwrite(tmp_path / "wal" / segment(2), 2 * MIB + 50 * PAGE_SIZE, b"damage")
    before = {name: (tmp_path / "wal" / name).read_bytes() for name in names(tmp_path)}
    store = WalStore(tmp_path / "wal", SERVER, TimelineHistory(1))
    end = store.recover(START_LSN, log.lsn)
    assert end.end_lsn < log.lsn
    assert end.reason
    assert {name: (tmp_path / "wal" / name).read_bytes() for name in names(tmp_path)} == before


def test_recovered_bytes_are_synced_before_they_are_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They may be only in the page cache: a vote on them would not survive the next crash."""
    crashed(tmp_path, build_log(2_500_000))
    synced: list[str] = []
    monkeypatch.setattr(durable, "sync_file", lambda path: synced.append(path.name))
    open_store(tmp_path)
    assert sorted(synced) == [segment(1), segment(2), segment(3)]


def test_foreign_files_are_not_touched(tmp_path: Path) -> None:
    log = build_log(1000)
    crashed(tmp_path, log)
    strangers = [segment(9) + ".partial", "README", segment(9).lower() + "x"]
    for name in strangers:
        (tmp_path / "wal" / name).write_bytes(b"mine")
    assert open_store(tmp_path).end_lsn == log.lsn
    assert set(strangers) < set(names(tmp_path))


# ---- truncation


def test_truncation_at_every_kind_of_place(tmp_path: Path) -> None:
    log = build_log(3_500_000, record_bytes=300_000)
    ends = [START_LSN, *log.ends]
    filled = WalLog()
    while filled.lsn < 3 * MIB:  # ends exactly on segment boundaries
        filled.fill_page(f"F{len(filled.ends)}")
    for source, end_lsn in [*((log, lsn) for lsn in ends), (filled, 2 * MIB), (filled, 3 * MIB)]:
        folder = tmp_path / f"{end_lsn:X}-{len(source.ends)}"
        folder.mkdir()
        store = open_store(folder)
        write_all(store, source)
        store.truncate(end_lsn)
        assert store.end_lsn == end_lsn
        assert read_all(store, end_lsn) == source.read(START_LSN, end_lsn)
        assert max(names(folder), default="") <= segment((end_lsn - 1) // WAL_SEG_SIZE)
        assert open_store(folder).end_lsn == end_lsn
        forked = source.cut(end_lsn)
        forked.append("other", 40_000)
        write_all(store, forked)
        store.close()
        assert open_store(folder).end_lsn == forked.lsn


def test_truncation_removes_from_the_last_segment_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An interruption leaves a shorter log, never one with a hole."""
    log = build_log(4_500_000)
    store = open_store(tmp_path)
    write_all(store, log)
    removed: list[str] = []
    remove_file = durable.remove_file

    def counted(path: Path) -> None:
        removed.append(path.name)
        remove_file(path)

    monkeypatch.setattr(durable, "remove_file", counted)
    store.truncate(log.ends[3])
    assert removed == [segment(5), segment(4), segment(3), segment(2)]


# ---- Postgres timelines


def promoted(lsn: int) -> TimelineHistory:
    return TimelineHistory.parse(2, f"1\t0/{lsn:X}\tpromoted\n")


def switched_log(log: WalLog, switch_lsn: int, size_bytes: int) -> WalLog:
    new = log.cut(switch_lsn, tli=2)
    while new.lsn < START_LSN + size_bytes:
        new.append(f"T{len(new.ends)}", 60_000)
    return new


@pytest.mark.parametrize("reopened", [False, True], ids=["adopted while writing", "after a start"])
def test_a_switch_inside_a_segment_begins_a_file_that_repeats_the_prefix(
    tmp_path: Path, reopened: bool
) -> None:
    """As Postgres does: the old file keeps its bytes, and the new one repeats them."""
    old = build_log(1_400_000)
    new = switched_log(old, old.lsn, 3_300_000)
    store = open_store(tmp_path)
    write_all(store, old)
    if reopened:
        store.close()
        store = open_store(tmp_path, promoted(old.lsn))
    else:
        store.adopt(promoted(old.lsn))
    write_all(store, new)
    store.flush()
    assert names(tmp_path) == [segment(1), segment(2), *(segment(i, 2) for i in (2, 3, 4))]
    files = {name: (tmp_path / "wal" / name).read_bytes() for name in names(tmp_path)}
    offset = old.lsn % WAL_SEG_SIZE
    assert files[segment(2, 2)][:offset] == files[segment(2)][:offset]
    assert not files[segment(2)][offset:].strip(b"\0"), (
        "nothing of the new timeline in the old file"
    )
    assert read_all(store, new.lsn) == new.wal
    again = open_store(tmp_path, promoted(old.lsn))
    assert again.end_lsn == new.lsn


def test_a_catch_up_through_the_switch_writes_both_files(tmp_path: Path) -> None:
    """A lagging member gets one chunk with bytes of both timelines."""
    old = build_log(500_000)
    new = switched_log(old, old.lsn, 900_000)
    store = open_store(tmp_path, promoted(old.lsn))
    write_all(store, new, chunk_bytes=MIB)
    store.flush()
    assert names(tmp_path) == [segment(1), segment(1, 2)]
    offset = old.lsn % WAL_SEG_SIZE
    assert not (tmp_path / "wal" / segment(1)).read_bytes()[offset:].strip(b"\0")
    assert read_all(store, new.lsn) == new.wal


def test_truncation_below_the_switch_removes_the_newer_file(tmp_path: Path) -> None:
    old = build_log(500_000)
    new = switched_log(old, old.lsn, 900_000)
    store = open_store(tmp_path, promoted(old.lsn))
    write_all(store, new)
    end_lsn = old.ends[3]
    store.truncate(end_lsn)
    store.adopt(TimelineHistory(1))
    assert names(tmp_path) == [segment(1)]
    assert open_store(tmp_path).end_lsn == end_lsn


def test_truncation_at_the_switch_leaves_nothing_of_the_newer_timeline(tmp_path: Path) -> None:
    old = build_log(500_000)
    store = open_store(tmp_path, promoted(old.lsn))
    write_all(store, switched_log(old, old.lsn, 900_000))
    store.truncate(old.lsn)
    assert names(tmp_path) == [segment(1)]
    assert open_store(tmp_path, promoted(old.lsn)).end_lsn == old.lsn


def test_truncation_above_the_switch_keeps_both_files(tmp_path: Path) -> None:
    old = build_log(500_000)
    new = switched_log(old, old.lsn, 900_000)
    store = open_store(tmp_path, promoted(old.lsn))
    write_all(store, new)
    end_lsn = new.ends[-3]
    store.truncate(end_lsn)
    assert names(tmp_path) == [segment(1), segment(1, 2)]
    assert open_store(tmp_path, promoted(old.lsn)).end_lsn == end_lsn


# ---- failures of the disk


def test_reading_never_raises_a_bare_os_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(tmp_path)
    write_all(store, build_log(1000))

    def no_descriptors(*_: object) -> int:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(os, "open", no_descriptors)
    with pytest.raises(StorageError, match="Too many open files"):
        store.read(START_LSN, 100)


# ---- a switch whose record crosses a segment's end


def test_a_segment_that_is_only_the_padding_of_a_switch_is_not_damaged(tmp_path: Path) -> None:
    """The record begins 8 bytes before: its rest, and zeros, fill the next segment."""
    log = WalLog()
    while log.lsn < START_LSN + WAL_SEG_SIZE - PAGE_SIZE:
        log.fill_page(f"R{len(log.ends)}")
    log.append("last", PAGE_SIZE - 24 - 8)
    assert log.lsn == START_LSN + WAL_SEG_SIZE - 8
    log.switch()
    assert log.lsn == START_LSN + 2 * WAL_SEG_SIZE
    store = open_store(tmp_path)
    write_all(store, log)
    store.flush()
    again = WalStore(tmp_path / "wal", SERVER, TimelineHistory(1))
    end = again.recover(START_LSN + WAL_SEG_SIZE, log.lsn, START_LSN)
    assert end.end_lsn == log.lsn
    facts = again.facts(START_LSN)
    again.checked.forget(2)
    assert len(again.checked.read(START_LSN + WAL_SEG_SIZE, WAL_SEG_SIZE, facts)) == WAL_SEG_SIZE
