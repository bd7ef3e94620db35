"""WAL from the archive for a member that lags: damage of the object, or errors of the disk that it
is unpacked on, are reported, and no byte of it is returned."""

from __future__ import annotations

import errno
import os
import shutil
from collections import namedtuple
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from quorum_wal.consensus.ids import TimelineId
from quorum_wal.objectstore.archive import ArchivedTimeline, TimelineArchive
from quorum_wal.objectstore.keys import ArchivedWal
from quorum_wal.objectstore.local import LocalStore
from quorum_wal.objectstore.sealed import SEAL, Codec, Seal, seal
from quorum_wal.safekeeper.archived_wal import IDLE_SECONDS, ArchivedWalReader
from quorum_wal.safekeeper.errors import SafekeeperError
from tests.segment_files import TLI, segment_pieces, timeline_with_segments

SEG_SIZE = 1 << 20
SEGMENTS = (1, 2, 3)
READ_BYTES = 100_000


class World:
    """Three segments in an archive, and a reader of them."""

    def __init__(self, folder: Path) -> None:
        self.seconds = 0.0
        self.timeline = timeline_with_segments(folder / "timeline", SEG_SIZE, len(SEGMENTS))
        self.store = LocalStore(str(folder / "archive"))
        control = self.timeline.control
        server = control.server
        facts = ArchivedTimeline(server.system_id, server.pg_version, SEG_SIZE, TLI, SEG_SIZE)
        self.archive = TimelineArchive.create(self.store, control.timeline, facts)
        for segno in SEGMENTS:
            wal = ArchivedWal(TLI, segno, (segno + 1) * SEG_SIZE)
            self.archive.put_wal_pieces(wal, lambda segno=segno: segment_pieces(segno, SEG_SIZE))
        self.reader = ArchivedWalReader(self.timeline, self.store, lambda: self.seconds)

    @property
    def timeline_id(self) -> TimelineId:
        return self.timeline.control.timeline

    def key(self, segno: int) -> str:
        return self.archive.keys.segment(TLI, segno)

    def read(self, lsn: int) -> bytes:
        return self.reader.read(lsn, READ_BYTES)

    def read_segment(self, segno: int) -> bytes:
        found, lsn = b"", segno * SEG_SIZE
        while len(found) < SEG_SIZE:
            found += self.read(lsn + len(found))
        return found

    def failure(self, lsn: int) -> SafekeeperError:
        with pytest.raises(SafekeeperError, match="could not read WAL at") as e:
            self.read(lsn)
        assert "from the archive: " in str(e.value)
        assert "\n" not in str(e.value)
        return e.value

    def opened(self) -> list[str]:
        """Files without a name on the timeline's disk, by their descriptors."""
        links = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
        found = [link for link in links if os.path.lexists(link)]
        folder = str(self.timeline.directory)
        return [
            link
            for link in found
            if os.readlink(link).startswith(folder) and "(deleted)" in os.readlink(link)
        ]

    def release(self) -> None:
        self.seconds += IDLE_SECONDS
        assert self.reader.release()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    yield world
    world.release()
    assert world.opened() == []


def content(segno: int) -> bytes:
    return b"".join(segment_pieces(segno, SEG_SIZE))


def test_archived_wal_is_read(world: World) -> None:
    """At any position, and in any order; the folder has no more names than before."""
    names = sorted(os.listdir(world.timeline.directory))
    for segno in (*SEGMENTS, 1):
        assert world.read_segment(segno) == content(segno)
        assert len(world.opened()) == 1
    assert sorted(os.listdir(world.timeline.directory)) == names
    for offset in (0, 1, 32767, 32768, 50_001, SEG_SIZE - 1):
        expected = content(2)[offset : offset + READ_BYTES]
        assert world.read(2 * SEG_SIZE + offset) == expected


def test_a_segment_is_fetched_once(world: World) -> None:
    first = world.read(SEG_SIZE)
    world.store.delete(world.key(1))
    assert world.read(SEG_SIZE) == first
    world.release()
    assert world.failure(SEG_SIZE).sqlstate == "58P01"


def test_an_idle_segment_is_removed(world: World) -> None:
    world.read(SEG_SIZE)
    world.seconds += IDLE_SECONDS - 1
    assert not world.reader.release()
    world.read(SEG_SIZE)
    world.seconds += IDLE_SECONDS - 1
    assert not world.reader.release()
    world.seconds += 1
    assert world.reader.release()
    assert world.opened() == []
    assert world.read_segment(1) == content(1)


