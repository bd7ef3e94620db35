"""A driver that prints its Java and how many rows it reads: `java_driver.py SOURCE`."""

from __future__ import annotations

import sys

from quorum_wal.spark.session import new_session

SETTINGS = {
    "spark.driver.memory": "512m",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}


def main(source: str) -> None:
    session = new_session("java", "local[1]", SETTINGS)
    session.sparkContext.setLogLevel("OFF")
    jvm = session.sparkContext._jvm
    assert jvm is not None
    print(jvm.java.lang.System.getProperty("java.home"))
    print(session.read.format("pg_wal").options(path=source, columns="lsn").load().count())
    session.stop()


if __name__ == "__main__":
    main(sys.argv[1])
