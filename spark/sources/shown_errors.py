"""Errors of a data source, with their hints. Spark shows a traceback, which must have the hint."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from quorum_wal.spark.errors import SparkWalError


@contextmanager
def shown_errors() -> Iterator[None]:
    """Adds the hint of an error to it as a note."""
    try:
        yield
    except SparkWalError as error:
        if error.hint:
            error.add_note(f"hint: {error.hint}")
        raise
