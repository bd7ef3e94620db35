"""Errors as they leave a data source: Spark shows a traceback, and the hint has to be in it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from spark.errors import SparkWalError


@contextmanager
def shown_errors() -> Iterator[None]:
    """Raises what is raised inside, with its hint as a note."""
    try:
        yield
    except SparkWalError as error:
        if error.hint:
            error.add_note(f"hint: {error.hint}")
        raise
