"""Which files are complete: those in the set, those created by the WAL, and no others."""

from __future__ import annotations

from dataclasses import replace

import pytest

from quorum_wal.pageserver.epochs.file_set import FileSet, copied_from
from quorum_wal.pageserver.layers.fork import DEFAULT_TABLESPACE, GLOBAL_TABLESPACE, Fork, ForkKind
from quorum_wal.pageserver.layers.fork_table import ForkTable
from quorum_wal.pageserver.layers.touches import Database, Touches

SHOP, OTHER = 5, 6
NOTHING = Touches(0, 0, (), {}, frozenset(), frozenset(), (), (), (), 0, ())


def fork(number: int, database: int = SHOP, kind: ForkKind = ForkKind.MAIN) -> Fork:
    return Fork(DEFAULT_TABLESPACE, database, number, kind)


GLOBAL = Fork(GLOBAL_TABLESPACE, 0, 1262, ForkKind.MAIN)
FORKS = ForkTable({
    GLOBAL: 1, fork(100): 10, fork(100, kind=ForkKind.VM): 1, fork(200): 999,
    fork(300, kind=ForkKind.INIT): 0, fork(100, OTHER): 7,
})  # fmt: skip
FILES = FileSet(FORKS).more({(SHOP, 100), (SHOP, 300), (SHOP, 400)})


def test_members_are_named_files_and_shared_catalogs() -> None:
    expected = [GLOBAL, fork(100), fork(100, kind=ForkKind.VM), fork(300, kind=ForkKind.INIT)]
    assert sorted(FILES.members()) == sorted(expected)
    assert FILES.page_count() == 12
    whole = FileSet(FORKS).more((), [Database(DEFAULT_TABLESPACE, OTHER)])
    assert list(whole.members()) == sorted([GLOBAL, fork(100, OTHER)])


@pytest.mark.parametrize(
    ("wanted", "is_complete"),
    [
        (GLOBAL, True),
        (fork(100), True),
        (fork(300), True),  # unlogged: created again at the end of recovery
        (fork(200), False),  # exists at the cut, but is not in the set
        (fork(400), False),  # in the set, but without a file at the cut: the WAL must create it
        (fork(100, OTHER), False),
        (replace(GLOBAL, number=9999), False),
    ],
)
def test_files_not_created_by_the_wal(wanted: Fork, is_complete: bool) -> None:
    assert FILES.is_complete(wanted, NOTHING) is is_complete


def test_a_file_created_by_the_wal() -> None:
    made = replace(NOTHING, limits={fork(200): 0, fork(400): 3})
    assert FILES.is_complete(fork(200), made)
    assert not FILES.is_complete(fork(400), made), "shorter, but not empty"


def test_a_database_created_by_the_wal() -> None:
    copy, between, source = (Database(DEFAULT_TABLESPACE, oid) for oid in (9, 8, SHOP))
    wanted = fork(100, 9)
    logged = replace(NOTHING, fresh_databases=frozenset({copy}))
    assert FILES.is_complete(wanted, logged)
    copied = replace(logged, copied_databases=((source, between), (between, copy)))
    assert not FILES.is_complete(wanted, copied)
    assert copied_from(copied, [9]) == {between, source}
    assert FILES.more((), copied_from(copied, [9])).is_complete(wanted, copied)
    assert copied_from(copied, [SHOP]) == frozenset()