def _flip(data: bytes) -> bytes:
    damaged = bytearray(data)
    damaged[len(data) // 3] ^= 1
    return bytes(damaged)


def _lie(length: int) -> Callable[[bytes], bytes]:
    """The seal has another length, and a valid checksum."""

    def lie(data: bytes) -> bytes:
        found = Seal.decode(data, "k")
        return data[: -SEAL.size] + Seal(found.codec, length, found.content_crc).encode()

    return lie


def _raw(data: bytes) -> bytes:
    """The seal claims that the frame is the content."""
    found = Seal.decode(data, "k")
    return data[: -SEAL.size] + Seal(Codec.RAW, found.content_length, found.content_crc).encode()


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "a bit": _flip,
    "cut short": lambda data: data[:-40],
    "its middle is missing": lambda data: data[:1000] + data[-SEAL.size :],
    "empty": lambda data: b"",
    "a longer one": _lie(SEG_SIZE + 1),
    "a shorter one": _lie(SEG_SIZE - 1),
    "another codec": _raw,
    "half a segment, sound": lambda data: seal(content(1)[: SEG_SIZE // 2]),
    "more zeros than a segment has": lambda data: (
        seal(bytes(100 * SEG_SIZE))[: -SEAL.size] + data[-SEAL.size :]
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_object_returns_no_byte(world: World, damage: str) -> None:
    """Not even its beginning, which may be valid; another segment can be read."""
    sealed = world.store.get(world.key(1))
    world.store.put(world.key(1), DAMAGES[damage](sealed))
    error = world.failure(SEG_SIZE)
    assert error.sqlstate == "58030"
    assert "is damaged" in str(error)
    assert world.opened() == []
    assert world.read_segment(2) == content(2)
    world.store.put(world.key(1), sealed)
    assert world.read_segment(1) == content(1)


def test_a_raw_object_is_read(world: World) -> None:
    world.store.put(world.key(1), seal(content(1), None))
    assert world.read_segment(1) == content(1)


def test_a_disk_that_changes_what_was_unpacked(world: World) -> None:
    """The damaged block is detected, and the next read fetches the segment again."""
    world.read(SEG_SIZE)
    (opened,) = world.opened()
    with open(opened, "r+b") as file:
        file.seek(SEG_SIZE // 2)
        file.write(b"rot")
    assert world.read(SEG_SIZE) == content(1)[:READ_BYTES]
    error = world.failure(SEG_SIZE + SEG_SIZE // 2)
    assert error.sqlstate == "XX001"
    assert world.opened() == []
    assert world.read_segment(1) == content(1)


def test_a_disk_that_becomes_full(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a segment is unpacked: one error, its space is free again, and the next attempt
    succeeds when there is space. The timeline continues all the time."""
    real, left = os.pwrite, [SEG_SIZE // 2]

    def pwrite(fd: int, data: Any, offset: int) -> int:
        if left[0] < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        left[0] -= len(data)
        return real(fd, data, offset)

    monkeypatch.setattr(os, "pwrite", pwrite)
    error = world.failure(SEG_SIZE)
    assert error.sqlstate == "53100"
    assert "No space left on device" in str(error)
    assert error.hint.startswith("Free some space")
    assert world.opened() == []
    assert world.timeline.is_readable
    left[0] = 10 * SEG_SIZE
    assert world.read_segment(1) == content(1)


def test_room_is_left_for_new_wal(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is unpacked into the space that a timeline needs to resume."""
    Statvfs = namedtuple("Statvfs", ["f_bavail", "f_frsize"])
    needed_bytes = SEG_SIZE + world.timeline.room.bytes_to_resume
    monkeypatch.setattr(os, "statvfs", lambda path: Statvfs(needed_bytes - 1, 1))
    error = world.failure(SEG_SIZE)
    assert error.sqlstate == "53100"
    assert f"{needed_bytes - 1} of the {needed_bytes} bytes" in str(error)
    monkeypatch.setattr(os, "statvfs", lambda path: Statvfs(needed_bytes, 1))
    assert world.read_segment(1) == content(1)


def test_a_store_that_is_missing(world: World, tmp_path: Path) -> None:
    shutil.move(tmp_path / "archive", tmp_path / "elsewhere")
    assert world.failure(SEG_SIZE).sqlstate == "58P01"
    shutil.move(tmp_path / "elsewhere", tmp_path / "archive")
    assert world.read_segment(1) == content(1)
