"""File positions of a base backup: encoded, stored beside the backup, and damaged."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from quorum_wal.backup.backup_catalog import BackupCatalog
from quorum_wal.backup.backup_record import Backup
from quorum_wal.consensus.ids import TimelineId
from quorum_wal.objectstore.archive import ArchivedTimeline, TimelineArchive
from quorum_wal.objectstore.local import LocalStore
from quorum_wal.pageserver.errors import LayerDamaged
from quorum_wal.pageserver.layers.backup_base import BackupFiles, FilePlace
from quorum_wal.pageserver.layers.base_cache import (
    decode_places,
    encode_places,
    store_places,
    stored_places,
)
from quorum_wal.pageserver.layers.fork import DEFAULT_TABLESPACE, Fork, ForkKind

NOW = datetime(2026, 11, 25, tzinfo=UTC)
FILES = BackupFiles({
    (Fork(DEFAULT_TABLESPACE, 5, 16384, ForkKind.MAIN), 1): FilePlace(0, 1 << 40, 8192),
    (Fork(DEFAULT_TABLESPACE, 5, 1259, ForkKind.VM), 0): FilePlace(1, 512, 0),
})  # fmt: skip
BACKUP = Backup(
    backup_id="20261125T000000.000Z-0000000005000028", label="", system_id=7, pg_version=150000,
    start_lsn=1, start_tli=1, stop_lsn=2, stop_tli=1, started_at=NOW, stopped_at=NOW,
    from_standby=False, archives=(),
)  # fmt: skip


def test_positions_are_stored_and_deleted_with_the_backup(tmp_path: Path) -> None:
    facts = ArchivedTimeline(7, 150000, 1 << 24, 1, 0)
    timeline = TimelineId(bytes(16), bytes(16))
    archive = TimelineArchive.create(LocalStore(str(tmp_path)), timeline, facts)
    catalog = BackupCatalog(archive)
    catalog.add(BACKUP)
    assert stored_places(catalog, BACKUP) is None
    store_places(catalog, BACKUP, FILES)
    store_places(catalog, BACKUP, FILES)
    assert stored_places(catalog, BACKUP) == FILES
    (path,) = tmp_path.glob("*/*/backups/*/places")
    path.write_bytes(path.read_bytes()[1:])
    assert stored_places(catalog, BACKUP) is None
    catalog.delete(BACKUP.backup_id)
    assert not path.exists()


def test_damage_is_an_error() -> None:
    packed = encode_places(FILES)
    assert decode_places(packed) == FILES
    with pytest.raises(LayerDamaged):
        decode_places(packed[:-1])
    below = BackupFiles({key: FilePlace(0, -1, 0) for key in FILES.places})
    with pytest.raises(LayerDamaged, match="-1"):
        decode_places(encode_places(below))
