"""A report as one HTML file, with tables and charts; it needs no network, no server and no scripts.

Laws: all text from the WAL or a catalog is escaped; no text covers another one, whatever the width
of the window and the length of names.
"""

from __future__ import annotations

from datetime import datetime
from html import escape
from typing import Any

from quorum_wal.pgwal.lsn import format_lsn
from quorum_wal.spark.jobs.report import ROWS_MAX, Answer, Report
from quorum_wal.spark.jobs.time_chart import COLOURS, time_chart
from quorum_wal.telemetry.size import bytes_text

_STYLE = """
* { box-sizing: border-box }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; color: #223;
       padding: 0 1rem }
h1 { font-size: 1.6rem } h2 { font-size: 1.15rem; margin-top: 2.5rem }
h1, p, dd, .label { overflow-wrap: anywhere }
p { color: #556; margin: .2rem 0 1rem }
p.headline { color: #223; font-size: 1.1rem; border-left: 4px solid #36c; padding-left: .8rem }
.scroll { overflow: auto; max-height: 48rem; margin-top: 1rem }
table { border-collapse: collapse; font-variant-numeric: tabular-nums }
th, td { padding: .25rem .8rem; text-align: left; border-bottom: 1px solid #dde;
         white-space: nowrap }
td.number, th.number { text-align: right }
dl { display: grid; grid-template-columns: max-content minmax(0, 1fr); gap: .2rem 1.5rem }
dt { color: #556 } dd { margin: 0 }
ol.bars { list-style: none; margin: 0; padding: 0; overflow: auto; max-height: 48rem }
.bars li { display: grid; grid-template-columns: minmax(0, 2fr) minmax(0, 3fr) 6rem;
           gap: 0 .8rem; align-items: center; padding: .15rem 0 }
.label { font-size: .9rem } .value { text-align: right; font-variant-numeric: tabular-nums }
svg { display: block; width: 100%; height: 12rem; background: #f4f5f9 }
p.axis { margin: .8rem 0 .2rem; font-size: .9rem } p.ends { margin: .1rem 0 }
.ends { display: flex; flex-wrap: wrap; justify-content: space-between; gap: 0 1rem }
.legend { list-style: none; margin: .3rem 0; padding: 0; display: flex; flex-wrap: wrap;
          gap: 0 1.2rem; font-size: .9rem; overflow-wrap: anywhere }
.swatch { display: inline-block; width: .8rem; height: .8rem; margin-right: .4rem }
.bar { height: 1rem; min-width: 1px; background: #36c }
@media (max-width: 40rem) {
  .bars li { grid-template-columns: minmax(0, 1fr) 6rem } .label { grid-column: 1 / 3 }
}
"""
#: the name of the resource managers that have no colour of their own, taken together
OTHERS = "others"

#: the answers with bars: the column of their length
BARS = {
    "rmgrs": "bytes",
    "operations": "bytes",
    "relations": "bytes",
    "checkpoints": "image_percent",
    "largest": "bytes",
    "hot": "hot_percent",
}


