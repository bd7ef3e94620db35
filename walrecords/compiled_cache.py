"""The folder in which numba keeps the compiled decoding loops, and a lock for all its users.

    NUMBA_CACHE_DIR          if it is set
    __pycache__ of a module  if the package's folder is writable: numba's own choice
    ~/.cache/quorum-wal/numba, or $XDG_CACHE_HOME/quorum-wal/numba
    /tmp/quorum-wal-UID/numba        if there is no home folder; only this user can write there

numba compiles a loop when it is first called. Many workers start at the same time, and each of them
would compile all loops. So a worker looks in the cache, compiles and stores a loop under a lock of
the machine; the next one then finds it. Law: without a folder for the lock nothing fails, but the
workers may compile the same loop.
"""

from __future__ import annotations

import fcntl
import os
import stat
import sys
import tempfile
import threading
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import IO, TYPE_CHECKING

import structlog

if TYPE_CHECKING:
    from numba.core.event import Event

log = structlog.get_logger()

_ENVIRONMENT = "NUMBA_CACHE_DIR"
_LOCK_FILE, _NOTICE_FILE = "compile.lock", "compile.notice"
#: workers that compile within this time report it once
NOTICE_SECONDS = 300.0


def choose_cache_folder(package: Path) -> None:
    """Sets NUMBA_CACHE_DIR if numba needs it. Must run before a module with compiled loops is
    imported."""
    if os.environ.get(_ENVIRONMENT) or os.access(package, os.W_OK):
        return
    folder = own_folder("numba")
    if folder is None:
        return
    os.environ[_ENVIRONMENT] = str(folder)
    if "numba" in sys.modules:
        sys.modules["numba"].config.CACHE_DIR = str(folder)


def own_folder(name: str) -> Path | None:
    """A folder that only this user can write, below the user's cache or below /tmp."""
    temporary = Path(tempfile.gettempdir()) / f"quorum-wal-{os.getuid()}"
    for base in (_user_cache(), temporary):
        if base is None:
            continue
        folder = base / name
        with suppress(OSError):
            for path in (base, folder):
                path.mkdir(mode=0o700, parents=True, exist_ok=True)
            if _is_own(base) and _is_own(folder) and os.access(folder, os.W_OK):
                return folder
    return None


def _is_own(folder: Path) -> bool:
    """Compiled code is loaded from there: another user may neither own it, nor a link to it, nor
    write there. Raises OSError."""
    found = folder.lstat()
    return found.st_uid == os.getuid() and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _user_cache() -> Path | None:
    """None without a home folder."""
    cache_home = os.environ.get("XDG_CACHE_HOME")
    if cache_home:
        return Path(cache_home) / "quorum-wal"
    try:
        return Path.home() / ".cache" / "quorum-wal"
    except RuntimeError:
        return None


@cache
def share_compilation() -> None:
    """Makes this process take the lock when numba compiles, and report that it compiles."""
    from numba.core import event

    class _Lock(event.Listener):  # type: ignore[misc]
        """numba reports its own lock, which it holds while it looks in the cache."""

        def __init__(self) -> None:
            self._local = threading.local()

        def on_start(self, event: Event) -> None:
            depth = getattr(self._local, "depth", 0)
            if depth == 0:
                self._local.file = _locked()
            self._local.depth = depth + 1

        def on_end(self, event: Event) -> None:
            self._local.depth -= 1
            if self._local.depth == 0 and self._local.file is not None:
                self._local.file.close()

    class _Notice(event.Listener):  # type: ignore[misc]
        def on_start(self, event: Event) -> None:
            report_compilation()

        def on_end(self, event: Event) -> None:
            """The next process loads the loop from the cache."""

    event.register("numba:compiler_lock", _Lock())
    event.register("numba:compile", _Notice())


def _locked() -> IO[bytes] | None:
    """The open file with the lock; closing it ends the lock."""
    folder = own_folder("locks")
    if folder is None:
        return None
    try:
        file = (folder / _LOCK_FILE).open("ab")
    except OSError:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
    except OSError:  # a file system without locks
        file.close()
        return None
    return file


@cache
def report_compilation() -> None:
    """Logs once for all processes of this machine."""
    folder = own_folder("locks")
    if folder is not None:
        notice = folder / _NOTICE_FILE
        with suppress(OSError):
            age_seconds = datetime.now(UTC).timestamp() - notice.stat().st_mtime
            if age_seconds < NOTICE_SECONDS:
                return
        with suppress(OSError):
            notice.touch()
    log.warning(
        "numba compiles the decoder; later queries of this machine load it from a cache",
        cache=os.environ.get(_ENVIRONMENT) or "the package's folder, or numba's for this user",
    )
