"""The answers for a recovery: the file, none in any source, or an error."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from archived_log import SEG_SIZE, TIMELINE, log_facts, log_of
from wal_log import WalLog

from quorum_wal.backup.archived_wal import ArchivedWalSource
from quorum_wal.backup.wal_fetch import fetch_wal_file
from quorum_wal.backup.wal_source import WalSourceError
from quorum_wal.consensus.messages import ServerFacts
from quorum_wal.objectstore.archive import TimelineArchive
from quorum_wal.objectstore.errors import ObjectDamaged, ObjectStoreError
from quorum_wal.objectstore.keys import ArchivedWal
from quorum_wal.objectstore.store import ObjectStore, open_store
from quorum_wal.pgwal.errors import WalFormatError
from quorum_wal.pgwal.history import TimelineHistory, TimelineSwitch
from quorum_wal.pgwal.lsn import Lsn
from quorum_wal.pgwal.segment import format_segment_name

SERVER = log_facts().server
LASTING = WalSourceError("it is damaged")
PASSING = WalSourceError("it does not answer", is_transient=True)
HISTORY = b"1\t0/500000\treason\n"


@dataclass
class Source:
    """Has these segments and histories, or raises an error; fails a number of times before."""

    content: bytes = b""
    histories: dict[int, bytes] = field(default_factory=dict)
    trouble: Exception | None = None
    failures: int = 10**9
    server: ServerFacts | None = SERVER
    asked: list[str] = field(default_factory=list)

    def _ask(self, what: str) -> None:
        self.asked.append(what)
        if self.trouble is not None and len(self.asked) <= self.failures:
            raise self.trouble

    def history(self, tli: int) -> bytes | None:
        self._ask(f"history {tli}")
        return self.histories.get(tli)

    def segment(self, name: str) -> bytes:
        self._ask(name)
        return self.content


WHOLE = log_of(5)
NAME = format_segment_name(1, 5, SEG_SIZE)


def padded(length: int) -> bytes:
    return WHOLE[:length].ljust(SEG_SIZE, b"\0")


def test_the_first_with_the_whole_segment() -> None:
    empty, whole, other = Source(), Source(WHOLE), Source(WHOLE)
    assert fetch_wal_file(NAME, [empty, whole, other]) == WHOLE
    assert (empty.asked, whole.asked, other.asked) == ([NAME], [NAME], [])


@pytest.mark.parametrize("lengths", [(100, 5000), (5000, 100), (5000, 0), (0, 5000), (5000, 5000)])
def test_the_longest_beginning(lengths: tuple[int, int]) -> None:
    """Padded with zeros to the size of a segment, which Postgres needs."""
    sources = [Source(WHOLE[:length]) for length in lengths]
    assert fetch_wal_file(NAME, sources) == padded(5000)


def test_no_source_has_it() -> None:
    assert fetch_wal_file(NAME, [Source(), Source()]) is None
    assert fetch_wal_file("00000002.history", [Source(), Source()]) is None
    assert fetch_wal_file(NAME, [Source(server=None)]) is None


@pytest.mark.parametrize("name", ["000000010000000000000005.00000028.backup", "x", "", "a" * 24])
def test_other_files(name: str) -> None:
    source = Source(WHOLE, trouble=LASTING)
    assert fetch_wal_file(name, [source]) is None
    assert source.asked == []


def test_a_history_file() -> None:
    sources = [Source(), Source(histories={2: HISTORY})]
    assert fetch_wal_file("00000002.history", sources) == HISTORY
    assert fetch_wal_file("00000003.history", sources) is None


@pytest.mark.parametrize("trouble", [LASTING, PASSING, ObjectDamaged("x"), WalFormatError(0, "x")])
@pytest.mark.parametrize("content", [b"", WHOLE[:5000]])
@pytest.mark.parametrize("is_first", [True, False])
def test_a_failure_is_not_taken_for_absence(
    trouble: Exception, content: bytes, *, is_first: bool
) -> None:
    """Even if another source has a beginning: there may be more."""
    sources = [Source(trouble=trouble), Source(content)]
    if not is_first:
        sources.reverse()
    with pytest.raises(type(trouble)):
        fetch_wal_file(NAME, sources)
    with pytest.raises(type(trouble)):
        fetch_wal_file("00000002.history", sources)


def test_a_whole_segment_makes_other_failures_irrelevant() -> None:
    broken = Source(trouble=LASTING)
    assert fetch_wal_file(NAME, [broken, Source(WHOLE)]) == WHOLE
    history = Source(histories={2: HISTORY})
    assert fetch_wal_file("00000002.history", [broken, history]) == HISTORY


def test_transient_failures_are_retried() -> None:
    source = Source(WHOLE, trouble=PASSING, failures=1)
    assert fetch_wal_file(NAME, [source], retry_seconds=30) == WHOLE
    assert len(source.asked) == 2
    for trouble in (LASTING, ObjectStoreError("no")):
        source = Source(WHOLE, trouble=trouble, failures=1)
        with pytest.raises(type(trouble)):
            fetch_wal_file(NAME, [source], retry_seconds=30)
        assert len(source.asked) == 1


def test_sources_that_disagree() -> None:
    other = bytearray(WHOLE[:5000])
    other[4000] ^= 1
    with pytest.raises(WalSourceError, match="different WAL in segment"):
        fetch_wal_file(NAME, [Source(WHOLE[:6000]), Source(bytes(other))])
    stranger = ServerFacts(SERVER.system_id + 1, SERVER.pg_version, SEG_SIZE)
    # WAL of another server is refused, even if it is longer.
    with pytest.raises(WalSourceError, match="WAL of another server"):
        fetch_wal_file(NAME, [Source(WHOLE[:6000]), Source(WHOLE[:100], server=stranger)])


# ---- the archive as a source


@pytest.fixture
def archive() -> TimelineArchive:
    return TimelineArchive.create(open_store("memory://"), TIMELINE, log_facts())


def put(archive: TimelineArchive, tli: int, content: bytes, segno: int = 5) -> None:
    archive.put_wal(ArchivedWal(tli, segno, segno * SEG_SIZE + len(content)), content)


def fetched(archive: TimelineArchive, tli: int, segno: int = 5) -> bytes | None:
    name = format_segment_name(tli, segno, SEG_SIZE)
    return fetch_wal_file(name, [ArchivedWalSource(lambda: archive)])


def test_whole_or_the_longest_beginning_of_the_archive(archive: TimelineArchive) -> None:
    assert fetched(archive, 1) is None
    put(archive, 1, WHOLE[:100])
    put(archive, 1, WHOLE[:5000])
    assert fetched(archive, 1) == padded(5000)
    put(archive, 1, WHOLE)
    assert fetched(archive, 1) == WHOLE
    assert fetched(archive, 1, 6) is None
    assert fetched(archive, 2) is None


@pytest.mark.parametrize("old", [0, 100, 5000])
def test_the_older_timeline_of_a_segment_with_a_switch(archive: TimelineArchive, old: int) -> None:
    """Only the newer timeline's segment exists: below the switch its bytes are the older one's."""
    switch_lsn = 5 * SEG_SIZE + 5000
    archive.put_history(TimelineHistory(2, (TimelineSwitch(1, Lsn(switch_lsn), "test"),)))
    if old:
        put(archive, 1, WHOLE[:old])
    assert fetched(archive, 1) == (padded(old) if old else None)
    put(archive, 2, WHOLE[:7000])
    assert fetched(archive, 1) == padded(5000)
    assert fetched(archive, 2) == padded(7000)
    put(archive, 2, WHOLE)
    assert fetched(archive, 1) == padded(5000)
    assert fetched(archive, 2) == WHOLE
    # Other segments of the old timeline do not exist.
    put(archive, 2, log_of(6), 6)
    assert fetched(archive, 1, 6) is None
    assert fetched(archive, 2, 4) is None


def test_two_switches_in_one_segment(archive: TimelineArchive) -> None:
    switches = (
        TimelineSwitch(1, Lsn(5 * SEG_SIZE + 1000), "a"),
        TimelineSwitch(2, Lsn(5 * SEG_SIZE + 5000), "b"),
    )
    archive.put_history(TimelineHistory(3, switches))
    put(archive, 3, WHOLE)
    assert fetched(archive, 1) == padded(1000)
    assert fetched(archive, 2) == padded(5000)
    assert fetched(archive, 3) == WHOLE


def test_content_of_another_segment(archive: TimelineArchive) -> None:
    """An object with a valid seal but with another segment's content is refused."""
    put(archive, 1, log_of(6))
    with pytest.raises(WalFormatError, match="unexpected pageaddr"):
        fetched(archive, 1)
    newer = WalLog(7 * SEG_SIZE, tli=4)
    newer.append("x", 5000)
    put(archive, 1, newer.read(7 * SEG_SIZE, newer.lsn), 7)
    with pytest.raises(WalFormatError, match="is of timeline 4"):
        fetched(archive, 1, 7)
    put(archive, 1, bytes(8), 8)
    with pytest.raises(WalFormatError, match="are not a page"):
        fetched(archive, 1, 8)


