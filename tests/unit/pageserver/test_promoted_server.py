"""Finds missing pages in the log of a server's replay."""

from __future__ import annotations

from quorum_wal.pageserver.layers.fork import DEFAULT_TABLESPACE, Fork, ForkKind
from quorum_wal.pageserver.pitr.promoted_server import invalid_relations

LOG = """\
2026-11-25 10:00:00.000 UTC [7] WARNING:  page 3 of relation base/5/16400 is uninitialized
2026-11-25 10:00:00.000 UTC [7] CONTEXT:  WAL redo at 0/3000028 for Heap2/VISIBLE: cutoff xid 700
2026-11-25 10:00:00.000 UTC [7] WARNING:  page 0 of relation base/5/16401_vm does not exist
2026-11-25 10:00:00.000 UTC [7] WARNING:  page 9 of relation pg_tblspc/9/PG_15_1/5/7 does not exist
2026-11-25 10:00:00.000 UTC [7] LOG:  redo done at 0/3000100
"""


def test_relations_with_missing_pages() -> None:
    assert invalid_relations(LOG.splitlines()) == {
        Fork(DEFAULT_TABLESPACE, 5, 16400, ForkKind.MAIN),
        Fork(DEFAULT_TABLESPACE, 5, 16401, ForkKind.MAIN),
        Fork(9, 5, 7, ForkKind.MAIN),
    }
    assert invalid_relations([]) == frozenset()
