"""Spark with an archive and a lake in S3: the rows of a folder, each once, and no secret in any
output."""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.request import Request, urlopen

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException
from s3_server import SECRET, S3Server
from sink_rows import written
from sk_command import Done, assert_refused
from wal_rows import archive_of, rows_of

from quorum_wal.objectstore.errors import ObjectStoreError
from quorum_wal.objectstore.local import LocalStore
from quorum_wal.objectstore.store import ObjectStore, open_store
from quorum_wal.pg_fixtures.processes import run_sk
from quorum_wal.spark.inputs.folder_input import FolderInput
from quorum_wal.spark.jobs.ingest import Ingest
from quorum_wal.spark.jobs.ingested_wal import IngestedWal
from quorum_wal.spark.records.wal_schema import DEFAULT_COLUMNS
from quorum_wal.spark.sources.input_options import STORE_PREFIX, parse_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.usefixtures("class_archive")

MIB = 1 << 20
TIMEOUT = 600.0


@pytest.fixture(scope="module")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with S3Server(tmp_path_factory.mktemp("s3") / "moto_server.log") as server:
        yield server


@pytest.fixture(scope="module")
def archive_url(
    s3_server: S3Server, server_wal: Path, tmp_path_factory: pytest.TempPathFactory
) -> str:
    """An archive of `server_wal` in a bucket; not to be changed."""
    folder = tmp_path_factory.mktemp("archive")
    archive_of(server_wal, folder)
    local, url = LocalStore(str(folder)), f"{s3_server.new_bucket()}/archive"
    store = open_store(url, s3_server.options())
    for info in local.list(""):
        store.put(info.key, local.get(info.key))
    return url


@pytest.fixture(scope="module")
def expected(server_wal: Path) -> pa.Table:
    return rows_of(FolderInput(str(server_wal)), columns=DEFAULT_COLUMNS).combine_chunks()


@pytest.fixture
def locked_server(s3_server: S3Server) -> Iterator[S3Server]:
    """It accepts no credentials."""
    let_requests_pass(s3_server, "0")
    yield s3_server
    let_requests_pass(s3_server, "inf")


def let_requests_pass(server: S3Server, count: str) -> None:
    """Accept that many requests without a check."""
    url, headers = f"{server.endpoint}/moto-api/reset-auth", {"Content-Type": "text/plain"}
    with urlopen(Request(url, count.encode(), headers, method="POST"), timeout=10):
        pass


def source(server: S3Server, url: str) -> dict[str, str]:
    """The options of a query, including those of the store."""
    store = {f"{STORE_PREFIX}{name}": value for name, value in server.options().items()}
    return {"path": url, "partition_bytes": "1MB", **store}


def ingest(session: SparkSession, server: S3Server, archive_url: str, lake_url: str) -> Ingest:
    rows = IngestedWal(parse_options(source(server, archive_url)), 3 * MIB, MIB)
    return Ingest(session, rows, lake_url, server.options())


def lake_rows(store: ObjectStore) -> pa.Table:
    """All rows of all files, by LSN."""
    keys = [info.key for info in store.list("") if info.key.endswith(".parquet")]
    tables = [pq.ParquetFile(pa.BufferReader(store.get(key))).read() for key in keys]
    return pa.concat_tables(tables).sort_by("lsn").combine_chunks()


# ---- correct stores


def test_a_query_has_the_rows_of_a_folder(
    session: SparkSession, s3_server: S3Server, archive_url: str, expected: pa.Table
) -> None:
    frame = session.read.format("pg_wal").options(**source(s3_server, archive_url)).load()
    assert frame.rdd.getNumPartitions() > 3
    assert frame.toArrow().sort_by("lsn").to_pylist() == expected.to_pylist()


def test_a_stream_has_them_once_and_writes_down_no_secret(
    session: SparkSession,
    s3_server: S3Server,
    archive_url: str,
    expected: pa.Table,
    tmp_path: Path,
) -> None:
    stream = session.readStream.format("pg_wal").options(**source(s3_server, archive_url))
    writer = stream.option("max_bytes_per_batch", "3MB").load().writeStream.format("parquet")
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.trigger(availableNow=True).start(str(tmp_path / "lake"))
    assert query.awaitTermination(120)
    assert written(tmp_path / "lake") == expected["lsn"].to_pylist()
    files = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert not any(SECRET.encode() in content for content in files)


