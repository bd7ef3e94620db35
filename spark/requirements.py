"""What this package needs of Spark: its version, and for some jobs a classic session.

    Spark        sources in Python   a stream is given the start of its batch
    3.5          no                  no
    4.0, 4.1     yes                 no
    4.2 on       yes                 yes

A stream without the start of its batch could not limit the batch, and could not detect missing WAL
before it is planned. Law: a missing feature is one error before anything is written. It is detected
by the module that Spark has it in, because vendors add features to older versions.
"""

from __future__ import annotations

import os
import re
from importlib.util import find_spec
from typing import TYPE_CHECKING

from quorum_wal.spark.errors import UnsupportedSpark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SOURCES = "pyspark.sql.datasource"
_STREAMS = "pyspark.sql.streaming.datasource"
#: the package pyspark-client does not have it
_CLASSIC = "pyspark.core"
_REMOTE = "SPARK_REMOTE"
#: Otherwise Spark prints a stack of Java.
_MASTER = re.compile(
    r"local(\[(\*|[0-9]+)(, *[0-9]+)?\])?|local-cluster\[.+\]|(spark|k8s)://.+|yarn"
)


def check_sources() -> None:
    """Raises UnsupportedSpark if this Spark has no sources in Python."""
    if find_spec(_SOURCES) is None:
        raise UnsupportedSpark(
            f"Spark {_version()} has no data sources in Python, which came with Spark 4.0",
            hint="Install a newer one: pip install 'pyspark>=4.2,<5'.",
        )


def check_streams() -> None:
    """Raises UnsupportedSpark if this Spark cannot run our streams."""
    check_sources()
    if find_spec(_STREAMS) is None:
        raise UnsupportedSpark(
            f"streams need Spark 4.2 or newer, and this is Spark {_version()}: it does not give a "
            "source the start of a batch",
            hint="Install Spark 4.2, or read with spark.read or sk spark ingest.",
        )


def is_connect(session: SparkSession) -> bool:
    """Whether it is a session of Spark Connect."""
    return not hasattr(session, "_jsparkSession")


def check_classic(session: SparkSession, job: str) -> None:
    """Raises UnsupportedSpark if the session is of Spark Connect. `job` begins the message."""
    if is_connect(session):
        raise UnsupportedSpark(
            f"{job} needs a classic session: it uses RDDs, which Spark Connect does not have",
            hint="Run it with sk spark on a machine that reaches the master, or with spark-submit.",
        )


def check_master(master: str) -> None:
    """Raises UnsupportedSpark if a session of this process and `master` would not be classic, or
    `master` is invalid."""
    if find_spec(_CLASSIC) is None:
        problem = "the package pyspark-client has only Spark Connect"
    elif os.environ.get(_REMOTE):
        problem = f"{_REMOTE} is set"
    elif master.startswith("sc://"):
        problem = f'"{master}" is a server of Spark Connect'
    elif not _MASTER.fullmatch(master):
        raise UnsupportedSpark(
            f'expected the URL of a master of Spark, got "{master}"',
            hint="It is local[N], spark://HOST:PORT, k8s://..., or yarn.",
        )
    else:
        return
    raise UnsupportedSpark(
        f"expected a classic session with a master such as spark://HOST:7077, but {problem}",
        hint=f"Name a master and unset {_REMOTE}; or open a session of Spark Connect with "
        "SparkSession.builder.remote(), and call register(session).",
    )


def _version() -> str:
    import pyspark

    return pyspark.__version__
