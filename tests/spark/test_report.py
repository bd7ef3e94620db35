"""The report has the sums of pg_waldump, and its page shows them in a browser."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.compute as pc
import pytest
from wal_rows import rows_of

from quorum_wal.spark.changes.catalog import load_catalog
from quorum_wal.spark.errors import CatalogError
from quorum_wal.spark.inputs.folder_input import FolderInput
from quorum_wal.spark.jobs.relation_names import relation_names
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
def made(session: SparkSession, server_wal: Path, server_catalog: Path) -> Report:
    frame = session.read.format("pg_wal").option("path", str(server_wal))
    wal = frame.option("columns", ",".join(COLUMNS)).load()
    catalog = load_catalog(str(server_catalog))
    names = relation_names([catalog], catalog.system_id)
    return report(session, wal, "<a test>", names)


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


def test_relations_and_databases_are_called_by_their_names(
    made: Report, server_catalog: Path
) -> None:
    database = load_catalog(str(server_catalog)).database_name
    rows = {tuple(row[:2]) for row in made.answers["relations"].rows}
    assert made.answers["relations"].rows[0][:2] == (database, "public.t")
    assert (database, "public.t_pkey") in rows
    assert {row[0] for row in made.answers["databases"].rows} >= {database, None}
    assert made.answers["hot"].rows[0][1] == "public.t"


def test_shared_catalogs_have_names(server_catalog: Path) -> None:
    catalog = load_catalog(str(server_catalog))
    names = relation_names([catalog], catalog.system_id)
    shared = {name.name for (database, _), name in names.relations.items() if not database}
    assert {"pg_catalog.pg_database", "pg_catalog.pg_authid"} <= shared
    assert "pg_catalog.pg_class" not in shared
    index = next(name for name in names.relations.values() if name.name == "public.t_pkey")
    assert (index.table, index.is_index) == ("public.t", True)
    toast = next(name for name in names.relations.values() if "TOAST index" in name.name)
    assert (toast.name, toast.table) == ("public.t (TOAST index)", "public.t")
    with pytest.raises(CatalogError, match=r"is of system identifier \d+, expected 7"):
        relation_names([catalog], 7)


def test_the_headline_has_the_evidence_of_the_wal(made: Report) -> None:
    found = made.headline
    assert "public.t of database" in found.text
    assert made.summary["checkpoints"] >= 2
    assert made.summary["compressed_images"] == 0
    assert made.as_json()["headline"] == found.text


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
        assert re.search(r'class="bar" style="width:[1-9]|<rect ', drawn), f"plot {name} is empty"
