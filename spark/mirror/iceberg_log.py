"""`IcebergLog`: the tables of a mirror as Iceberg tables. Its files are those of the mirror.

    shop.orders/metadata/...    the metadata of a table (`IcebergTable`)
    _mirror/iceberg.json        the last version that is published

Laws: those of `TableLog`. A version is at most one snapshot of a table, and the id of the snapshot
is the number of the version. Metadata has absolute URLs: if the mirror was moved, all of its tables
are written as new ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import urlsplit

from quorum_wal.objectstore.errors import ObjectNotFound
from quorum_wal.objectstore.store import ObjectStore
from quorum_wal.pgwal.lsn import format_lsn
from quorum_wal.spark.errors import MirrorError
from quorum_wal.spark.mirror.iceberg_metadata import iceberg_fields
from quorum_wal.spark.mirror.iceberg_table import IcebergTable
from quorum_wal.spark.mirror.table_columns import columns_of
from quorum_wal.spark.mirror.table_log import TableLog, check_order, tables_of
from quorum_wal.spark.mirror.version import MirrorFile, MirrorTable, Version, Versions

PUBLISHED = "_mirror/iceberg.json"
#: the stores whose URLs readers of Iceberg know
SCHEMES = ("s3", "gs")


class IcebergLog(TableLog):
    """Used by one thread. Every method raises MirrorError, ObjectStoreError."""

    def __init__(self, versions: Versions) -> None:
        super().__init__(versions, PUBLISHED, location_of(versions.store))
        self._tables: dict[str, IcebergTable] = {}

    def _commit(
        self,
        name: str,
        old: MirrorTable | None,
        new: MirrorTable | None,
        version: Version,
        now_ms: int,
    ) -> None:
        # After an error its metadata is read again.
        table = self._tables.pop(name, None) or IcebergTable(self._store, self._location, name)
        check_order(name, table.snapshot_id, version)
        if table.snapshot_id != version.number:
            definition = (new or old or MirrorTable({})).definition
            table.commit(
                iceberg_fields(columns_of(definition, is_text=self._is_text)),
                self._listed(name, old, table),
                () if new is None else new.files,
                version.number,
                _properties(version),
                now_ms,
            )
        table.point()
        table.clean(now_ms)
        self._tables[name] = table

    def _listed(
        self, name: str, old: MirrorTable | None, table: IcebergTable
    ) -> Sequence[MirrorFile] | None:
        """The files of the table's current snapshot; None if they are not known."""
        if table.snapshot_id is None:
            return None
        if self._published is None or self._published.number < table.snapshot_id:
            # A process was killed before it published all tables of that version.
            try:
                old = tables_of(self._versions.numbered(table.snapshot_id)).get(name)
            except ObjectNotFound:
                return None
        return () if old is None else old.files


def location_of(store: ObjectStore) -> str:
    """The URL of the store in the metadata. Raises MirrorError."""
    url = store.url.rstrip("/")
    if urlsplit(url).scheme in SCHEMES:
        return url
    if not url.startswith("/") or "?" in url or "#" in url:
        raise MirrorError(
            f'Iceberg tables cannot be in "{store.url}"',
            hint='Name a folder without "?" and "#", s3:// or gs://.',
        )
    return f"file://{url}"


def _properties(version: Version) -> dict[str, str]:
    """What the summary of a snapshot says about the version."""
    found = {"quorum-wal.position": format_lsn(version.position)}
    if version.commit_time is not None:
        found["quorum-wal.commit-time"] = version.commit_time.isoformat()
    return found
