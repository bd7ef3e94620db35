"""`spark.read.format("pg_wal")` returns the rows of the decoder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.errors import PySparkException
from wal_rows import COLUMNS, archive_of, flip, rows_of, segment

from quorum_wal.spark.inputs.folder_input import FolderInput
from quorum_wal.spark.inputs.wal_reader import OnDamage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MIB = 1 << 20
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


@pytest.fixture(scope="module")
def whole(server_wal: Path) -> pa.Table:
    return rows_of(FolderInput(str(server_wal)))


def wal(session: SparkSession, **options: Any) -> DataFrame:
    return session.read.format("pg_wal").options(**options).load()


def sorted_rows(frame: DataFrame) -> pa.Table:
    return frame.toArrow().sort_by("lsn")


def test_all_columns_of_all_records(
    session: SparkSession, server_wal: Path, whole: pa.Table
) -> None:
    frame = wal(session, path=server_wal, columns=",".join(COLUMNS), partition_bytes="2MB")
    found = sorted_rows(frame)
    assert found.num_rows == whole.num_rows
    assert found.to_pylist() == whole.to_pylist()


def test_filters_of_spark(session: SparkSession, server_wal: Path, whole: pa.Table) -> None:
    """Also if a user switches on that Spark pushes them to sources."""
    xids = whole.filter(pc.equal(whole["rmgr"], "Transaction"))["xid"].to_pylist()[:2]
    lsn = whole["lsn"].to_pylist()[whole.num_rows // 2]
    session.conf.set(PUSHDOWN, "true")
    try:
        frame = wal(session, path=server_wal, columns="lsn,rmgr,xid")
        for condition, is_wanted in (
            (
                f"lsn >= {lsn} and rmgr in ('Btree', 'Nonsense')",
                lambda row: row["lsn"] >= lsn and row["rmgr"] == "Btree",
            ),
            (
                f"lsn < {lsn} and xid in ({xids[0]}, {xids[1]}) and rmgr <> 'Heap'",
                lambda row: row["lsn"] < lsn and row["xid"] in xids and row["rmgr"] != "Heap",
            ),
            ("rmgr = 'heap'", lambda _: False),
        ):
            expected = [row["lsn"] for row in whole.to_pylist() if is_wanted(row)]
            found = sorted_rows(frame.where(condition))["lsn"].to_pylist()
            assert found == expected, condition
        # Spark would use a plan with pushed filters for all scans of the frame.
        assert frame.count() == whole.num_rows
        one = frame.where(f"lsn = {lsn}")
        assert one.unionAll(frame).count() == whole.num_rows + 1
    finally:
        session.conf.unset(PUSHDOWN)


def test_filters_as_options(session: SparkSession, server_wal: Path, whole: pa.Table) -> None:
    frame = wal(session, path=server_wal, rmgr="Transaction", columns="lsn,rmgr,operation")
    expected = whole.filter(pc.equal(whole["rmgr"], "Transaction"))["lsn"]
    assert sorted_rows(frame)["lsn"].to_pylist() == expected.to_pylist()


def test_a_range_by_options(session: SparkSession, server_wal: Path, whole: pa.Table) -> None:
    lsns = whole["lsn"].to_pylist()
    begin, end = lsns[100], lsns[-100]
    frame = wal(
        session,
        path=server_wal,
        start_lsn=f"{begin >> 32:X}/{begin & 0xFFFFFFFF:X}",
        end_lsn=f"{end >> 32:X}/{end & 0xFFFFFFFF:X}",
    )
    assert frame.count() == len(lsns) - 200


def test_an_archive(
    session: SparkSession, server_wal: Path, tmp_path: Path, whole: pa.Table
) -> None:
    archive_of(server_wal, tmp_path / "archive")
    frame = wal(session, path=tmp_path / "archive", columns="lsn,end_lsn", partition_bytes="4MB")
    assert sorted_rows(frame).to_pylist() == whole.select(["lsn", "end_lsn"]).to_pylist()


def test_damage_through_spark(session: SparkSession, wal_folder: Path, whole: pa.Table) -> None:
    damaged = segment(wal_folder, 1)
    flip(damaged, 100_000)
    with pytest.raises(PySparkException) as caught:
        wal(session, path=wal_folder, partition_bytes="1MB").count()
    assert str(damaged) in str(caught.value)
    for on_damage in ("stop", "skip"):
        found = sorted_rows(
            wal(session, path=wal_folder, partition_bytes="1MB", on_damage=on_damage)
        )
        expected = rows_of(
            FolderInput(str(wal_folder)),
            columns=found.column_names,
            on_damage=OnDamage(on_damage),
        )
        assert found.to_pylist() == expected.to_pylist()
        assert ("GAP" in found["operation"].to_pylist()) == (on_damage == "skip")


def test_wrong_options_are_said_with_their_hint(session: SparkSession, server_wal: Path) -> None:
    with pytest.raises(PySparkException, match='unknown option "relations"') as caught:
        wal(session, path=server_wal, relations="1").count()
    assert "hint: The options are: columns," in str(caught.value)


def test_no_secret_is_in_plans_or_errors(session: SparkSession) -> None:
    frame = wal(session, safekeepers="host=127.0.0.1 port=1 user=u password=geheim")
    plan = frame._jdf.queryExecution().toString()
    assert "pg_wal" in plan
    with pytest.raises(PySparkException, match="no safekeeper answers") as caught:
        frame.count()
    for text in (plan, str(caught.value), frame._jdf.queryExecution().toString()):
        assert "geheim" not in text
