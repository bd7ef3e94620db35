"""`IcebergTable`: the metadata of one Iceberg table, in the layout of Iceberg's Hadoop tables.

    shop.orders/metadata/v7.metadata.json         its columns and its snapshots
    shop.orders/metadata/version-hint.text        7, the newest of these files
    shop.orders/metadata/snap-17-8b1f90ab.avro    snapshot 17: a list of one manifest
    shop.orders/metadata/17-8b1f90ab-m0.avro      its manifest, with the files of the table

Laws. `vN.metadata.json` is created, never replaced, after all files that it names. A snapshot stays
for as long as the files that it names, then it is removed, and its metadata is deleted. A table is
a new one, with another UUID and no older snapshots, if its columns change in a way that Iceberg
does not allow, or if it was moved. Source: `HadoopTableOperations.java` of apache/iceberg.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import quote
from uuid import uuid4

import msgspec

from quorum_wal.objectstore.store import ObjectStore
from quorum_wal.spark.errors import MirrorError
from quorum_wal.spark.mirror.iceberg_manifest import (
    ManifestEntry,
    Status,
    encode_manifest,
    encode_manifest_list,
    summary_of,
)
from quorum_wal.spark.mirror.iceberg_metadata import (
    KEPT_MS,
    IcebergField,
    IcebergSchema,
    Snapshot,
    TableMetadata,
    decode_metadata,
    new_table,
)
from quorum_wal.spark.mirror.version import MirrorFile

#: Old metadata is deleted after so many new snapshots.
CLEAN_EVERY = 20

_METADATA = re.compile(r"v([0-9]+)\.metadata\.json")
_OF_SNAPSHOT = re.compile(r"(?:snap-)?([0-9]+)-[0-9a-f]{8}(?:-m0)?\.avro")


@dataclass(frozen=True, slots=True)
class _Head:
    """The newest `vN.metadata.json`. `number` is N, `url` where it is."""

    number: int
    url: str
    metadata: TableMetadata


class IcebergTable:
    """`location` is the URL of the mirror, `name` the table's. Every method raises MirrorError,
    ObjectStoreError; then the object must not be used again."""

    def __init__(self, store: ObjectStore, location: str, name: str) -> None:
        self._store = store
        self._mirror = location
        self._location = f"{location}/{quote(name, safe='.')}"
        self._folder = f"{quote(name, safe='.')}/metadata/"
        self._head = self._newest()

    @property
    def snapshot_id(self) -> int | None:
        """The current snapshot; None if the table does not exist at this location."""
        if self._head is None or self._head.metadata.location != self._location:
            return None
        return self._head.metadata.current_snapshot_id

    def commit(
        self,
        fields: tuple[IcebergField, ...],
        old: Sequence[MirrorFile] | None,
        new: Sequence[MirrorFile],
        snapshot_id: int,
        properties: dict[str, str],
        now_ms: int,
    ) -> None:
        """Creates a snapshot with the columns `fields` and the files `new`. `old` are those of the
        current snapshot; None if they are not known. `properties` are for the summary."""
        before = None
        if old is not None and self._head is not None and self._head.metadata.continues(fields):
            before = self._head
        base = before.metadata if before else new_table(self._location, snapshot_id)
        schema = base.schema_for(fields)
        entries = self._entries(old or () if before else (), new, snapshot_id, base.first_version)
        snapshot = Snapshot(
            snapshot_id=snapshot_id,
            parent_snapshot_id=base.current_snapshot_id or msgspec.UNSET,  # ids begin with 1
            sequence_number=snapshot_id,
            timestamp_ms=max(now_ms, base.last_updated_ms),
            manifest_list=self._put_snapshot(
                entries, snapshot_id, base.current_snapshot_id, schema
            ),
            schema_id=schema.schema_id,
            summary=summary_of(entries) | properties,
        )
        made = base.following(schema, snapshot, before.url if before else None)
        number = 1 if self._head is None else self._head.number + 1
        key = f"{self._folder}v{number}.metadata.json"
        if not self._store.create(key, msgspec.json.encode(made)):
            raise MirrorError(
                f"{key} exists already",
                hint="Another process writes this mirror, or another program wrote the table.",
            )
        self._head = _Head(number, self._url(key), made)

    def point(self) -> None:
        """Names the newest metadata for readers."""
        assert self._head is not None, "nothing was committed"
        self._store.put(f"{self._folder}version-hint.text", str(self._head.number).encode())

    def clean(self, now_ms: int) -> None:
        """Deletes the metadata that the table does not name any more, after CLEAN_EVERY commits."""
        if self._head is None or self._head.number % CLEAN_EVERY:
            return
        metadata = self._head.metadata
        oldest_id = metadata.snapshots[0].snapshot_id
        oldest_number = self._head.number - len(metadata.metadata_log)
        old = []
        for info in self._store.list(self._folder):
            name = info.key.removeprefix(self._folder)
            found, of_snapshot = _METADATA.fullmatch(name), _OF_SNAPSHOT.fullmatch(name)
            is_unnamed = (found is not None and int(found[1]) < oldest_number) or (
                of_snapshot is not None and int(of_snapshot[1]) < oldest_id
            )
            if is_unnamed and info.modified_at.timestamp() * 1000 < now_ms - KEPT_MS:
                old.append(info.key)
        if old:
            self._store.delete_many(old)

    def _newest(self) -> _Head | None:
        names = (info.key.removeprefix(self._folder) for info in self._store.list(self._folder))
        numbers = [int(found[1]) for name in names if (found := _METADATA.fullmatch(name))]
        if not numbers:
            return None
        key = f"{self._folder}v{max(numbers)}.metadata.json"
        return _Head(max(numbers), self._url(key), decode_metadata(self._store.get(key), key))

    def _entries(
        self,
        old: Sequence[MirrorFile],
        new: Sequence[MirrorFile],
        snapshot_id: int,
        first_version: int,
    ) -> list[ManifestEntry]:
        """The manifest of the snapshot that replaces the files `old` by `new`."""
        before, after = ({file.path: file for file in files} for files in (old, new))
        entries = []
        for path, file in sorted({**before, **after}.items()):
            added_by = max(file.version, first_version)
            if path not in before:
                status, added_by = Status.ADDED, snapshot_id
            else:
                status = Status.EXISTING if path in after else Status.DELETED
            entries.append(ManifestEntry(status, file, self._url(path), added_by))
        return entries

    def _put_snapshot(
        self,
        entries: Sequence[ManifestEntry],
        snapshot_id: int,
        parent_id: int | None,
        schema: IcebergSchema,
    ) -> str:
        """Writes the manifest and the list of manifests; returns the URL of the list."""
        name = f"{snapshot_id}-{uuid4().hex[:8]}"
        manifest, manifests = f"{self._folder}{name}-m0.avro", f"{self._folder}snap-{name}.avro"
        data = encode_manifest(entries, snapshot_id, schema) if entries else b""
        if entries:
            self._store.put(manifest, data)
        url = self._url(manifest)
        listed = encode_manifest_list(url, len(data), entries, snapshot_id, parent_id)
        self._store.put(manifests, listed)
        return self._url(manifests)

    def _url(self, key: str) -> str:
        return f"{self._mirror}/{key}"
