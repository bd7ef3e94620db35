"""Files of pages: a state is found, refused or removed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from quorum_wal.pgwal.block_ref import PageImage
from quorum_wal.spark.changes import page_folder
from quorum_wal.spark.changes.page_file import (
    LastRecord,
    PagesLost,
    PageState,
    decode_index,
    encode_page,
)
from quorum_wal.spark.changes.page_folder import KeptPages, PageFolder

SYSTEM_ID = 7
FILES = np.array([16400, 16402])
IMAGE = PageImage(b"page", 4, 8188, None, True)
PAGE = (16400, 3)


@pytest.fixture
def folder(tmp_path: Path) -> PageFolder:
    return PageFolder(tmp_path / "pages")


def put(
    folder: PageFolder,
    begin_lsn: int,
    end_lsn: int,
    tuples: dict[int, bytes],
    *,
    redo_lsn: int = 100,
    image: PageImage | None = None,
    before: KeptPages | None = None,
) -> None:
    last = LastRecord(end_lsn - 8, 1, 1)
    state = PageState(SYSTEM_ID, begin_lsn, end_lsn, redo_lsn, last)
    folder.put(state, FILES, iter([(PAGE, encode_page((image, tuples)))]), before)


def names(folder: PageFolder) -> list[str]:
    return sorted(path.name.removesuffix(".pages") for path in folder.path.glob("*"))


def found(folder: PageFolder, lsn: int) -> tuple[int, object]:
    kept = folder.newest(lsn, SYSTEM_ID)
    assert kept is not None
    try:
        return kept.state.end_lsn, kept.page(PAGE)
    finally:
        kept.close()


def test_the_last_state_before_a_position(folder: PageFolder) -> None:
    assert folder.newest(1000, SYSTEM_ID) is None
    put(folder, 100, 200, {1: b"one", 2: b"two"}, image=IMAGE)
    put(folder, 200, 300, {2: b"newer"})
    put(folder, 300, 400, {3: b"three"}, image=IMAGE)
    assert folder.newest(199, SYSTEM_ID) is None
    assert found(folder, 200) == (200, (IMAGE, {1: b"one", 2: b"two"}))
    assert found(folder, 399) == (300, (IMAGE, {1: b"one", 2: b"newer"}))
    assert found(folder, 400) == (400, (IMAGE, {3: b"three"})), "an image is the whole page"


def test_files_before_the_last_checkpoint_are_removed(folder: PageFolder) -> None:
    put(folder, 100, 200, {1: b"one"})
    put(folder, 200, 300, {2: b"two"})
    put(folder, 300, 400, {3: b"three"}, redo_lsn=250)
    assert names(folder) == [f"{200:016X}-{300:016X}", f"{300:016X}-{400:016X}"]


def test_many_files_become_one(folder: PageFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_folder, "FILES_MAX", 2)
    put(folder, 100, 200, {1: b"one"}, image=IMAGE)
    put(folder, 200, 300, {2: b"two"})
    before = folder.newest(300, SYSTEM_ID)
    assert before is not None
    put(folder, 300, 400, {3: b"three"}, before=before)
    before.close()
    assert names(folder) == [f"{100:016X}-{400:016X}"]
    assert found(folder, 400)[1] == (IMAGE, {1: b"one", 2: b"two", 3: b"three"})


@pytest.mark.parametrize("limit", ["BYTES_MAX", "PAGES_MAX"])
def test_too_many_pages(folder: PageFolder, monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    put(folder, 100, 200, {1: b"one"})
    monkeypatch.setattr(page_folder, limit, 1)
    put(folder, 200, 300, {2: b"two"})
    assert not folder.path.exists()


def test_a_full_disk(folder: PageFolder) -> None:
    """The next batch reads more WAL; this one goes on."""

    def pages() -> Iterator[tuple[tuple[int, int], bytes]]:
        raise OSError("no space left on device")
        yield

    state = PageState(SYSTEM_ID, 100, 200, 100, LastRecord(192, 1, 1))
    folder.put(state, FILES, pages(), None)
    assert not folder.path.exists()


def test_states_that_are_refused(folder: PageFolder) -> None:
    put(folder, 100, 200, {1: b"one"})
    put(folder, 200, 300, {2: b"two"})
    with pytest.raises(PagesLost, match="of another cluster"):
        folder.newest(300, SYSTEM_ID + 1)
    kept = folder.newest(300, SYSTEM_ID)
    assert kept is not None
    kept.check_files(FILES[:1])
    with pytest.raises(PagesLost, match="not followed"):
        kept.check_files(np.array([16400, 16404]))
    kept.close()
    (folder.path / f"{100:016X}-{200:016X}.pages").unlink()
    with pytest.raises(PagesLost, match="missing"):
        folder.newest(300, SYSTEM_ID)


@pytest.mark.parametrize("data", [b"", b"\x80", b"\xc1" * 40])
def test_damaged_indexes(data: bytes) -> None:
    with pytest.raises(PagesLost, match="damaged"):
        decode_index(data)
