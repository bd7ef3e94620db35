"""The oldest WAL that backups and the indices of a pageserver need."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from quorum_wal.backup.backup_catalog import BackupCatalog
from quorum_wal.backup.backup_record import Backup, format_backup_id
from quorum_wal.consensus.ids import TimelineId
from quorum_wal.generations.suffix import Suffix
from quorum_wal.objectstore.archive import ArchivedTimeline, TimelineArchive
from quorum_wal.objectstore.errors import ObjectDamaged
from quorum_wal.objectstore.local import LocalStore
from quorum_wal.pageserver.cuts.needed_wal import NeededWal, needed_wal, oldest_needed
from quorum_wal.pageserver.errors import PageserverError
from quorum_wal.pageserver.objects.page_index import Cut, PageIndex, encode_index
from quorum_wal.pageserver.objects.page_keys import IndexName, PageKeys

NOW = datetime(2026, 11, 21, tzinfo=UTC)
TIMELINE = TimelineId(bytes(15) + b"\1", bytes(15) + b"\2")
OLD, NEW = Suffix.pack(1, 1, 1), Suffix.pack(2, 1, 1)


def backup(start_lsn: int) -> Backup:
    return Backup(
        backup_id=format_backup_id(NOW, start_lsn),
        label="",
        system_id=7,
        pg_version=150018,
        start_lsn=start_lsn,
        start_tli=1,
        stop_lsn=start_lsn + 10,
        stop_tli=1,
        started_at=NOW,
        stopped_at=NOW,
        from_standby=False,
        archives=(),
    )


BASE, LATER = backup(100), backup(900)


def index_of(*redo_lsns: int, horizon_lsn: int = 0, base: Backup = BASE) -> PageIndex:
    cuts = tuple(Cut(lsn, lsn + 10, lsn + 20, 1, lsn) for lsn in redo_lsns)
    return PageIndex(horizon_lsn, cuts, base_backup_id=base.backup_id if cuts else "")


YOUNG = index_of(200, 300)
MOVED = index_of(300, 400, horizon_lsn=320)


@pytest.mark.parametrize(
    ("backups", "indices", "expected"),
    [
        ([], [], None),
        ([BASE, LATER], [], NeededWal(100, is_of_cuts=False)),
        ([BASE], [index_of()], NeededWal(100, is_of_cuts=False)),
        ([BASE, LATER], [YOUNG], NeededWal(100, is_of_cuts=True)),
        ([BASE, LATER], [MOVED], NeededWal(300, is_of_cuts=True)),
        ([BASE, LATER], [YOUNG, MOVED], NeededWal(100, is_of_cuts=True)),
        ([BASE, LATER], [index_of(950, horizon_lsn=960)], NeededWal(900, is_of_cuts=False)),
        ([backup(50), BASE], [MOVED], NeededWal(50, is_of_cuts=False)),
        ([LATER], [MOVED], NeededWal(300, is_of_cuts=True)),  # its base is missing; cuts count
        ([BASE, LATER], [index_of(950, horizon_lsn=970, base=LATER), MOVED],
         NeededWal(300, is_of_cuts=True)),
    ],
)  # fmt: skip
def test_the_least_need_decides(
    backups: list[Backup], indices: list[PageIndex], expected: NeededWal | None
) -> None:
    assert oldest_needed(backups, indices) == expected


def test_a_missing_base_of_all_cuts_is_an_error() -> None:
    with pytest.raises(PageserverError, match="of the pageserver's cuts is missing"):
        oldest_needed([LATER], [YOUNG])


@pytest.fixture
def archive(tmp_path: Path) -> TimelineArchive:
    facts = ArchivedTimeline(7, 150018, 1 << 20, 1, 0)
    made = TimelineArchive.create(LocalStore(str(tmp_path)), TIMELINE, facts)
    BackupCatalog(made).add(BASE)
    return made


def put(archive: TimelineArchive, suffix: Suffix, index: PageIndex) -> str:
    key = PageKeys(TIMELINE).key(IndexName(suffix, 1))
    archive.store.create(key, encode_index(index))
    return key


def test_an_index_of_an_older_suffix_counts_while_it_exists(
    archive: TimelineArchive,
) -> None:
    put(archive, NEW, MOVED)
    assert needed_wal(archive) == NeededWal(300, is_of_cuts=True)
    key = put(archive, OLD, YOUNG)
    assert needed_wal(archive) == NeededWal(100, is_of_cuts=True)
    archive.store.delete(key)
    archive.store.put(PageKeys(TIMELINE).prefix + "index/of-a-stranger", b"?")
    assert needed_wal(archive) == NeededWal(300, is_of_cuts=True)


@pytest.mark.parametrize("suffix", [OLD, NEW])
def test_an_unreadable_index_is_an_error(archive: TimelineArchive, suffix: Suffix) -> None:
    """Any of them: a reader may choose another index, so none is ignored."""
    keys = {each: put(archive, each, MOVED) for each in (OLD, NEW)}
    whole = archive.store.get(keys[suffix])
    for damaged in (b"", whole[:-1], whole[:20] + bytes([whole[20] ^ 1]) + whole[21:]):
        archive.store.put(keys[suffix], damaged)
        with pytest.raises(PageserverError, match="could not determine which WAL") as error:
            needed_wal(archive)
        assert keys[suffix] in str(error.value)
        assert isinstance(error.value.__cause__, ObjectDamaged)
        assert error.value.hint
