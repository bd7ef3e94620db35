"""A Spark session for a command, with a quiet log, and with errors as one sentence.

Law: an error on an executor is reported as if it had been raised in this process.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import as_file, files
from typing import TYPE_CHECKING

from quorum_wal.cli.output import CommandError
from quorum_wal.spark.reported_errors import reported_error, spark_errors
from quorum_wal.spark.session import new_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NOT_STARTED = "Java may have printed the reason above. Check --master, and JAVA_HOME."
#: An aggregation of WAL has few rows.
SETTINGS = {"spark.sql.shuffle.partitions": "8"}


@contextmanager
def command_session(name: str, master: str, *, registers: bool = True) -> Iterator[SparkSession]:
    """With our sources if it `registers` them. Raises NoJava, UnsupportedSpark, and CommandError
    for an error of Spark, also inside the block."""
    with as_file(files("quorum_wal.spark") / "quiet_log4j2.properties") as quiet:
        options = f"-Dlog4j2.configurationFile={quiet.as_uri()}"
        settings = {**SETTINGS, "spark.driver.extraJavaOptions": options}
        try:
            session = new_session(name, master, settings, registers=registers)
        except spark_errors() as error:
            raise CommandError(
                f"Spark did not start: {_text_of(error)}", hint=NOT_STARTED
            ) from error
    try:
        yield session
    except spark_errors() as error:
        raise command_error_of(error) from error
    finally:
        session.stop()


def command_error_of(error: Exception) -> CommandError:
    """Our error in an exception of Spark; otherwise the text of Spark without the stack."""
    ours = reported_error(error)
    if ours is not None:
        return CommandError(str(ours), hint=ours.hint)
    return CommandError(_text_of(error))


def _text_of(error: Exception) -> str:
    text = str(error).split("\n\tat ")[0].split("JVM stacktrace")[0]
    return " ".join(text.split())
