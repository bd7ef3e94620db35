"""Unpacks a backup and writes its recovery settings: a data directory ready to be started."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from quorum_wal.backup.backup_catalog import BackupCatalog
from quorum_wal.backup.backup_record import Backup
from quorum_wal.backup.recovery_settings import AUTO_CONF, SignalFile, with_settings
from quorum_wal.backup.restore_plan import RestorePlan
from quorum_wal.backup.unpack import Unpacking
from quorum_wal.storage import durable

VERSION_FILE = "PG_VERSION"  # it has the owner and the mode of all files of the server


def restore(
    catalog: BackupCatalog,
    plan: RestorePlan,
    unpacking: Unpacking,
    signal: SignalFile,
    settings: Mapping[str, str],
    unpack: Callable[[Backup, Unpacking], None] | None = None,
) -> None:
    """`unpack` writes the files of the plan's backup; None unpacks it from the catalog. Raises
    BackupError, ObjectStoreError, StorageError, and the errors of `unpack`. After an error, the
    files in the folder cannot start, or cannot recover."""
    if unpack is not None:
        unpack(plan.backup, unpacking)
    else:
        unpacking.run(catalog, plan.backup)
    folder = unpacking.data_dir
    auto_conf = folder / AUTO_CONF
    text = with_settings(auto_conf.read_text() if auto_conf.exists() else "", settings)
    # The settings first: a server that finds the signal file then also finds the settings.
    for name, content in ((AUTO_CONF, text), (signal.value, "")):
        durable.replace_file(folder / name, content.encode(), like=folder / VERSION_FILE)
