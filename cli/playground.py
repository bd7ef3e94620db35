"""The folder in which `sk dev` and `sk demo` run their cluster, and its removal at the end."""

from __future__ import annotations

import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from quorum_wal.cli.output import CommandError


@contextmanager
def playground(directory: Path | None) -> Iterator[Path]:
    """Creates the folder if it does not exist. A temporary one (None) is removed at the end; after
    an error it is kept, and the error names it. SIGTERM ends the block as Ctrl-C does."""
    for number in (signal.SIGINT, signal.SIGTERM):  # a background job ignores SIGINT
        signal.signal(number, signal.default_int_handler)
    try:
        if directory is not None:
            directory.mkdir(parents=True, exist_ok=True)
            root = directory.resolve()
        else:
            root = Path(tempfile.mkdtemp(prefix="sk-"))
    except OSError as error:
        raise CommandError(f'could not make directory "{directory}": {error.strerror}') from error
    try:
        yield root
    except Exception as error:
        raise CommandError(_first_line(error), f"The logs and all data are in {root}") from error
    except BaseException:
        _remove(root, directory)
        raise
    _remove(root, directory)


def _remove(root: Path, directory: Path | None) -> None:
    if directory is None:
        shutil.rmtree(root, ignore_errors=True)


def _first_line(error: Exception) -> str:
    """The first line; the others are the tail of a log, which is in the folder."""
    return next(iter(str(error).splitlines()), type(error).__name__)
