"""The page of a report in Chromium: no text covers another one, on a phone and on a wide screen."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from browser import Browser

from quorum_wal.spark.jobs.headline import Evidence, Writer, headline
from quorum_wal.spark.jobs.report import Answer, Report
from quorum_wal.spark.jobs.report_page import BARS, OTHERS, page

WIDTHS = (360, 1400)
MIB = 1 << 20
FIRST = datetime(2026, 11, 21, 23, 58, tzinfo=UTC)
#: the longest names that Postgres allows, of letters without a place to break
DATABASES = ["d" * 63, "Ä" * 31]
RELATIONS = [f"{'s' * 63}.{'n' * 60}_{number:02}" for number in range(20)]
RMGRS = [
    "Heap", "Heap2", "Btree", "Gin", "Gist", "SPGist", "BRIN", "Transaction", "XLOG", "Storage",
    "Standby", "LogicalMessage", "CommitTs", "ReplicationOrigin", "custom_resource_manager_of_us",
]  # fmt: skip

#: The boxes of all lines of text, without what their scrolling parents hide; then the pairs that
#: cover each other by more than a pixel.
OVERLAPS = """(() => {
  const shown = (rect, node) => {
    let [left, top, right, bottom] = [rect.left, rect.top, rect.right, rect.bottom];
    for (let e = node.parentElement; e && e !== document.body; e = e.parentElement) {
      if (getComputedStyle(e).overflow === 'visible' || e.namespaceURI.endsWith('svg')) continue;
      const box = e.getBoundingClientRect();
      left = Math.max(left, box.left); right = Math.min(right, box.right);
      top = Math.max(top, box.top); bottom = Math.min(bottom, box.bottom);
    }
    return {left, top, right, bottom};
  };
  const boxes = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node; (node = walker.nextNode());) {
    if (!node.data.trim() || node.parentElement.closest('style, title')) continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    for (const rect of range.getClientRects()) {
      const box = shown(rect, node);
      if (box.right - box.left > 1 && box.bottom - box.top > 1)
        boxes.push({...box, text: node.data.slice(0, 40), node: boxes.length});
    }
  }
  const pairs = [];
  for (const [i, a] of boxes.entries())
    for (const b of boxes.slice(i + 1))
      if (Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1 &&
          Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 1)
        pairs.push(`${a.text} | ${b.text}`);
  const beyond = boxes.filter((a) => a.right > innerWidth + 1).map((a) => a.text);
  return {count: boxes.length, pairs, beyond, width: document.documentElement.scrollWidth};
})()"""


def answers() -> dict[str, Answer]:
    amounts = [(n, n * n * MIB, n * MIB // 3) for n in range(20, 0, -1)]
    relations = [(DATABASES[i % 2], name, *amounts[i]) for i, name in enumerate(RELATIONS)]
    return {
        "rmgrs": Answer(
            "By resource manager", "", ("rmgr", "records", "bytes", "image_bytes"),
            tuple((name, *amounts[i]) for i, name in enumerate(RMGRS)),
        ),
        "relations": Answer(
            "By relation", "Tables and indexes, by file.",
            ("database", "relation", "records", "bytes", "image_bytes"), tuple(relations),
        ),
        "minutes": Answer(
            "By time", "Bytes of each resource manager.",
            ("time", "rmgr", "bytes", "image_bytes", "commits"),
            tuple(
                (FIRST + timedelta(minutes=m), rmgr, (m + 1) * (i + 1) * 99 * MIB, 0, m * 10**6)
                for m in range(30) for i, rmgr in enumerate(RMGRS)
            ),
        ),
        "checkpoints": Answer(
            "Checkpoints", "", ("lsn", "bytes", "image_bytes", "image_percent"),
            tuple((f"FFFFFFF0/{n:08X}", n * MIB, n, 99.9) for n in range(40)),
        ),
        "hot": Answer(
            "HOT updates", "", ("database", "relation", "hot", "updates", "hot_percent"),
            tuple((DATABASES[0], name, 40_000_000, 100_000_000, 40.0) for name in RELATIONS),
        ),
    }  # fmt: skip


def long_report() -> Report:
    evidence = Evidence(
        100 * MIB, 10**9, 0, 90 * MIB, 25 * MIB, 60 * MIB, 10**9, 21 * MIB, 1.0, 300, 600.0,
        100 * MIB, Writer(f"{RELATIONS[0]} of database {DATABASES[0]}", 60 * MIB, True),
    )  # fmt: skip
    summary: dict[str, Any] = {
        "lsn": 1 << 60, "end_lsn": (1 << 60) + MIB, "records": 10**12, "bytes": 100 * MIB,
        "images": 10**9, "image_bytes": 90 * MIB, "compressed_images": 0, "commits": 10**9,
        "aborts": 5, "first_time": FIRST, "last_time": FIRST + timedelta(minutes=30),
    }  # fmt: skip
    return Report(f"/srv/{'archive' * 12}", headline(evidence), summary, answers())


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("chromium")) as found:
        yield found


@pytest.mark.parametrize("width", WIDTHS)
def test_no_text_covers_another(browser: Browser, tmp_path: Path, width: int) -> None:
    file = tmp_path / "report.html"
    file.write_text(page(long_report()), encoding="utf-8")
    browser.look(width=width)
    browser.open(file.as_uri())
    found = browser.evaluate(OVERLAPS)
    browser.screenshot(f"report-{width}")
    assert found["count"] > 200
    assert found["pairs"] == []
    assert found["beyond"] == []
    assert found["width"] <= width
    assert browser.complaints == []
    for name in BARS.keys() & answers().keys():
        longest = f"document.querySelector('#plot-{name} .bar').getBoundingClientRect().width"
        assert browser.evaluate(longest) > 20, f"bars of {name}"
    legend = browser.evaluate("document.querySelector('#plot-minutes .legend').textContent")
    assert OTHERS in legend
    drawn = "[...document.querySelectorAll('#plot-minutes rect')].map(e => e.getBBox().height)"
    assert min(browser.evaluate(drawn)) > 0


def test_the_check_sees_texts_that_cover_each_other(browser: Browser) -> None:
    two = (
        "<p style='position:absolute;top:9px'>one</p><p style='position:absolute;top:15px'>two</p>"
    )
    browser.open(f"data:text/html,<body>{two}")
    assert browser.evaluate(OVERLAPS)["pairs"] == ["one | two"]
