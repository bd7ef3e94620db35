"""`TableLog`: the base of `DeltaLog` and `IcebergLog`, which describe a mirror for other readers.

    _mirror/delta.json                  the last version that is published
    {"version":17,"location":"..."}

Laws. A log follows from the versions of the mirror: a version is created first, then published. If
a process is killed in between, the next one publishes the version, and each table has it once. A
partition is a table of its own; a partitioned table is not written. A dropped table becomes an
empty one.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod

from quorum_wal.objectstore.errors import ObjectNotFound
from quorum_wal.spark.errors import MirrorError
from quorum_wal.spark.mirror.version import MirrorTable, Version, Versions


class TableLog(ABC):
    """Used by one thread. `published_key` names the last version that is published. If `location`
    is not the one of that version, all tables are published again. Every method raises MirrorError,
    ObjectStoreError."""

    def __init__(self, versions: Versions, published_key: str, location: str = "") -> None:
        self._versions = versions
        self._store = versions.store
        self._is_text = versions.job().is_text
        self._published_key = published_key
        self._location = location
        self._published: Version | None = None

    def publish(self, version: Version, now_ms: int) -> None:
        """Commits what changed since the last version that was published. `now_ms` is the time of
        the commits, in milliseconds since 1970."""
        before = self._published = self._published or self._last()
        old = {} if before is None else tables_of(before)
        new = tables_of(version)
        for name in sorted({*old, *new}):
            if old.get(name) != new.get(name):
                self._commit(name, old.get(name), new.get(name), version, now_ms)
        if before is None or before.number != version.number:
            pointer = {"version": version.number, "location": self._location}
            self._store.put(self._published_key, json.dumps(pointer).encode())
        self._published = version

    @abstractmethod
    def _commit(
        self,
        name: str,
        old: MirrorTable | None,
        new: MirrorTable | None,
        version: Version,
        now_ms: int,
    ) -> None:
        """Commits one table. `old` is its state in the last version that was published; `new` is
        None if `version` has no such table. A process that was killed may have committed it."""

    def _last(self) -> Version | None:
        try:
            pointer = json.loads(self._store.get(self._published_key))
            number, location = int(pointer["version"]), pointer.get("location", "")
        except ObjectNotFound:
            return None
        except (ValueError, KeyError, TypeError) as error:
            raise MirrorError(f'"{self._published_key}" is damaged: {error}') from error
        return self._versions.numbered(number) if location == self._location else None


def tables_of(version: Version) -> dict[str, MirrorTable]:
    return {table.name: table for table in version.tables if not table.is_partitioned}


def check_order(name: str, published: int | None, version: Version) -> None:
    """`published` is the version that the log of the table has. Raises MirrorError."""
    if published is not None and published > version.number:
        raise MirrorError(
            f"the log of {name} has version {published} already, and version {version.number} "
            "is published",
            hint="Another process writes this mirror. Stop one of them.",
        )
