"""`FailingDisk`: makes fsync slow, and fsync and writes fail, in a child process, on demand.

    disk = FailingDisk(tmp_path / "failing", only_below=tmp_path / "safekeeper")
    with SafekeeperProcess(1, tmp_path / "safekeeper", env=disk.env) as safekeeper:
        disk.fail_sync()      # EIO from every fsync and fdatasync
        disk.heal()

A small library (failing_disk.c, which says how it is told) is compiled and preloaded.
"""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

from pg_server.errors import Unavailable
from pg_server.program import run_program

SOURCE = Path(__file__).with_suffix(".c")
COMPILERS = ("cc", "gcc", "clang")
ERRORS = (errno.EIO, errno.ENOSPC)  # as in the library


class FailingDisk:
    """The disk of every process started with `env`, and of its children. Raises Unavailable.

    `folder` is made, for the library and the orders to it. `only_below` limits the failures to
    paths that begin so; without it they hit every regular file, but not stdout and stderr.
    """

    def __init__(self, folder: Path, *, only_below: Path | None = None) -> None:
        self._folder = folder
        folder.mkdir(parents=True)
        # A server may run under another account, and must be able to report and to unlink.
        folder.chmod(0o777)
        library = folder / "failing_disk.so"
        compile_library(library)
        self.env = {"LD_PRELOAD": str(library), "FAILING_DISK_CONTROL": str(folder)}
        if only_below is not None:
            self.env["FAILING_DISK_PREFIX"] = str(only_below.resolve())

    def fail_sync(self, error: int = errno.EIO, *, once: bool = False) -> None:
        """From now on fsync, fdatasync and their kin fail, or only the next one of them.

        `once` is what a kernel does: it reports lost pages once, and a second fsync succeeds.
        """
        self._order("sync", error, once)

    def fail_writes(self, error: int = errno.ENOSPC, *, once: bool = False) -> None:
        """From now on writing, extending and allocating fail, or only the next such call."""
        self._order("write", error, once)

    def slow_sync(self, milliseconds: int) -> None:
        """From now on fsync, fdatasync and their kin take so much longer."""
        (self._folder / "sync.delay").write_bytes(bytes(milliseconds))

    def heal(self) -> None:
        """Let everything succeed again, and at once."""
        for order in (*self._folder.glob("sync.*"), *self._folder.glob("write.*")):
            order.unlink(missing_ok=True)

    @property
    def failures(self) -> int:
        """How many calls have been made to fail so far."""
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
    """Compile a library to be preloaded. Raises Unavailable, ProgramFailed."""
    named = os.environ.get("CC")
    compiler = named or next(filter(shutil.which, COMPILERS), None)
    if compiler is None:
        raise Unavailable("there is no C compiler", hint=f"install one of {', '.join(COMPILERS)}")
    run_program([compiler, "-shared", "-fPIC", "-O1", "-Wall", "-o", target, source, "-ldl"])
