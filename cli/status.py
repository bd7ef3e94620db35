"""`sk status`: show the state of a cluster, and what to do if it has a problem."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from quorum_wal.cli.member_table import member_json
from quorum_wal.cli.output import ExitCode, console, print_json
from quorum_wal.cli.page_opening import open_page
from quorum_wal.cli.parameters import (
    Dsn,
    http_token,
    http_token_option,
    json_option,
    safekeepers_option,
    wait_option,
    with_conninfo,
)
from quorum_wal.cli.shared_option import shared_option
from quorum_wal.cli.status_tables import (
    safekeepers_table,
    servers_section,
    timeline_section,
    unopened_section,
)
from quorum_wal.cluster.server_view import ServerView, server_views
from quorum_wal.cluster.timeline_view import TimelineView, timeline_views, unopened_timelines
from quorum_wal.cluster.verdict import Condition, Verdict, judge
from quorum_wal.consensus.membership_page import membership_page
from quorum_wal.telemetry.stop_signal import StopSignal
from quorum_wal.walproposer.safekeeper_client import SafekeeperAddress
from quorum_wal.walproposer.timelines.discovery import Discovery, discover

WATCH_SECONDS = 1.0
POLL_SECONDS = 0.5


@click.command()
@safekeepers_option
@http_token_option
@shared_option(
    "--primary",
    "SK_PRIMARY",
    type=Dsn(),
    multiple=True,
    help="Also show this Postgres: waiting commits, unsafe settings, whether it was deposed.",
)
@click.option("--watch", is_flag=True, help="Refresh every second, until Ctrl-C.")
@click.option(
    "--open",
    "opens_page",
    is_flag=True,
    help="Open the web page of the proposer in a browser, or of a safekeeper if there is none.",
)
@wait_option("Wait up to SECONDS until the verdict is OK.")
@json_option
@click.pass_context
def status(
    context: click.Context,
    safekeepers: tuple[SafekeeperAddress, ...],
    safekeeper_conninfo: str,
    http_token_file: Path | None,
    primary: tuple[str, ...],
    watch: bool,
    opens_page: bool,
    wait: float,
    json: bool,
) -> None:
    """Show the safekeepers, the proposer and their positions, and what to do about problems.

    The safekeepers report the addresses of all other parts. Exits with 3 if commits of a timeline
    cannot proceed or return without a quorum, if no member can open it, or if there is no timeline;
    with 4 if no safekeeper answers.
    """
    if wait and (watch or opens_page):
        raise click.UsageError("--wait is not for --watch and --open")
    if watch + json + opens_page > 1:
        raise click.UsageError("--watch, --open and --json exclude each other")
    addresses = with_conninfo(safekeepers, safekeeper_conninfo)
    token = http_token(http_token_file)
    if watch:
        _watch(addresses, token, primary)
        return
    if opens_page:
        open_page(discover(addresses, token), safekeeper_conninfo)
        return
    discovery, judged, primaries = _ask_until_ok(addresses, token, primary, wait)
    if json:
        views = [view.as_json() for view in primaries]
        print_json({**_as_json(discovery, judged), "primaries": views})
    else:
        console().print(_page(discovery, judged, primaries))
    context.exit(_exit_code(discovery, judged))


def _ask_until_ok(
    addresses: tuple[SafekeeperAddress, ...],
    token: str,
    primary: tuple[str, ...],
    wait_seconds: float,
) -> tuple[Discovery, list[tuple[TimelineView, Verdict]], list[ServerView]]:
    """The last answers: the first that are OK, or those at the end of `wait_seconds`. A safekeeper
    that refuses would also refuse later, so it ends the wait."""
    deadline = time.monotonic() + wait_seconds
    while True:
        discovery, judged, primaries = _ask(addresses, token, primary)
        has_refused = any(report.hint for report in discovery.safekeepers)
        is_ok = bool(judged) and all(v.condition is Condition.OK for _, v in judged)
        if is_ok or has_refused or time.monotonic() >= deadline:
            return discovery, judged, primaries
        time.sleep(POLL_SECONDS)


def _ask(
    addresses: tuple[SafekeeperAddress, ...], token: str, primary: tuple[str, ...]
) -> tuple[Discovery, list[tuple[TimelineView, Verdict]], list[ServerView]]:
    discovery = discover(addresses, token)
    primaries = server_views(primary, discovery)
    judged = [(view, judge(view, primaries)) for view in timeline_views(discovery)]
    return discovery, judged, primaries


def _exit_code(discovery: Discovery, judged: list[tuple[TimelineView, Verdict]]) -> int:
    if not any(report.reachable for report in discovery.safekeepers):
        has_refused = any(report.hint for report in discovery.safekeepers)
        return ExitCode.FAILED if has_refused else ExitCode.UNREACHABLE
    if unopened_timelines(discovery):
        return ExitCode.BLOCKED
    is_well = bool(judged) and all(verdict.is_well for _, verdict in judged)
    return 0 if is_well else ExitCode.BLOCKED


def _watch(addresses: tuple[SafekeeperAddress, ...], token: str, primary: tuple[str, ...]) -> None:
    """Runs until a signal. The signal sets a flag, because a KeyboardInterrupt inside a callback of
    a library would be printed and ignored."""
    stopping = StopSignal().install()
    with Live(console=console(), screen=False, auto_refresh=False) as live:
        while not stopping.is_set:
            live.update(_page(*_ask(addresses, token, primary)), refresh=True)
            stopping.wait(WATCH_SECONDS)


def _page(
    discovery: Discovery,
    judged: list[tuple[TimelineView, Verdict]],
    primaries: list[ServerView],
) -> RenderableType:
    parts: list[RenderableType] = [timeline_section(*each) for each in judged]
    unopened = unopened_timelines(discovery)
    parts += [unopened_section(*each) for each in unopened.items()]
    if not parts:
        parts = [Text(_no_timeline(discovery), style="bold yellow"), Text("")]
    if primaries:
        parts += [servers_section(primaries), Text("")]
    views = [view for view, _ in judged]
    return Group(*parts, safekeepers_table(discovery.safekeepers, views))


def _no_timeline(discovery: Discovery) -> str:
    if not any(report.reachable for report in discovery.safekeepers):
        for report in discovery.safekeepers:
            if report.hint:
                return f"UNKNOWN: the safekeepers refuse to answer: {report.error}; {report.hint}"
        return "UNKNOWN: no safekeeper answers; start them, or correct --safekeepers"
    return "NO TIMELINE: the safekeepers are empty; run sk attach for a primary"


def _as_json(discovery: Discovery, judged: list[tuple[TimelineView, Verdict]]) -> dict[str, Any]:
    return {
        "safekeepers": [
            {
                "address": report.address,
                "reachable": report.reachable,
                "error": report.error or report.page_error or None,
                "safekeeper_id": report.safekeeper_id or None,
                "version": report.version or None,
                "http": report.http or None,
                "disk": report.disk,
                "scrub": report.scrub,
                "damaged": report.damaged,
                "unusable_files": report.unusable_files,
                "certificate_until": report.certificate_until,
            }
            for report in discovery.safekeepers
        ],
        "timelines": [timeline_json(view, verdict) for view, verdict in judged],
    }


def timeline_json(view: TimelineView, verdict: Verdict) -> dict[str, Any]:
    """One timeline. `status`, `peer` and `page` are as the services themselves report them."""
    losses = view.site_losses
    return {
        "tenant_id": view.timeline.tenant_id.hex(),
        "timeline_id": view.timeline.timeline_id.hex(),
        "system_id": view.system_id,
        "pg_version": view.pg_version,
        "generation": view.membership.generation,
        "membership": membership_page(view.membership),
        "change": view.change,
        "site_losses": losses.as_json() if losses is not None else None,
        "condition": verdict.condition.value,
        "verdict": str(verdict),
        "runbook": verdict.runbook or None,
        "commits_proceed": verdict.commits_proceed,
        "is_well": verdict.is_well,
        "members": [member_json(member) for member in view.members],
        "others": [member_json(member) for member in view.others],
        "proposers": [
            {
                "http": proposer.http,
                "node_id": {
                    "term": proposer.node_id.term,
                    "uuid": proposer.node_id.proposer_uuid.hex(),
                },
                "streams_to": list(proposer.streams_to),
                "error": proposer.error or None,
                "page": proposer.page,
            }
            for proposer in view.proposers
        ],
    }
