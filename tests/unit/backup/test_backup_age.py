"""The age of an unfinished backup is computed from the store's clock, not from its id."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path

from click.testing import CliRunner

from quorum_wal.backup.backup_catalog import BackupCatalog
from quorum_wal.cli.backup import backup as backup_command
from quorum_wal.consensus.ids import TimelineId
from quorum_wal.objectstore.archive import ArchivedTimeline, TimelineArchive
from quorum_wal.objectstore.local import LocalStore

DAY_SECONDS = 86400


def test_one_out_of_an_old_cut_is_not_old(tmp_path: Path) -> None:
    facts = ArchivedTimeline(7, 150000, 1 << 24, 1, 0)
    store = LocalStore(str(tmp_path))
    catalog = BackupCatalog(TimelineArchive.create(store, TimelineId(bytes(16), bytes(16)), facts))
    written, left = (f"20260101T00000{n}.000Z-0000000005000028" for n in (1, 2))
    for backup_id in (written, left):
        store.put(catalog.part_key(backup_id, "base.tar", 1), b"")
    long_ago = datetime.now(UTC).timestamp() - 3 * DAY_SECONDS
    os.utime(tmp_path / catalog.part_key(left, "base.tar", 1), (long_ago, long_ago))
    assert (datetime.now(UTC) - catalog.written_at(left)).days == 3
    pruned = CliRunner().invoke(
        backup_command, ["prune", "--archive", str(tmp_path), "--keep", "1", "--dry-run"]
    )
    assert (pruned.exit_code, written in pruned.output, left in pruned.output) == (0, False, True)
