"""The output of `sk demo`: a live view on a terminal, plain lines elsewhere, results at the end.

Law: the view only reads the state of the scenario, and never changes it.
"""

from __future__ import annotations

import time
from collections import deque
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Self

from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from quorum_wal.cli.output import console, plain_table
from quorum_wal.pg_fixtures.cluster import PRIMARY
from quorum_wal.pg_fixtures.errors import FixtureError
from quorum_wal.pg_fixtures.http_status import http_get_status
from quorum_wal.telemetry.size import bytes_text

if TYPE_CHECKING:
    from quorum_wal.cli.demo import Demo, DemoResult, Step

FRAMES_PER_SECOND = 4
RATE_SAMPLES = 2 * FRAMES_PER_SECOND
EVENTS_SHOWN = 8
_NOTHING = "-"


class DemoView:
    """A context manager that shows the progress of Demo.run()."""

    def __init__(self, demo: Demo) -> None:
        self._demo = demo
        self._console = console()
        self._stack = ExitStack()
        self._samples: deque[tuple[float, int]] = deque(maxlen=RATE_SAMPLES)

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            live = Live(
                get_renderable=self._frame,
                console=self._console,
                refresh_per_second=FRAMES_PER_SECOND,
                transient=True,
            )
            self._stack.enter_context(live)
        else:
            self._demo.on_step = lambda step: self._console.print(step_line(step))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _frame(self) -> RenderableType:
        demo = self._demo
        clock = Text(f"{demo.elapsed_seconds:5.1f} s  {demo.doing} ...", style="bold")
        events = [Text(step_line(step)) for step in demo.steps[-EVENTS_SHOWN:]]
        return Group(*events, clock, Text(""), self._components(), Text(self._commits()))

    def _commits(self) -> str:
        ledger = self._demo.ledger
        self._samples.append((time.monotonic(), ledger.acknowledged))
        (begun, before), (now, after) = self._samples[0], self._samples[-1]
        rate = (after - before) / (now - begun) if now > begun else 0.0
        return (
            f"{ledger.acknowledged} rows acknowledged, {rate:.0f}/s, "
            f"{ledger.in_flight} commits waiting"
        )

    def _components(self) -> Table:
        cluster = self._demo.cluster
        table = plain_table("", "", "", "")
        table.show_header = False
        for safekeeper in cluster.safekeepers:
            status = _status(safekeeper.http_address)
            timeline = status["timelines"][0] if status and status["timelines"] else {}
            proposer = "streaming" if timeline.get("proposer") else _NOTHING
            flush_lsn = timeline.get("flush_lsn", _NOTHING)
            table.add_row(safekeeper.name, _life(status), proposer, f"flush {flush_lsn}")
        status = _status(cluster.proposer.http_address)
        commit_lsn = (status or {}).get("commit_lsn", _NOTHING)
        state = str((status or {}).get("state", _NOTHING))
        table.add_row("proposer", _life(status), state, f"commit {commit_lsn}")
        return table


def _life(status: dict[str, Any] | None) -> Text:
    return Text("running", "green") if status is not None else Text("down", "bold red")


def _status(http_address: str) -> dict[str, Any] | None:
    try:
        return http_get_status(http_address)
    except (OSError, FixtureError):
        return None


def step_line(step: Step) -> str:
    """The line of a step that has ended."""
    return f"{step.at_seconds:5.1f} s  {step.action}: {step.result}"


def print_result(demo: Demo, result: DemoResult) -> None:
    """Prints the steps with their times and results, then the verdict."""
    out = console()
    table = plain_table("at", "action", "result", "rows acknowledged")
    for column in (0, 3):
        table.columns[column].justify = "right"
    for column in (1, 2):
        table.columns[column].no_wrap = False
    for step in demo.steps:
        at = f"{step.at_seconds:.1f} s"
        table.add_row(at, step.action, step.result, str(step.acknowledged))
    out.print()
    out.print(table)
    out.print()
    for name, value in _verdict_rows(demo, result):
        out.print(f"{name:<22} {value}")
    verdict = "PASSED: nothing acknowledged was lost" if result.ok else "FAILED"
    style = "bold green" if result.ok else "bold red"
    out.print()
    out.print(Text(f"{verdict} ({demo.elapsed_seconds:.0f} s)", style))


def _verdict_rows(demo: Demo, result: DemoResult) -> list[tuple[str, str]]:
    ledger, comparison = result.ledger, result.comparison
    rows = [
        ("rows acknowledged", str(ledger.acknowledged)),
        ("rows lost", str(len(ledger.lost))),
        ("rows damaged", str(len(ledger.damaged))),
        ("outcome unknown", f"{ledger.unknown_found + ledger.unknown_absent} (killed in COMMIT)"),
        ("longest silence", f"{demo.ledger.longest_silence():.1f} s"),
        ("median commit", f"{result.latency_ms:.1f} ms"),
    ]
    segments = [s for s in comparison.segments if len(s.holders) > 1]
    rows.append(("segments compared", f"{len(segments)}, up to {result.compared_up_to}"))
    for name, records in result.records.items():
        begin_lsn, end_lsn = comparison.range_of(name)
        rows.append((
            name,
            f"{bytes_text(end_lsn - begin_lsn)} of WAL equal to the others', "
            f"pg_waldump reads {records} records",
        ))  # fmt: skip
    begin_lsn, end_lsn = comparison.range_of(PRIMARY)
    rows.append((PRIMARY, f"{bytes_text(end_lsn - begin_lsn)} of WAL equal to the safekeepers'"))
    return rows
