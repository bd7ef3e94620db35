"""Spark for a command: quiet, and with its errors in one sentence.

Law: what went wrong on an executor reaches the user as it would have been said here. Spark gives it
to us as the text of a traceback; its last line names our error, and a note behind it the hint.
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

#: of WAL there is little left behind an aggregation
SETTINGS = {"spark.sql.shuffle.partitions": "8"}

_OURS = re.compile(
    r"^(?:spark|objectstore|pgwal|storage|consensus)\.[\w.]+: (?P<text>.+)$"
    r"(?:\nhint: (?P<hint>.+)$)?",
    re.MULTILINE,
)


@contextmanager
def command_session(name: str, master: str) -> Iterator[SparkSession]:
    """Raises CommandError for what fails inside, NoJava."""
    from pyspark.errors import PySparkException

    with as_file(files("spark") / "quiet_log4j2.properties") as quiet:
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
    """Of what Spark says; its own words, up to the stack, where it is no error of ours."""
    found = list(_OURS.finditer(text))
    if found:
        return CommandError(found[-1]["text"].strip(), hint=(found[-1]["hint"] or "").strip())
    return CommandError(" ".join(text.split("\n\tat ")[0].split("JVM stacktrace")[0].split()))
