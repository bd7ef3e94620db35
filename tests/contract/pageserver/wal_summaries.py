"""The blocks in Postgres' own WAL summaries (17 and newer): another check of touched pages. The
survey must contain each of them.

The summaries lack blocks of the survey: pages of visibility maps whose bits a record clears.
"""

from __future__ import annotations

from page_world import TIMEOUT, PageWorld

from quorum_wal.pageserver.layers.fork import Fork, ForkKind
from quorum_wal.pageserver.layers.touches import Touches
from quorum_wal.pg_fixtures.postgres import Postgres
from quorum_wal.pg_fixtures.waiting import wait_until

SUMMARIES_SINCE = 17  # major version

Blocks = set[tuple[Fork, int]]


def is_summarizing(server: Postgres) -> bool:
    """Whether summarize_wal is on; before version 17 there is no such setting."""
    return server.execute("SELECT current_setting('summarize_wal', true)") == [("on",)]


def summarized_blocks(world: PageWorld, begin_lsn: int, redo_lsn: int, tli: int) -> Blocks:
    """The blocks of the summaries within [begin_lsn, redo_lsn), which end at `redo_lsn`."""
    primary = world.primary
    until = f"'0/0'::pg_lsn + {redo_lsn}"
    is_there = f"SELECT summarized_lsn >= {until} FROM pg_get_wal_summarizer_state()"
    wait_until(lambda: primary.execute(is_there)[0][0], TIMEOUT, "the WAL to be summarized")
    rows = primary.execute(
        "SELECT reltablespace, reldatabase, relfilenode, relforknumber, relblocknumber"
        " FROM pg_available_wal_summaries() s, pg_wal_summary_contents(s.tli, start_lsn, end_lsn)"
        f" WHERE s.tli = {tli} AND NOT is_limit_block"
        f" AND start_lsn >= '0/0'::pg_lsn + {begin_lsn} AND end_lsn <= {until}"
    )
    return {
        (Fork(int(space), int(database), int(number), ForkKind(kind)), int(block))
        for space, database, number, kind, block in rows
    }


def missing_blocks(touches: Touches, summarized: Blocks) -> Blocks:
    """The blocks missing in the survey. Free space maps are in no layer."""
    ours = {(each.fork, int(block)) for each in touches.pages for block in each.blocks}
    return {found for found in summarized - ours if found[0].kind is not ForkKind.FSM}
