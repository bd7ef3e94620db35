"""A Spark session for a command, with a quiet log, and with errors as one sentence.

Law: an error on an executor is reported as if it had been raised in this process. Spark returns it
as the text of a traceback: the last line has our error, and a note after it has the hint.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import as_file, files
from typing import TYPE_CHECKING

from quorum_wal.cli.output import CommandError
from quorum_wal.spark.session import new_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: An aggregation of WAL has few rows.
SETTINGS = {"spark.sql.shuffle.partitions": "8"}

_OURS = re.compile(
    r"^quorum_wal\.(?:spark|objectstore|pgwal|storage|consensus)\.[\w.]+: (?P<text>.+)$"
    r"(?:\nhint: (?P<hint>.+)$)?",
    re.MULTILINE,
)


@contextmanager
def command_session(name: str, master: str) -> Iterator[SparkSession]:
    """Raises NoJava, and CommandError for an error of Spark inside the block."""
    from pyspark.errors import PySparkException

    with as_file(files("quorum_wal.spark") / "quiet_log4j2.properties") as quiet:
        options = f"-Dlog4j2.configurationFile={quiet.as_uri()}"
        settings = {**SETTINGS, "spark.driver.extraJavaOptions": options}
        session = new_session(name, master, settings)
    try:
        yield session
    except PySparkException as error:
        raise command_error_of(str(error)) from error
    finally:
        session.stop()


def command_error_of(text: str) -> CommandError:
    """Our error in a text of Spark; otherwise the text of Spark without the stack."""
    found = list(_OURS.finditer(text))
    if found:
        return CommandError(found[-1]["text"].strip(), hint=(found[-1]["hint"] or "").strip())
    return CommandError(" ".join(text.split("\n\tat ")[0].split("JVM stacktrace")[0].split()))
