"""Keys: a key and its content determine each other; all other objects there are foreign."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorum_wal.consensus.ids import TimelineId
from quorum_wal.objectstore.keys import ArchivedWal, ArchiveKeys

TIMELINE = TimelineId(bytes(16), b"t" * 16)
MIB = 1 << 20
KEYS = ArchiveKeys(TIMELINE, 16 * MIB)
PREFIX = "0" * 32 + "/" + "74" * 16 + "/"

seg_sizes = st.sampled_from([1 << bits for bits in range(20, 31)])


@st.composite
def wals(draw: st.DrawFn) -> tuple[ArchiveKeys, ArchivedWal]:
    seg_size = draw(seg_sizes)
    tli = draw(st.integers(1, 2**32 - 1))
    segno = draw(st.integers(0, 2**64 // seg_size - 2))
    length = draw(st.one_of(st.just(seg_size), st.integers(1, seg_size)))
    return ArchiveKeys(TIMELINE, seg_size), ArchivedWal(tli, segno, segno * seg_size + length)


@given(wals())
def test_a_key_is_read_as_it_was_written(case: tuple[ArchiveKeys, ArchivedWal]) -> None:
    keys, wal = case
    assert keys.parse_wal(keys.key(wal)) == wal


@given(seg_sizes, st.lists(st.tuples(st.integers(0, 2**20), st.integers(1, MIB)), min_size=2))
def test_keys_sort_as_their_wal(seg_size: int, places: list[tuple[int, int]]) -> None:
    """A segment's partial objects follow the whole one: the order of a listing."""
    keys = ArchiveKeys(TIMELINE, seg_size)
    wals = {ArchivedWal(1, segno, segno * seg_size + length) for segno, length in places}

    def place(wal: ArchivedWal) -> tuple[int, bool, int]:
        return wal.segno, wal.end_lsn % seg_size != 0, wal.end_lsn

    assert sorted(wals, key=keys.key) == sorted(wals, key=place)


def test_the_keys() -> None:
    assert KEYS.prefix == PREFIX
    assert KEYS.history(2) == PREFIX + "history/00000002.history"
    assert KEYS.backups == PREFIX + "backups/"
    whole = ArchivedWal(1, 5, 6 * 16 * MIB)
    assert KEYS.key(whole) == PREFIX + "wal/00000001/000000010000000000000005"
    beginning = ArchivedWal(1, 6, 0x612AB40)
    folder = PREFIX + "wal/00000001/000000010000000000000006.partial/"
    assert KEYS.key(beginning) == folder + "000000000612AB40"
    assert KEYS.partials(1, 6) == folder


@pytest.mark.parametrize(
    "key",
    [
        "",
        "wal",
        "00000001/",
        "00000001/000000010000000000000005/",
        "00000001/000000010000000000000005.gz",
        "00000001/000000010000000000000005~",
        "00000001/00000001000000000000000",
        "00000001/0000000100000000000000005",
        "00000001/00000001000000000000000g",
        "00000001/00000001000000000000000a",  # Postgres uses upper case
        "00000002/000000010000000000000005",  # in another timeline's folder
        "1/000000010000000000000005",
        "00000001/000000010000000000000005.partial",
        "00000001/000000010000000000000005.partial/",
        "00000001/000000010000000000000005.partial/0000000005000000",  # empty
        "00000001/000000010000000000000005.partial/0000000006000000",  # whole
        "00000001/000000010000000000000005.partial/0000000006000001",  # of the next
        "00000001/000000010000000000000005.partial/000000000512ab40",
        "00000001/000000010000000000000005.partial/512AB40",
        "00000001/000000010000000000000005.partial/-000000005100000",
        "00000001/000000010000000000000005.partial/0x00000005100000",
        "00000001/000000010000000000000005.partial/ 00000005100000 ",
        "00000001/000000010000000000000005.partial/0000_0000_0510_00",
        "00000001/000000010000000000000005.partial/0000000005100000/x",
        "00000001/0000000100000000000000FF.partial/.tmp-1234-5",
        "00000001/000000010000000000000100",  # 16 MB segments: 256 of them in 4 GB
        "00000001/.tmp-1234-5",
        "00000001/000000010000000000000005.00000028.backup",
    ],
)
def test_foreign_keys(key: str) -> None:
    assert KEYS.parse_wal(KEYS.wal + key) is None


@given(st.text())
def test_any_text(text: str) -> None:
    for key in (text, KEYS.wal + text):
        wal = KEYS.parse_wal(key)
        assert wal is None or KEYS.key(wal) == KEYS.wal + key.removeprefix(KEYS.wal)
