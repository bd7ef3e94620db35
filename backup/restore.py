"""A backup unpacked, and told how to recover: the data directory that a server is started on."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from backup.backup_catalog import BackupCatalog
from backup.backup_record import Backup
from backup.recovery_settings import AUTO_CONF, SignalFile, with_settings
from backup.restore_plan import RestorePlan
from backup.unpack import Unpacking
from storage import durable

VERSION_FILE = "PG_VERSION"  # of the owner and the mode that all files of the server have


def restore(
    catalog: BackupCatalog,
    plan: RestorePlan,
    unpacking: Unpacking,
    signal: SignalFile,
    settings: Mapping[str, str],
    unpack: Callable[[Backup, Unpacking], None] | None = None,
) -> None:
    """`unpack` writes the files of the plan's backup, unless it is in the catalog. Raises
    BackupError, ObjectStoreError, StorageError, and what `unpack` raises; what it has written then
    cannot start, or cannot recover."""
    if unpack is not None:
        unpack(plan.backup, unpacking)
    else:
        unpacking.run(catalog, plan.backup)
    folder = unpacking.data_dir
    auto_conf = folder / AUTO_CONF
    text = with_settings(auto_conf.read_text() if auto_conf.exists() else "", settings)
    # The settings first: a server that finds the signal finds them, too.
    for name, content in ((AUTO_CONF, text), (signal.value, "")):
        durable.replace_file(folder / name, content.encode(), like=folder / VERSION_FILE)
