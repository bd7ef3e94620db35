"""The report's page and its table cells, without Spark."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from quorum_wal.spark.jobs.headline import Headline
from quorum_wal.spark.jobs.report import ROWS_MAX, Answer, Report
from quorum_wal.spark.jobs.report_page import cell, labels, page, summary_lines, times

NO_WAL = Headline("There are no WAL records.", ())


def test_a_report_of_no_wal() -> None:
    rmgrs = Answer("By rmgr", "", ("rmgr",), ())
    nothing = Report("nothing", NO_WAL, {"records": None}, {"rmgrs": rmgrs})
    assert "There are no WAL records." in page(nothing)
    assert summary_lines(nothing) == [("WAL", "no records")]
    assert "There is none in this WAL" in page(nothing)


def test_outside_text_is_escaped() -> None:
    answer = Answer("Hot blocks", "", ("relation", "records"), (("<script>alert(1)</script>", 3),))
    assert "<script>alert" not in page(Report("<b>", NO_WAL, {"records": None}, {"blocks": answer}))


def test_labels_name_the_database_if_there_are_several() -> None:
    columns = ("database", "relation", "bytes")
    one = Answer("", "", columns, (("shop", "public.a", 2), ("shop", "public.b", 1)))
    assert labels("relations", one) == ["public.a", "public.b"]
    two = Answer("", "", columns, (("shop", "public.a", 2), ("crm", "public.a", 1)))
    assert labels("relations", two) == ["shop: public.a", "crm: public.a"]


def test_times_in_a_terminal() -> None:
    """One line for each time, and no more lines than other tables have."""
    columns = ("time", "rmgr", "bytes", "image_bytes", "commits")
    start = datetime(2026, 11, 21, 10)
    one, two = ((start, "Heap", 10, 0, None), (start, "Transaction", 5, 0, 2))
    few = times(Answer("By time", "Bytes.", columns, (one, two)))
    assert (few.columns, few.rows) == (
        ("time", "bytes", "image_bytes", "commits"),
        ((start, 15, 0, 2),),
    )
    assert few.meaning == "Bytes."
    rows = tuple((start + timedelta(seconds=n), "Heap", n % 50, 0, 0) for n in range(100))
    many = times(Answer("By time", "Bytes.", columns, rows))
    assert len(many.rows) == ROWS_MAX
    assert list(many.rows) == sorted(many.rows)
    assert {row[1] for row in many.rows} == set(range(40, 50))
    assert many.meaning == "Bytes. Of 100 times, these 20 have the most bytes."


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