def test_a_damaged_object(archive: TimelineArchive) -> None:
    put(archive, 1, WHOLE)
    key = archive.keys.segment(1, 5)
    archive.store.put(key, archive.store.get(key)[:-1])
    with pytest.raises(ObjectDamaged):
        fetched(archive, 1)
    sources = [ArchivedWalSource(lambda: archive), Source(WHOLE)]
    assert fetch_wal_file(NAME, sources) == WHOLE


class Racing:
    """A store in which an archiver acts before each request, once for each of its steps."""

    def __init__(self, store: ObjectStore, steps: list[Callable[[], object]]) -> None:
        self._store, self._steps = store, steps

    def __getattr__(self, name: str) -> Any:
        if self._steps and name in ("get", "list"):
            self._steps.pop(0)()
        return getattr(self._store, name)


@pytest.mark.parametrize("quiet", range(6))
def test_the_whole_segment_arrives_meanwhile(archive: TimelineArchive, quiet: int) -> None:
    """And its beginnings are deleted: at every moment one of them exists."""

    def finish() -> None:
        put(archive, 1, WHOLE)
        archive.drop_partials(1, 5, 6 * SEG_SIZE)

    put(archive, 1, WHOLE[:5000])
    steps: list[Callable[[], object]] = [lambda: None] * quiet
    store: Any = Racing(archive.store, [*steps, finish])
    assert fetched(TimelineArchive(store, TIMELINE, archive.facts), 1) in (WHOLE, padded(5000))