def page(report: Report) -> str:
    """The whole HTML file."""
    title = f"What writes the WAL of {report.source}"
    sections = [_section(name, answer) for name, answer in report.answers.items()]
    return "\n".join(
        (
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<link rel="icon" href="data:,">',
            f"<title>{escape(title)}</title><style>{_STYLE}</style>",
            "</head><body>",
            f"<h1>{escape(title)}</h1>",
            f'<p class="headline">{escape(report.headline.text)}</p>{_summary(report)}',
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
        (
            "full-page images",
            f"{found['images']:,}, {image_percent:.1f} % of the bytes, "
            f"{found['compressed_images'] or 0:,} compressed",
        ),
        ("commits", f"{commits:,}{rate}"),
        ("aborts", f"{found['aborts'] or 0:,}"),
    ]


def _section(name: str, answer: Answer) -> str:
    head = f"<h2>{escape(answer.title)}</h2><p>{escape(answer.meaning)}</p>"
    if not answer.rows:
        return f"<section>{head}<p>There is none in this WAL.</p></section>"
    if name == "minutes":
        plot, table = _over_time(answer), ""
    else:
        plot, table = _bars(name, answer) if name in BARS else "", _table(answer)
    return f"<section>{head}{plot}{table}</section>"


def _bars(name: str, answer: Answer) -> str:
    """Bars are elements of the page, not of a plot: a browser wraps their labels."""
    column = BARS[name]
    values = [value or 0 for value in _column(answer, column)]
    longest = 100 if column.endswith("_percent") else max(values) or 1
    unit = " %" if column.endswith("_percent") else ""
    lines = "".join(
        f'<li><span class="label">{escape(label)}</span>'
        f'<span><div class="bar" style="width:{100 * value / longest:.1f}%"></div></span>'
        f'<span class="value">{escape(cell(value, column))}{unit}</span></li>'
        for label, value in zip(labels(name, answer), values, strict=True)
    )
    return f'<ol class="bars" id="plot-{name}" tabindex="0">{lines}</ol>'


def labels(name: str, answer: Answer) -> list[str]:
    """The labels of the bars. They name the database if there are several."""
    if name == "operations":
        return [f"{row[0]} {row[1]}" for row in answer.rows]
    if name == "largest":
        return [f"xid {xid}" for xid in _column(answer, "xid")]
    if "relation" not in answer.columns:
        return [str(row[0] or "unknown") for row in answer.rows]
    databases, relations = _column(answer, "database"), _column(answer, "relation")
    if len(set(databases)) == 1:
        return [str(relation) for relation in relations]
    return [f"{a}: {b}" for a, b in zip(databases, relations, strict=True)]


def _over_time(answer: Answer) -> str:
    """The bytes of the largest resource managers, and the commits."""
    sums: dict[str, int] = {}
    commits: dict[datetime, int] = {}
    for time, rmgr, size, _, ended in answer.rows:
        sums[rmgr] = sums.get(rmgr, 0) + size
        commits[time] = commits.get(time, 0) + (ended or 0)
    shown = sorted(sums, key=lambda rmgr: (-sums[rmgr], rmgr))[: len(COLOURS) - 1]
    series: dict[str, dict[datetime, int]] = {rmgr: {} for rmgr in shown}
    for time, rmgr, size, _, _ in answer.rows:
        values = series.setdefault(rmgr if rmgr in shown else OTHERS, {})
        values[time] = values.get(time, 0) + size
    charts = [time_chart("bytes", series, bytes_text)]
    if any(commits.values()):
        charts.append(time_chart("commits", {"commits": commits}, "{:,}".format))
    return f'<div id="plot-minutes">{"".join(charts)}</div>'


def times(answer: Answer) -> Answer:
    """The answer over time for a terminal: all resource managers together, in order. Of many
    times, only those with the most bytes."""
    sums: dict[datetime, list[int]] = {}
    for time, _, *amounts in answer.rows:
        added = [amount or 0 for amount in amounts]
        before = sums.get(time, [0] * len(added))
        sums[time] = [a + b for a, b in zip(before, added, strict=True)]
    shown = sorted(sums, key=lambda time: (-sums[time][0], time))[:ROWS_MAX]
    meaning = answer.meaning
    if len(shown) < len(sums):
        meaning = f"{meaning} Of {len(sums):,} times, these {len(shown)} have the most bytes."
    columns = tuple(name for name in answer.columns if name != "rmgr")
    rows = tuple((time, *sums[time]) for time in sorted(shown))
    return Answer(answer.title, meaning, columns, rows)


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
    table = f"<table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div class="scroll" tabindex="0">{table}</div>'


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
    if isinstance(value, int) and column not in ("xid", "block"):
        return f"{value:,}"
    return str(value)