def test_a_lake_has_every_record_once(
    session: SparkSession, s3_server: S3Server, archive_url: str, expected: pa.Table
) -> None:
    lake_url = f"{s3_server.new_bucket()}/lake"
    store = open_store(lake_url, s3_server.options())
    assert len(list(ingest(session, s3_server, archive_url, lake_url).run_once())) > 1
    assert lake_rows(store).equals(expected)
    before = list(store.list(""))
    assert list(ingest(session, s3_server, archive_url, lake_url).run_once()) == []
    assert list(store.list("")) == before


def test_the_command_line(s3_server: S3Server, archive_url: str, expected: pa.Table) -> None:
    lake_url = f"{s3_server.new_bucket()}/lake"
    done = sk_ingest(s3_server, archive_url, lake_url, f"--batch-bytes-max={3 * MIB}")
    assert done.returncode == 0, done.stderr
    rows = [int(found.replace(",", "")) for found in re.findall(r"([\d,]+) rows in ", done.stdout)]
    assert len(rows) > 1
    assert sum(rows) == len(expected)
    assert "compacted " in done.stdout
    store = open_store(lake_url, s3_server.options())
    assert lake_rows(store).equals(expected)
    assert not list(store.list("_ingest/compactions/"))


def sk_ingest(server: S3Server, archive_url: str, lake_url: str, *options: str) -> Done:
    """The secret is in the environment, as it should be."""
    store = server.options()
    secret = store.pop("secret_access_key")
    given = [f"--option={STORE_PREFIX}{name}={value}" for name, value in store.items()]
    given += [f"--lake-option={name}={value}" for name, value in store.items()]
    env = {"AWS_SECRET_ACCESS_KEY": secret, "SPARK_LOCAL_IP": "127.0.0.1"}
    command = ("spark", "ingest", lake_url, f"--path={archive_url}", "--once", "--master=local[2]")
    done = run_sk(*command, *given, *options, env=env, timeout=TIMEOUT)
    assert SECRET not in done.stdout + done.stderr
    return done


# ---- errors, and secrets in them


def test_a_bucket_that_is_missing(
    session: SparkSession, s3_server: S3Server, archive_url: str
) -> None:
    text = failure_of_query(session, source(s3_server, "s3://nobodys-bucket/archive"))
    assert "s3://nobodys-bucket/archive does not exist\nhint: Create the bucket" in text
    with pytest.raises(ObjectStoreError, match="s3://nobodys-bucket/lake does not exist") as caught:
        ingest(session, s3_server, archive_url, "s3://nobodys-bucket/lake").run_batch()
    assert SECRET not in "".join(traceback.format_exception(caught.value))


def test_wrong_credentials(
    session: SparkSession, locked_server: S3Server, archive_url: str
) -> None:
    text = failure_of_query(session, source(locked_server, archive_url))
    assert f"{archive_url} does not allow to list" in text
    assert "\nhint: Check the credentials" in text
    done = sk_ingest(locked_server, archive_url, "s3://closed-bucket/lake")
    assert_refused(done, 1, "s3://closed-bucket/lake does not allow", "Check the credentials")


def failure_of_query(session: SparkSession, options: dict[str, str]) -> str:
    """The whole error of Spark, and its place."""
    with pytest.raises(PySparkException) as caught:
        session.read.format("pg_wal").options(**options).load().collect()
    text = "".join(traceback.format_exception(caught.value))
    assert SECRET not in text
    return text


def test_a_secret_is_not_shown(
    session: SparkSession, s3_server: S3Server, archive_url: str
) -> None:
    options = source(s3_server, archive_url)
    assert SECRET not in repr(parse_options(options))
    assert SECRET not in repr(parse_options(options).wal_input)
    frame = session.read.format("pg_wal").options(**options).load()
    assert "pg_wal" in frame._jdf.queryExecution().toString()
    assert SECRET not in frame._jdf.queryExecution().toString()
