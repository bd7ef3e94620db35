"""The data directory of one safekeeper: its identity, its lock, and its layout.

DIR/safekeeper.json                         {"format": 2, "safekeeper_id": 1, "instance": "hex"}
DIR/lock                                    held while a process runs
DIR/timelines/<tenant>.<timeline>/control
DIR/timelines/<tenant>.<timeline>/wal/...
DIR/tombstones/<tenant>.<timeline>          a deleted timeline: its name is never used again


The instance is drawn when the directory is created. If a disk is lost and replaced by an empty one
under the same id, the instance differs: it is another safekeeper, and the others detect that.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
from dataclasses import dataclass
from pathlib import Path

import msgspec

from quorum_wal.consensus.errors import MessageError
from quorum_wal.consensus.ids import TimelineId, parse_id
from quorum_wal.consensus.membership import INSTANCE_BYTES
from quorum_wal.safekeeper.control_file import CONTROL_FILE_NAME
from quorum_wal.safekeeper.errors import DataDirError, TimelineError
from quorum_wal.storage import durable
from quorum_wal.storage.errors import StorageError

FORMAT = 2
#: Has no instance; one is drawn when the directory is opened.
FORMAT_1 = 1
LOST_AND_FOUND = "lost+found"  # in the root of a file system

IDENTITY_FILE = "safekeeper.json"


class Identity(msgspec.Struct, frozen=True):
    """The content of safekeeper.json."""

    format: int
    safekeeper_id: int
    instance: str = ""


@dataclass(frozen=True, slots=True)
class DiskSpace:
    total_bytes: int
    free_bytes: int


class DataDirectory:
    """Opened once per process. Raises DataDirError if it is locked or not this safekeeper's."""

    def __init__(self, path: Path, safekeeper_id: int) -> None:
        self.path = path
        self.safekeeper_id = safekeeper_id
        try:
            if not (path / IDENTITY_FILE).exists():  # otherwise its name is durable already
                durable.make_directory(path)
            self._lock_fd = os.open(path / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        except StorageError as error:
            raise DataDirError(f'could not open data directory "{path}": {error}') from error
        except OSError as error:
            raise DataDirError(
                f'could not open data directory "{path}": {error.strerror}'
            ) from error
        self._take_lock()
        #: INSTANCE_BYTES random bytes.
        self.instance = self._open_identity()
        for folder in (self.timelines, self.tombstones):
            durable.make_directory(folder)

    @property
    def timelines(self) -> Path:
        return self.path / "timelines"

    @property
    def tombstones(self) -> Path:
        return self.path / "tombstones"

    def _take_lock(self) -> None:
        try:
            fcntl.flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(self._lock_fd)
            raise DataDirError(
                f'data directory "{self.path}" is in use by another process',
                hint="Stop the other safekeeper, or give this one its own --data-dir.",
            ) from error

    def _open_identity(self) -> bytes:
        """Returns the instance. Raises DataDirError, StorageError."""
        file = self.path / IDENTITY_FILE
        if not file.exists():
            if set(os.listdir(self.path)) - {"lock", LOST_AND_FOUND, file.name + ".tmp"}:
                raise DataDirError(
                    f'"{self.path}" is neither empty nor a safekeeper\'s data directory',
                    hint="Choose an empty or a new directory.",
                )
            return self._draw_instance(file)
        try:
            found = msgspec.json.decode(file.read_bytes(), type=Identity)
        except (OSError, msgspec.DecodeError) as error:
            raise DataDirError(f'could not read "{file}": {error}') from error
        self._check_identity(found)
        if found.format == FORMAT_1:
            return self._draw_instance(file)
        try:
            instance = bytes.fromhex(found.instance)
        except ValueError:
            instance = b""
        if len(instance) != INSTANCE_BYTES:
            raise DataDirError(
                f'could not read "{file}": instance "{found.instance[:40]}" is not '
                f"{INSTANCE_BYTES} bytes in hex"
            )
        return instance

    def _draw_instance(self, file: Path) -> bytes:
        instance = secrets.token_bytes(INSTANCE_BYTES)
        identity = Identity(FORMAT, self.safekeeper_id, instance.hex())
        durable.replace_file(file, msgspec.json.encode(identity))
        return instance

    def _check_identity(self, found: Identity) -> None:
        if found.format not in (FORMAT_1, FORMAT):
            raise DataDirError(
                f'data directory "{self.path}" has format {found.format}, expected {FORMAT}',
                hint="Another release wrote it; run that release.",
            )
        if found.safekeeper_id != self.safekeeper_id:
            raise DataDirError(
                f'data directory "{self.path}" belongs to safekeeper {found.safekeeper_id}, '
                f"not {self.safekeeper_id}",
                hint=f"Start it with --id {found.safekeeper_id}, or choose another directory.",
            )

    def close(self) -> None:
        os.close(self._lock_fd)

    # ---- timelines

    def folder(self, timeline: TimelineId) -> Path:
        return self.timelines / folder_name(timeline)

    def existing(self) -> list[Path]:
        """The folders of all timelines. Removes the remains of an interrupted creation or deletion.
        Includes folders with invalid names: one may be a renamed timeline."""
        folders = []
        for entry in sorted(self.timelines.iterdir()):
            if entry.name.endswith(".tmp") or (self.tombstones / entry.name).exists():
                shutil.rmtree(entry)
            elif parse_folder_name(entry.name) is not None or (
                entry.is_dir() and entry.name != LOST_AND_FOUND
            ):
                folders.append(entry)
        return folders

    def has_tombstone(self, timeline: TimelineId) -> bool:
        return (self.tombstones / folder_name(timeline)).exists()

    def delete(self, timeline: TimelineId) -> None:
        """Writes the tombstone first: from then on the timeline does not exist, even after a
        crash."""
        durable.replace_file(self.tombstones / folder_name(timeline), b"")
        try:
            shutil.rmtree(self.folder(timeline), ignore_errors=False)
        except OSError as error:
            raise StorageError(f"could not remove {error.filename}: {error.strerror}") from error
        durable.sync_directory(self.timelines)

    def remove_log(self, timeline: TimelineId) -> None:
        """Durably removes everything but the control file of a timeline that was left. May be
        repeated. Raises StorageError."""
        folder = self.folder(timeline)
        with durable.storage_errors(folder, "read"):
            folders = [folder, *sorted(p for p in folder.iterdir() if p.is_dir())]
            files = {path: sorted(p for p in path.iterdir() if p.is_file()) for path in folders}
        for path in reversed(folders):
            for file in files[path]:
                if file != folder / CONTROL_FILE_NAME:
                    durable.remove_file(file)
            durable.sync_directory(path)

    def disk_space(self) -> DiskSpace:
        stat = os.statvfs(self.path)
        return DiskSpace(stat.f_blocks * stat.f_frsize, stat.f_bavail * stat.f_frsize)


def folder_name(timeline: TimelineId) -> str:
    return f"{timeline.tenant_id.hex()}.{timeline.timeline_id.hex()}"


def parse_folder_name(name: str) -> TimelineId | None:
    tenant, _, timeline = name.partition(".")
    try:
        return TimelineId(parse_id(tenant, "tenant id"), parse_id(timeline, "timeline id"))
    except MessageError:
        return None


def no_such_timeline(timeline: TimelineId) -> TimelineError:
    return TimelineError(
        f"no such timeline {timeline}",
        hint="If other members have it, this one lost its data: replace it by one with a new id.",
    )
