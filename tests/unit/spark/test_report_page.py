"""The report's page and its table cells, without Spark."""

from __future__ import annotations

from datetime import datetime

import pytest

from quorum_wal.spark.jobs.report import Answer, Report
from quorum_wal.spark.jobs.report_page import cell, page, summary_lines


def test_a_report_of_no_wal() -> None:
    nothing = Report("nothing", {"records": None}, {"rmgrs": Answer("By rmgr", "", ("rmgr",), ())})
    assert summary_lines(nothing) == [("WAL", "no records")]
    assert "There is none in this WAL" in page(nothing)


def test_outside_text_is_escaped() -> None:
    answer = Answer("Hot blocks", "", ("relation", "records"), (("<script>alert(1)</script>", 3),))
    assert "<script>alert" not in page(Report("<b>", {"records": None}, {"blocks": answer}))


@pytest.mark.parametrize(
    ("value", "column", "text"),
    [
        (None, "bytes", "-"),
        (1536, "image_bytes", "1.5 KiB"),
        (1234567, "records", "1,234,567"),
        (1234567, "xid", "1234567"),
        ("0/1000028", "lsn", "0/1000028"),
        (datetime(2026, 11, 21, 10, 0, 5, 250000), "time", "2026-11-21 10:00:05"),
    ],
)
def test_cells(value: object, column: str, text: str) -> None:
    assert cell(value, column) == text
