"""The system calls of this process, in their order: writes, flushes and sends.

    pytest ──runs──> pytest of one test, with call_log.c preloaded ──> CallLog

This also records the calls of compiled code, which calls libc and not Python's functions.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

import pytest

from quorum_wal.pg_fixtures.failing_disk import compile_library
from quorum_wal.pg_server.errors import Unavailable

SOURCE = Path(__file__).with_suffix(".c")
_LOADED = "CALL_LOG_LOADED"


class Call(IntEnum):
    WRITE = 1
    SYNC = 2
    SEND = 3


class AnsweredBeforeFlush(AssertionError):
    """The data was flushed only after the answer was sent."""


class NotFlushed(AssertionError):
    """An answer covers data that was never flushed."""


@dataclass(frozen=True, slots=True)
class Note:
    """`inode` identifies the file; `offset` is the position in it."""

    kind: Call
    inode: int
    offset: int
    count: int


class _Note(ctypes.Structure):
    _fields_ = [(name, ctypes.c_long) for name in ("kind", "inode", "offset", "count")]


class CallLog:
    def __init__(self) -> None:
        library = ctypes.CDLL(None)
        self._count = ctypes.c_int.in_dll(library, "call_log_count")
        self._is_on = ctypes.c_int.in_dll(library, "call_log_is_on")
        library.call_log_notes.restype = ctypes.POINTER(_Note)
        self._notes = library.call_log_notes()

    @contextmanager
    def noting(self) -> Iterator[None]:
        self._count.value, self._is_on.value = 0, 1
        try:
            yield
        finally:
            self._is_on.value = 0

    def take(self) -> list[Note]:
        """The calls since the last `take`."""
        found = [self._notes[at] for at in range(self._count.value)]
        self._count.value = 0
        return [Note(Call(each.kind), each.inode, each.offset, each.count) for each in found]


def check_order(notes: list[Note]) -> None:
    """Law: when something is sent, all earlier writes are flushed. Raises AnsweredBeforeFlush,
    NotFlushed."""
    dirty: set[int] = set()
    for at, note in enumerate(notes):
        if note.kind is Call.WRITE:
            dirty.add(note.inode)
        elif note.kind is Call.SYNC:
            dirty.discard(note.inode)
        elif dirty:
            later = {each.inode for each in notes[at:] if each.kind is Call.SYNC}
            raise AnsweredBeforeFlush if dirty <= later else NotFlushed


def with_calls_noted(request: pytest.FixtureRequest, folder: Path) -> CallLog | None:
    """None if the test was run in another process, with the library, and passed there."""
    if os.environ.get(_LOADED):
        return CallLog()
    library = folder / "call_log.so"
    try:
        compile_library(library, SOURCE)
    except Unavailable as error:
        pytest.skip(str(error))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:randomly", request.node.nodeid]
    environment = {**os.environ, _LOADED: "1", "LD_PRELOAD": str(library)}
    done = subprocess.run(
        command, cwd=request.config.rootpath, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return None
