"""Spreads the folders of tests over the block groups of an ext4 file system.

A new file gets an inode of its folder's group. Without a journal, as on many virtual machines, ext4
does not use an inode again for up to six minutes, and looks at each of these that it passes. Tests
delete thousands of files next to each other, so that a copy of a data folder takes 0.34 s of the
kernel. In a group without deleted files it takes 0.03 s.

A folder below one with the attribute T goes to a group with the fewest folders. So each folder of a
test leaves a mark, an empty folder, in its group, and ext4 takes all other groups before it takes
this one again.
Sources: Linux `fs/ext4/ialloc.c` (`recently_deleted`, `find_group_orlov`), chattr(1).
"""

from __future__ import annotations

import fcntl
import os
import struct
from contextlib import suppress
from pathlib import Path

import pytest

_GET_FLAGS, _SET_FLAGS = 0x80086601, 0x40086602  # linux/fs.h
_TOPDIR = 0x00020000
_FLAGS = struct.Struct("<i4x")

MARKS = ".marks"


def spread_folders(factory: pytest.TempPathFactory) -> None:
    """Makes `factory` spread its folders."""
    base = factory.getbasetemp()
    marks = base / MARKS
    marks.mkdir()
    spread_folders_of(base)
    make_folder = factory.mktemp

    def mktemp(basename: str, numbered: bool = True) -> Path:
        folder = make_folder(basename, numbered)
        mark = folder / MARKS
        mark.mkdir()
        mark.rename(marks / folder.name)  # it stays in its group
        return folder

    factory.mktemp = mktemp  # type: ignore[method-assign]


def spread_folders_of(parent: Path) -> None:
    """Marks `parent` as the top of folders that have nothing to do with each other. Does nothing on
    another file system, or without permission."""
    fd = os.open(parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with suppress(OSError):
            (flags,) = _FLAGS.unpack(fcntl.ioctl(fd, _GET_FLAGS, bytes(_FLAGS.size)))
            fcntl.ioctl(fd, _SET_FLAGS, _FLAGS.pack(flags | _TOPDIR))
    finally:
        os.close(fd)
