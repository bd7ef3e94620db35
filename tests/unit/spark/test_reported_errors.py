"""An exception of PySpark that reports one of our errors becomes this error."""

from __future__ import annotations

import pytest
from pyspark.errors import PySparkException

from quorum_wal.spark.errors import MissingPackage, SparkWalError, UndecodedChange
from quorum_wal.spark.reported_errors import reported_error, short_errors

#: as PySpark shows it with spark.sql.execution.pyspark.udf.hideTraceback.enabled
TEXT = """
  An exception was thrown from the Python worker. Please see the stack trace below.
quorum_wal.spark.errors.UndecodedChange: change at 0/5A2B3C8 could not be decoded: no file
hint: Take a new catalog.

JVM stacktrace:
org.apache.spark.SparkException: Job aborted
\tat org.apache.spark.X(Y.scala:1)
"""


def test_its_class_text_and_hint() -> None:
    with pytest.raises(UndecodedChange) as raised, short_errors():
        raise PySparkException(TEXT)
    error = raised.value
    assert str(error) == "change at 0/5A2B3C8 could not be decoded: no file"
    assert error.hint == "Take a new catalog."
    assert error.__notes__ == ["hint: Take a new catalog."]
    assert error.__suppress_context__


def test_in_the_line_of_spark() -> None:
    text = "[STREAM_FAILED] Query terminated: An exception was thrown from the Python worker: "
    error = reported_error(
        Exception(f"{text}quorum_wal.spark.errors.LakeError: it is lost\nhint: X")
    )
    assert error is not None
    assert (type(error).__name__, str(error), error.hint) == ("LakeError", "it is lost", "X")


def test_a_class_of_another_module() -> None:
    error = reported_error(Exception("x\nquorum_wal.spark.inputs.wal_input.LostWal: it is lost\n"))
    assert type(error) is SparkWalError
    assert (str(error), error.hint) == ("it is lost", "")


@pytest.mark.parametrize("name", ["quorum_wal", "quorum_wal.spark.sources.wal_task", "numba"])
def test_a_package_that_an_executor_lacks(name: str) -> None:
    text = f"Traceback (most recent call last):\nModuleNotFoundError: No module named '{name}'\n"
    error = reported_error(Exception(f"An exception was thrown from the Python worker: {text}"))
    assert type(error) is MissingPackage
    assert str(error) == f"a Python process of Spark has no module {name}"


def test_other_errors_stay() -> None:
    with pytest.raises(PySparkException), short_errors():
        raise PySparkException("ModuleNotFoundError: No module named 'theirs'")
    with pytest.raises(PySparkException, match="DIVIDE_BY_ZERO"), short_errors():
        raise PySparkException("[DIVIDE_BY_ZERO] Division by zero.")
    with pytest.raises(ZeroDivisionError), short_errors():
        raise ZeroDivisionError("quorum_wal.spark.errors.LakeError: text")
