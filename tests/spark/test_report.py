"""The report has the sums of pg_waldump, and its page shows them in a browser."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.compute as pc
import pytest
from wal_rows import rows_of

from quorum_wal.spark.inputs.folder_input import FolderInput
from quorum_wal.spark.jobs.report import COLUMNS, Report, report
from quorum_wal.spark.jobs.report_page import page

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PLOTS = ("rmgrs", "operations", "relations", "minutes", "checkpoints", "largest", "hot")
BROWSER = (
    "chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--enable-logging=stderr", "--virtual-time-budget=20000",
)  # fmt: skip


@pytest.fixture(scope="module")
def made(session: SparkSession, server_wal: Path) -> Report:
    frame = session.read.format("pg_wal").option("path", str(server_wal))
    wal = frame.option("columns", ",".join(COLUMNS)).load()
    names = {(row.database, row.relation): "public.<t>" for row in largest_relation(wal)}
    return report(session, wal, "<a test>", names)


def largest_relation(wal: object) -> list[object]:
    from pyspark.sql import functions as f

    rows = wal.selectExpr(  # type: ignore[attr-defined]
        "get(blocks, 0).database AS database", "get(blocks, 0).relfilenode AS relation",
        "record_length",
    )  # fmt: skip
    sums = rows.where("relation IS NOT NULL").groupBy("database", "relation")
    ordered = sums.agg(f.sum("record_length").alias("bytes")).orderBy(f.desc("bytes"))
    return list(ordered.take(1))


def test_its_sums_are_those_of_the_records(made: Report, server_wal: Path) -> None:
    rows = rows_of(FolderInput(str(server_wal)), columns=COLUMNS)
    by_rmgr = rows.group_by("rmgr").aggregate(
        [("record_length", "sum"), ("fpi_bytes", "sum"), ("lsn", "count")]
    )
    expected = {
        row["rmgr"]: (row["lsn_count"], row["record_length_sum"], row["fpi_bytes_sum"])
        for row in by_rmgr.to_pylist()
    }
    assert {row[0]: row[1:] for row in made.answers["rmgrs"].rows} == expected
    assert made.summary["records"] == len(rows)
    assert made.summary["bytes"] == pc.sum(rows["record_length"]).as_py()
    minutes = made.answers["minutes"].rows
    assert sum(row[2] for row in minutes) == made.summary["bytes"]
    assert sum(row[4] or 0 for row in minutes) == made.summary["commits"]


def test_transactions_have_their_subtransactions(made: Report, server_wal: Path) -> None:
    rows = rows_of(FolderInput(str(server_wal)), columns=COLUMNS).to_pylist()
    tops = {sub: row["xid"] for row in rows for sub in row["subxids"] or ()}
    expected: dict[int, int] = {}
    for row in rows:
        if row["xid"]:
            top = tops.get(row["xid"], row["xid"])
            expected[top] = expected.get(top, 0) + row["record_length"]
    largest = {row[0]: row[3] for row in made.answers["largest"].rows}
    assert tops
    assert largest == {
        xid: expected[xid] for xid in sorted(expected, key=lambda xid: (-expected[xid], xid))[:20]
    }


def test_relations_are_called_by_their_names(made: Report) -> None:
    assert made.answers["relations"].rows[0][1] == "public.<t>"
    assert any(row[1].isdigit() for row in made.answers["relations"].rows)


def test_the_page_shows_every_plot_in_a_browser(made: Report, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    file.write_text(page(made), encoding="utf-8")
    ended = subprocess.run(
        [*BROWSER, f"--user-data-dir={tmp_path / 'browser'}", "--dump-dom", file.as_uri()],
        capture_output=True, text=True, check=True, timeout=400,
    )  # fmt: skip
    errors = [line for line in ended.stderr.splitlines() if "CONSOLE" in line]
    assert errors == []
    assert "&lt;a test&gt;" in ended.stdout
    assert "<a test>" not in ended.stdout
    for name in PLOTS:
        start = ended.stdout.index(f'id="plot-{name}"')
        drawn = ended.stdout[start : ended.stdout.find("</section>", start)]
        assert re.search(r'<g class="point"><path d="M', drawn), f"plot {name} is empty"