@pytest.mark.parametrize("quiet", range(6))
def test_a_longer_beginning_arrives_meanwhile(archive: TimelineArchive, quiet: int) -> None:
    def grow() -> None:
        put(archive, 1, WHOLE[:7000])
        archive.drop_partials(1, 5, 5 * SEG_SIZE + 7000)

    put(archive, 1, WHOLE[:5000])
    steps: list[Callable[[], object]] = [lambda: None] * quiet
    store: Any = Racing(archive.store, [*steps, grow])
    found = fetched(TimelineArchive(store, TIMELINE, archive.facts), 1)
    assert found in (padded(7000), padded(5000))


def test_a_gap_is_not_the_end(archive: TimelineArchive) -> None:
    """A missing segment between others is an error; one before or after all others is not."""
    for segno in (4, 5, 7):
        put(archive, 1, log_of(segno), segno)
    with pytest.raises(WalSourceError, match="before and after segment 000000010000000000000006"):
        fetched(archive, 1, 6)
    assert fetched(archive, 1, 3) is None  # it may have been pruned, or be older than the archive
    assert fetched(archive, 1, 8) is None
    source = ArchivedWalSource(lambda: archive)
    whole = Source(log_of(6))
    assert fetch_wal_file(format_segment_name(1, 6, SEG_SIZE), [source, whole]) == log_of(6)


def test_a_gap_after_a_switch(archive: TimelineArchive) -> None:
    archive.put_history(TimelineHistory(2, (TimelineSwitch(1, Lsn(6 * SEG_SIZE + 8), "test"),)))
    put(archive, 1, log_of(4), 4)
    put(archive, 1, log_of(5), 5)
    put(archive, 2, log_of(8), 8)
    for segno in (6, 7):
        assert fetched(archive, 1, segno) is None  # no timeline 1 there
        with pytest.raises(WalSourceError, match="but not the segment"):
            fetched(archive, 2, segno)
    assert fetched(archive, 2, 5) is None  # nor timeline 2 here
