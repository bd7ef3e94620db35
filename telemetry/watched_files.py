"""A value that is read from files and read again when they change: certificates, users, a token.

A connection asks for the value when it needs it. That costs a stat() for each file, which takes
microseconds, and needs no signal. Law: an unusable file changes nothing. The old value stays in
force, and the log reports the file once.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from threading import Lock
from typing import Any, Generic, TypeVar

import structlog

T = TypeVar("T")

_Stamp = tuple[tuple[int, ...] | None, ...]

log = structlog.get_logger()


class WatchedFiles(Generic[T]):
    """`current()` may be called by any thread."""

    def __init__(self, paths: Sequence[Path], load: Callable[[], T]) -> None:
        """`load` reads the files. It may raise OSError or ValueError, without a secret in the text.
        Here the error is passed on; later it is logged."""
        self._paths = tuple(paths)
        self._load = load
        self._lock = Lock()
        self._stamp = self._look()
        self._value = load()
        self._problem = ""

    def current(self) -> T:
        """The value of the present files, or of the last usable ones."""
        stamp = self._look()
        if stamp != self._stamp:
            with self._lock:
                if stamp != self._stamp:
                    self._reload()
                    self._stamp = stamp
        return self._value

    @property
    def name(self) -> str:
        return ", ".join(map(str, self._paths))

    def problem(self) -> str:
        """The reason why the present files are not in force; "" if they are."""
        self.current()
        return self._problem

    def _look(self) -> _Stamp:
        """Called before the files are read: a change in between is seen by the next call."""
        return tuple(map(_stamp_of, self._paths))

    def _reload(self) -> None:
        try:
            self._value = self._load()
        except (OSError, ValueError) as error:
            self._problem = str(error)
            log.error("changed files are unusable, the old content stays in force",
                      files=self.name, reason=self._problem)  # fmt: skip
        else:
            self._problem = ""
            log.info("changed files are in force", files=self.name)


def unusable_files(watched: Iterable[WatchedFiles[Any] | None]) -> dict[str, str]:
    """The files whose present content is not in force, and the reasons."""
    problems = {files.name: files.problem() for files in watched if files is not None}
    return {name: problem for name, problem in problems.items() if problem}


def _stamp_of(path: Path) -> tuple[int, ...] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
