"""`FailingDisk`: makes fsync slow, or fsync and writes fail, in a child process.

    disk = FailingDisk(tmp_path / "failing", only_below=tmp_path / "safekeeper")
    with SafekeeperProcess(1, tmp_path / "safekeeper", env=disk.env) as safekeeper:
        disk.fail_sync()      # EIO from every fsync and fdatasync
        disk.restore()

It compiles and preloads a small library; failing_disk.c describes its control files.
"""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

from quorum_wal.pg_server.errors import Unavailable
from quorum_wal.pg_server.program import run_program

SOURCE = Path(__file__).with_suffix(".c")
COMPILERS = ("cc", "gcc", "clang")
ERRORS = (errno.EIO, errno.ENOSPC)  # the same as in the library


class FailingDisk:
    """The disk of every process started with `env`, and of its children. Raises Unavailable.

    `folder` is created for the library and its control files. `only_below` limits the failures to
    paths that begin with it; without it they affect every regular file, but not stdout and stderr.
    """

    def __init__(self, folder: Path, *, only_below: Path | None = None) -> None:
        self._folder = folder
        folder.mkdir(parents=True)
        # A server may run under another account, and must be able to write and unlink here.
        folder.chmod(0o777)
        library = folder / "failing_disk.so"
        compile_library(library)
        self.env = {"LD_PRELOAD": str(library), "FAILING_DISK_CONTROL": str(folder)}
        if only_below is not None:
            self.env["FAILING_DISK_PREFIX"] = str(only_below.resolve())

    def fail_sync(self, error: int = errno.EIO, *, once: bool = False) -> None:
        """From now on fsync, fdatasync and similar calls fail; with `once` only the next one.

        `once` is the behaviour of a kernel: it reports lost pages once, and a second fsync
        succeeds.
        """
        self._order("sync", error, once)

    def fail_writes(self, error: int = errno.ENOSPC, *, once: bool = False) -> None:
        """From now on writing, extending and allocating fail; with `once` only the next call."""
        self._order("write", error, once)

    def slow_sync(self, milliseconds: int) -> None:
        """From now on fsync, fdatasync and similar calls take that much longer."""
        (self._folder / "sync.delay").write_bytes(bytes(milliseconds))

    def restore(self) -> None:
        """From now on all calls succeed without a delay."""
        for order in (*self._folder.glob("sync.*"), *self._folder.glob("write.*")):
            order.unlink(missing_ok=True)

    @property
    def failures(self) -> int:
        """The number of calls that have failed so far."""
        try:
            return (self._folder / "failures").stat().st_size
        except FileNotFoundError:
            return 0

    def _order(self, kind: str, error: int, once: bool) -> None:
        if error not in ERRORS:
            known = ", ".join(errno.errorcode[e] for e in ERRORS)
            raise ValueError(f"the library knows {known}, not {errno.errorcode.get(error, error)}")
        (self._folder / f"{kind}.{error}{'.once' if once else ''}").touch()


def compile_library(target: Path, source: Path = SOURCE) -> None:
    """Compiles a library for LD_PRELOAD. Raises Unavailable, ProgramFailed."""
    named = os.environ.get("CC")
    compiler = named or next(filter(shutil.which, COMPILERS), None)
    if compiler is None:
        raise Unavailable("there is no C compiler", hint=f"install one of {', '.join(COMPILERS)}")
    run_program([compiler, "-shared", "-fPIC", "-O1", "-Wall", "-o", target, source, "-ldl"])
