"""Our error in an exception of PySpark, as one line.

    PythonException: An exception was thrown from the Python worker. ...
      Traceback (most recent call last):
      ...
    quorum_wal.spark.errors.UndecodedChange: change at 0/5A2B3C8 could not be decoded: ...
    hint: Take a new catalog with sk catalog snapshot, ...

Spark sends an error of an executor to the driver as the text of a traceback. Its last line has our
error, and a note after it has the hint (`sources/shown_errors.py`). If tracebacks are hidden, our
error follows Spark's own text in the same line.

A machine of a cluster that lacks this package, or one that it needs, reports ModuleNotFoundError.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from quorum_wal.spark import errors
from quorum_wal.spark.errors import MissingPackage, SparkWalError

_OURS = re.compile(
    r"(?:^\s*|: )quorum_wal\.(?:spark|objectstore|pgwal|storage|consensus)\."
    r"(?:\w+\.)*(?P<kind>\w+): (?P<text>.+)$(?:\n\s*hint: (?P<hint>.+)$)?",
    re.MULTILINE,
)
#: this package, and what the extra `spark` and the package itself need on an executor
_MISSING = re.compile(
    r"ModuleNotFoundError: No module named '(?P<name>"
    r"(?:quorum_wal|pyarrow|numba|numpy|obstore|psycopg|msgspec|structlog|crc32c|zstandard)[\w.]*)'"
)
#: of PythonWorkerFactory.scala, which waits for ten seconds
_SLOW_START = "Python worker failed to connect back"
_KINDS = {
    each.__name__: each
    for each in vars(errors).values()
    if isinstance(each, type) and issubclass(each, SparkWalError)
}


def reported_error(error: BaseException) -> SparkWalError | None:
    """The error of this package that an exception of PySpark reports, or None."""
    found = list(_OURS.finditer(str(error)))
    if not found:
        return _missing_package(str(error))
    kind = _KINDS.get(found[-1]["kind"], SparkWalError)
    return kind(found[-1]["text"].strip(), hint=(found[-1]["hint"] or "").strip())


def _missing_package(text: str) -> MissingPackage | None:
    found = _MISSING.search(text)
    if found is None:
        return None
    return MissingPackage(
        f"a Python process of Spark has no module {found['name']}",
        hint="Install quorum-wal[spark] on all machines of the cluster, for the Python that "
        "PYSPARK_PYTHON names; or send it with spark-submit.",
    )


def is_slow_start(error: BaseException) -> bool:
    """Whether a new Python process of Spark was not ready in time, as on a machine under load."""
    return _SLOW_START in str(error)


def spark_errors() -> tuple[type[Exception], ...]:
    """The classes of exceptions of PySpark. Spark before 4.2 raises an error of a job on RDDs as
    one of py4j, which the package pyspark-client does not have."""
    from pyspark.errors import PySparkException

    try:
        from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    except ImportError:
        return (PySparkException,)
    return (PySparkException, Py4JError)


@contextmanager
def short_errors() -> Iterator[None]:
    """Replaces an exception of PySpark in the block by the error of this package that it reports,
    without the tracebacks of executors and of Java. Other exceptions are not changed."""
    try:
        yield
    except spark_errors() as error:
        ours = reported_error(error)
        if ours is None:
            raise
        if ours.hint:
            ours.add_note(f"hint: {ours.hint}")
        raise ours from None
