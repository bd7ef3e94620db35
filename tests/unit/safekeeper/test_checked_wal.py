"""The effect of a truncation on the checksums: a damaged block stays damaged, and the truncation
does not wait for a reader that checks a whole segment."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from threading import Event, Thread, current_thread

import pytest
from timeline_on_disk import leading_pusher, load_timeline, log_of
from wal_log import START_LSN, WAL_SEG_SIZE

from quorum_wal.safekeeper.block_sums import BLOCK_BYTES
from quorum_wal.safekeeper.errors import WalDamaged
from quorum_wal.storage import durable

CUT = START_LSN + BLOCK_BYTES + 10_000


@pytest.mark.parametrize("is_rotten", [True, False])
def test_a_damaged_block_is_still_damaged_when_its_end_is_cut_off(
    tmp_path: Path, is_rotten: bool
) -> None:
    pusher = leading_pusher(tmp_path)
    while pusher.log.lsn < START_LSN + 3 * BLOCK_BYTES:
        pusher.log.append(f"R{len(pusher.log.ends)}", 1000)
    pusher.push()
    store = pusher.timeline.store
    end_lsn = pusher.log.boundary_after(CUT)
    (path,) = store.files_of(1)
    if is_rotten:
        content = bytearray(path.read_bytes())
        content[BLOCK_BYTES + 5000] ^= 1
        path.write_bytes(content)
    store.truncate(end_lsn)
    store.write(end_lsn, pusher.log.read(end_lsn, pusher.log.lsn))
    facts = store.facts(START_LSN)
    whole = store.checked.read(START_LSN, BLOCK_BYTES, facts)
    assert whole == pusher.log.read(START_LSN, START_LSN + BLOCK_BYTES)
    if is_rotten:
        with pytest.raises(WalDamaged):
            store.checked.read(START_LSN + BLOCK_BYTES, BLOCK_BYTES, facts)
    else:
        store.checked.read(START_LSN + BLOCK_BYTES, BLOCK_BYTES, facts)


def test_a_truncation_does_not_wait_for_a_reader_that_checks_a_whole_segment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pusher = leading_pusher(tmp_path)
    pusher.log = log_of(2 * WAL_SEG_SIZE)
    pusher.push()
    pusher.timeline.store.abandon()  # as after kill -9: its checksums were not saved
    store = load_timeline(tmp_path).store
    checked, read_raw, reads, goes_on = store.checked, store.read, Event(), Event()

    def read(lsn: int, length: int) -> bytes:
        data = read_raw(lsn, length)
        if current_thread() is reader:
            reads.set()
            assert goes_on.wait(10)
        return data

    found: list[bytes] = []
    facts = store.facts(START_LSN)
    reader = Thread(target=lambda: found.append(checked.read(START_LSN, BLOCK_BYTES, facts)))
    monkeypatch.setattr(store, "read", read)
    reader.start()
    assert reads.wait(10)
    cut = Thread(target=lambda: (checked.save(), store.truncate(pusher.log.ends[3])))
    cut.start()
    cut.join(10)
    is_cut = not cut.is_alive()
    goes_on.set()
    for thread in (reader, cut):
        thread.join(10)
    assert is_cut, "it waited for the reader"
    assert found == [b""], "what was read was being cut"
    assert checked.read(START_LSN, 100, facts) == pusher.log.read(START_LSN, START_LSN + 100)


def test_a_truncation_while_checksums_are_saved_leaves_none_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither fails, whichever comes first to a file, and the saved checksums are removed."""
    pusher = leading_pusher(tmp_path)
    pusher.log = log_of(3 * WAL_SEG_SIZE)
    pusher.push()
    store, checked = pusher.timeline.store, pusher.timeline.store.checked
    replace_file, remove_file = durable.replace_file, durable.remove_file
    cuts, removes, failed = Event(), Event(), list[Exception]()

    def replace_before_it_cuts(path: Path, content: bytes) -> None:
        replace_file(path, content)
        cuts.set()
        removes.wait(0.2)

    def remove_after_it_saved(path: Path) -> None:
        if current_thread() is cutter:
            removes.set()
            saver.join(0.2)
        remove_file(path)

    def cut() -> None:
        assert cuts.wait(10)
        trying(lambda: store.truncate(pusher.log.ends[3]))

    def trying(task: Callable[[], None]) -> None:
        try:
            task()
        except Exception as error:
            failed.append(error)

    monkeypatch.setattr(durable, "replace_file", replace_before_it_cuts)
    monkeypatch.setattr(durable, "remove_file", remove_after_it_saved)
    cutter, saver = Thread(target=cut), Thread(target=lambda: trying(checked.save))
    cutter.start()
    saver.start()
    for thread in (saver, cutter):
        thread.join(10)
    assert not failed
    assert not list(checked.directory.iterdir())
    checked.save()
    assert not list(checked.directory.iterdir()), "no segment is full"
    for lsn in range(START_LSN + WAL_SEG_SIZE, pusher.log.lsn, WAL_SEG_SIZE):
        with pytest.raises(WalDamaged):
            checked.sums_of(lsn // WAL_SEG_SIZE, store.facts(START_LSN))
