"""The data directory of one safekeeper: whose it is, that one process has it, what lies where.

DIR/safekeeper.json                         {"format": 2, "safekeeper_id": 1, "instance": "hex"}
DIR/lock                                    held while a process runs
DIR/timelines/<tenant>.<timeline>/control
DIR/timelines/<tenant>.<timeline>/wal/...
DIR/tombstones/<tenant>.<timeline>          a deleted timeline: its name is never used again

The instance is drawn when the directory is made: a disk that was lost, and replaced by an empty one
under the same id, is another safekeeper, and this is how others tell.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
from dataclasses import dataclass
from pathlib import Path

import msgspec

from consensus.errors import MessageError
from consensus.ids import TimelineId, parse_id
from consensus.membership import INSTANCE_BYTES
from safekeeper.control_file import CONTROL_FILE_NAME
from safekeeper.errors import DataDirError, TimelineError
from storage import durable
from storage.errors import StorageError

FORMAT = 2
#: Without an instance; one is drawn when it is opened.
FORMAT_1 = 1
LOST_AND_FOUND = "lost+found"  # of a file system that begins here

IDENTITY_FILE = "safekeeper.json"


class Identity(msgspec.Struct, frozen=True):
    """safekeeper.json"""

    format: int
    safekeeper_id: int
    instance: str = ""


@dataclass(frozen=True, slots=True)
class DiskSpace:
    total_bytes: int
    free_bytes: int


class DataDirectory:
    """Opened once per process; raises DataDirError when it is somebody else's."""

    def __init__(self, path: Path, safekeeper_id: int) -> None:
        self.path = path
        self.safekeeper_id = safekeeper_id
        try:
            if not (path / IDENTITY_FILE).exists():  # else it was made, and its name is durable
                durable.make_directory(path)
            self._lock_fd = os.open(path / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        except StorageError as error:
            raise DataDirError(f'could not open data directory "{path}": {error}') from error
        except OSError as error:
            raise DataDirError(
                f'could not open data directory "{path}": {error.strerror}'
            ) from error
        self._take_lock()
        #: 8 random bytes.
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
        """The instance. Raises DataDirError, StorageError."""
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
                hint="It was written by another release; run that release.",
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
        """The folders of all timelines; an interrupted creation or deletion is swept away. One with
        another name is among them: a timeline was in it, or a mistake is."""
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
        """The tombstone first: from then on the timeline does not exist, whatever happens."""
        durable.replace_file(self.tombstones / folder_name(timeline), b"")
        try:
            shutil.rmtree(self.folder(timeline), ignore_errors=False)
        except OSError as error:
            raise StorageError(f"could not remove {error.filename}: {error.strerror}") from error
        durable.sync_directory(self.timelines)

    def remove_log(self, timeline: TimelineId) -> None:
        """All that one that has left does not need, durably: everything but its control file. What
        is gone already is fine. Raises StorageError."""
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
        hint="If other members have it, this one lost its data: it must be replaced by a new id.",
    )
