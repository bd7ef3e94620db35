"""A value made from files, made anew when they change: certificates, users, a token.

Whoever needs the value asks for it, once a connection: a stat() for each file, some microseconds,
and no signal to be forgotten. Law: a file that has become unusable changes nothing; the value
before it stays in force, and the log says so once.
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
        """`load` reads the files; what it raises must be OSError or ValueError, without a secret in
        its text. Here it is passed on, later it is logged."""
        self._paths = tuple(paths)
        self._load = load
        self._lock = Lock()
        self._stamp = self._look()
        self._value = load()
        self._problem = ""

    def current(self) -> T:
        """The value of the files as they are now, or when they were last usable."""
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
        """Why the files as they are now are not in force; "" when they are."""
        self.current()
        return self._problem

    def _look(self) -> _Stamp:
        """Taken before the files are read: a change in between is seen the next time."""
        return tuple(map(_stamp_of, self._paths))

    def _reload(self) -> None:
        try:
            self._value = self._load()
        except (OSError, ValueError) as error:
            self._problem = str(error)
            log.error("kept what was read before: changed files are unusable",
                      files=self.name, reason=self._problem)  # fmt: skip
        else:
            self._problem = ""
            log.info("changed files are in force", files=self.name)


def unusable_files(watched: Iterable[WatchedFiles[Any] | None]) -> dict[str, str]:
    """Those that are not in force as they are now, and why."""
    problems = {files.name: files.problem() for files in watched if files is not None}
    return {name: problem for name, problem in problems.items() if problem}


def _stamp_of(path: Path) -> tuple[int, ...] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
