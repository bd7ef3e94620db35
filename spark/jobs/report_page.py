"""A report as one HTML file, with tables and plots; it needs no network and no server.

Laws: all text from the WAL or a catalog is escaped; the file contains the plotting library.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from html import escape
from typing import Any

import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

from quorum_wal.pgwal.lsn import format_lsn
from quorum_wal.spark.jobs.report import Answer, Report
from quorum_wal.telemetry.size import bytes_text

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; color: #223;
       padding: 0 1rem }
h1 { font-size: 1.6rem } h2 { font-size: 1.15rem; margin-top: 2.5rem }
p { color: #667; margin: .2rem 0 1rem }
table { border-collapse: collapse; font-variant-numeric: tabular-nums }
th, td { padding: .25rem .8rem; text-align: left; border-bottom: 1px solid #dde }
td.number, th.number { text-align: right }
dl { display: grid; grid-template-columns: max-content auto; gap: .2rem 1.5rem } dt { color: #667 }
dd { margin: 0 }
"""
_HEIGHT = 340


def page(report: Report) -> str:
    """The whole HTML file."""
    title = f"What writes the WAL of {report.source}"
    sections = [_section(name, answer) for name, answer in report.answers.items()]
    return "\n".join(
        (
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            '<link rel="icon" href="data:,">',
            f"<title>{escape(title)}</title><style>{_STYLE}</style>",
            f"<script>{get_plotlyjs()}</script></head><body>",
            f"<h1>{escape(title)}</h1>{_summary(report)}",
            *sections,
            "</body></html>",
        )
    )


def _summary(report: Report) -> str:
    pairs = "".join(f"<dt>{escape(k)}</dt><dd>{escape(v)}</dd>" for k, v in summary_lines(report))
    return f"<dl>{pairs}</dl>"


def summary_lines(report: Report) -> list[tuple[str, str]]:
    """The summary of the report, as (name, value)."""
    found = report.summary
    if not found["records"]:
        return [("WAL", "no records")]
    first, last = found["first_time"], found["last_time"]
    seconds = (last - first).total_seconds() if first and last else 0.0
    commits = found["commits"] or 0
    rate = f", {commits / seconds:.0f} a second" if seconds >= 1 else ""
    image_percent = 100 * found["image_bytes"] / found["bytes"]
    return [
        ("WAL", f"{format_lsn(found['lsn'])} .. {format_lsn(found['end_lsn'])}"),
        ("time", f"{cell(first, 'time')} .. {cell(last, 'time')}" if first else "unknown"),
        ("records", f"{found['records']:,}"),
        ("bytes", bytes_text(found["bytes"])),
        ("full-page images", f"{found['images']:,}, {image_percent:.1f} % of the bytes"),
        ("commits", f"{commits:,}{rate}"),
        ("aborts", f"{found['aborts'] or 0:,}"),
    ]


def _section(name: str, answer: Answer) -> str:
    head = f"<h2>{escape(answer.title)}</h2><p>{escape(answer.meaning)}</p>"
    if not answer.rows:
        return f"{head}<p>There is none in this WAL.</p>"
    figure = _figure(name, answer)
    plot = ""
    if figure is not None:
        figure.update_layout(height=_HEIGHT, margin={"l": 60, "r": 20, "t": 10, "b": 40})
        plot = figure.to_html(
            full_html=False,
            include_plotlyjs=False,
            div_id=f"plot-{name}",
            config={"displaylogo": False},
        )
    table = "" if name == "minutes" else _table(answer)
    return f"<section>{head}{plot}{table}</section>"


def _figure(name: str, answer: Answer) -> go.Figure | None:
    if name == "minutes":
        return _over_time(answer)
    if name in ("rmgrs", "operations", "relations", "largest"):
        labels = [" ".join(label_cells(name, row)) for row in answer.rows]
        return go.Figure(go.Bar(x=labels, y=_column(answer, "bytes")))
    if name == "checkpoints":
        return go.Figure(
            go.Bar(x=_column(answer, "lsn"), y=_column(answer, "image_percent")),
            {"yaxis": {"title": "% page images"}},
        )
    if name == "hot":
        return go.Figure(
            go.Bar(x=_column(answer, "relation"), y=_column(answer, "hot_percent")),
            {"yaxis": {"title": "% HOT", "range": [0, 100]}, "xaxis": {"type": "category"}},
        )
    return None


def label_cells(name: str, row: Sequence[Any]) -> list[str]:
    """The label of a bar."""
    if name == "operations":
        return [str(each) for each in row[:2]]
    if name == "relations":
        return [f"{row[0]}/{row[1]}" if row[1].isdigit() else row[1]]
    return [f"xid {row[0]}" if name == "largest" else str(row[0])]


def _over_time(answer: Answer) -> go.Figure:
    figure = go.Figure()
    rmgrs = sorted(set(_column(answer, "rmgr")))
    for rmgr in rmgrs:
        rows = [row for row in answer.rows if row[1] == rmgr]
        figure.add_bar(x=[row[0] for row in rows], y=[row[2] for row in rows], name=rmgr)
    commits: dict[Any, int] = {}
    for row in answer.rows:
        commits[row[0]] = commits.get(row[0], 0) + (row[4] or 0)
    figure.add_scatter(
        x=list(commits), y=list(commits.values()), name="commits", yaxis="y2", mode="lines+markers"
    )
    figure.update_layout(
        barmode="stack",
        yaxis={"title": "bytes"},
        yaxis2={"title": "commits", "overlaying": "y", "side": "right", "rangemode": "tozero"},
        legend={"orientation": "h"},
    )
    return figure


def _column(answer: Answer, name: str) -> list[Any]:
    index = answer.columns.index(name)
    return [row[index] for row in answer.rows]


def _table(answer: Answer) -> str:
    numeric = [
        all(isinstance(v, int | float) for v in column) for column in zip(*answer.rows, strict=True)
    ]
    classes = [' class="number"' if each else "" for each in numeric]
    heads = "".join(
        f"<th{css}>{escape(heading(name))}</th>"
        for css, name in zip(classes, answer.columns, strict=True)
    )
    lines = [
        "".join(
            f"<td{css}>{escape(cell(value, name))}</td>"
            for css, value, name in zip(classes, row, answer.columns, strict=True)
        )
        for row in answer.rows
    ]
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f"<table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>"


def heading(column: str) -> str:
    return column.replace("_", " ")


def cell(value: Any, column: str) -> str:
    """A value as text for people."""
    if value is None:
        return "-"
    if isinstance(value, datetime):
        return value.isoformat(sep=" ", timespec="seconds")
    if column == "bytes" or column.endswith("_bytes"):
        return bytes_text(value)
    if isinstance(value, int) and column not in ("xid", "database", "block"):
        return f"{value:,}"
    return str(value)
