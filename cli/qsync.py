"""`sk qsync`: check the setup for quorum transactions, and show, list and resolve transactions."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import click
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from quorum_wal.cli.check import print_findings, standby_findings, unreachable
from quorum_wal.cli.coordinator_port import Coordinators, Rows, ask, ask_each, coordinator_option
from quorum_wal.cli.output import CommandError, ExitCode, console, plain_table, print_json
from quorum_wal.cli.parameters import json_option, primary_option, standby_option
from quorum_wal.pgwal.errors import WalError
from quorum_wal.pgwal.lsn import Lsn
from quorum_wal.qsync.gid import Gid, GidError
from quorum_wal.telemetry.stop_signal import StopSignal
from quorum_wal.walproposer.checks.finding import Finding, Level, fail, ok, warn
from quorum_wal.walproposer.checks.preflight_qsync import check_qsync
from quorum_wal.walproposer.errors import WalProposerError
from quorum_wal.walproposer.primary.janitor_rights import read_janitor_rights
from quorum_wal.walproposer.primary.primary_address import PrimaryAddress
from quorum_wal.walproposer.primary.primary_settings import read_primary_settings

WATCH_SECONDS = 1.0
#: By the word of OUTCOME. `pending` is neither a success nor an error.
EXIT_CODES = {
    "committed": 0,
    "rolled_back": 0,
    "pending": ExitCode.BLOCKED,
    "unknown": ExitCode.FAILED,
}
_REFUSED_STYLE = "bold yellow"


class GidText(click.ParamType[str]):
    """The gid of a transaction of qsync."""

    name = "gid"

    def convert(self, value: Any, param: Any, ctx: Any) -> str:
        try:
            return str(Gid.parse(str(value)))
        except GidError as error:
            self.fail(str(error), param, ctx)


class LsnText(click.ParamType[str]):
    name = "lsn"

    def convert(self, value: Any, param: Any, ctx: Any) -> str:
        try:
            return str(Lsn.parse(str(value)))
        except WalError as error:
            self.fail(str(error), param, ctx)


@click.group()
def qsync() -> None:
    """Quorum transactions, which stay prepared and invisible until a quorum has them.

    Clients use the Python package qsync. The coordinator is part of sk attach --qsync. See
    docs/qsync.md.
    """


# ---- check


@qsync.command()
@primary_option()
@standby_option
@click.option(
    "--coordinator",
    type=Coordinators(),
    help="Also check whether this coordinator admits transactions.",
)
@json_option
@click.pass_context
def check(
    context: click.Context,
    primary: str,
    standby: tuple[str, ...],
    coordinator: str | None,
    json: bool,
) -> None:
    """Check that a primary and its standbys are set up for qsync. Changes nothing.

    Give the same DSN of the primary as for sk attach, because the coordinator has the rights of
    that role. Exits with 3 if any check FAILs.
    """
    findings = _findings(primary, standby)
    if coordinator is not None:
        findings += _of_coordinator(coordinator)
    passed = all(finding.level is not Level.FAIL for finding in findings)
    if json:
        print_json({"passed": passed, "findings": findings})
    else:
        print_findings(findings)
    context.exit(0 if passed else ExitCode.BLOCKED)


def _findings(primary: str, standbys: tuple[str, ...]) -> list[Finding]:
    address = PrimaryAddress(primary)
    try:
        settings, rights = read_primary_settings(address), read_janitor_rights(address)
    except WalProposerError as error:
        return [unreachable("connection", error, "Start it, or correct --primary.")]
    findings = [ok("connection", str(address)), *check_qsync(settings, rights)]
    return findings + standby_findings(settings, standbys)


def _of_coordinator(coordinator: str) -> list[Finding]:
    try:
        pages = _pages(coordinator)
    except WalProposerError as error:
        return [unreachable("coordinator", error, "Start sk attach --qsync.")]
    leading = [page for page in pages if page["owner"]]
    if not leading:
        return [fail("coordinator", "it does not lead", "Run sk status to see the reason.")]
    (page, *_) = leading
    findings = [_admission(page)]
    for database, state in page["streams"].items():
        if state != "streaming":
            remedy = "The coordinator still works: it polls the prepared transactions."
            findings.append(warn("stream", f"database {database}: {state}", remedy))
    return findings


def _admission(page: dict[str, Any]) -> Finding:
    if page["refuses"]:
        text = f"it admits no transaction: {page['refuses']}"
        return fail("coordinator", text, "Run sk qsync status and sk qsync list.")
    return ok("coordinator", f"{page['address']} admits transactions, term {page['term']}")


# ---- status, list, watch


@qsync.command()
@coordinator_option
@json_option
@click.pass_context
def status(context: click.Context, coordinator: str, json: bool) -> None:
    """Show whether the coordinator leads, its prepared transactions, and its counters.

    If several coordinators are given, shows each that answers, the one that leads first. Exits with
    3 if none admits transactions, and shows the reason.
    """
    pages = _pages(coordinator)
    if json:
        print_json(pages)
    else:
        console().print(Group(*map(_page_section, pages)))
    admits = any(page["owner"] and not page["refuses"] for page in pages)
    context.exit(0 if admits else ExitCode.BLOCKED)


@qsync.command("list")
@coordinator_option
@json_option
def list_limbo(coordinator: str, json: bool) -> None:
    """List the prepared transactions, in the order of the log."""
    rows = ask(coordinator, "QSYNC_LIST")
    if json:
        print_json(rows)
    else:
        console().print(_limbo_table(rows))


@qsync.command()
@coordinator_option
@click.pass_context
def watch(context: click.Context, coordinator: str) -> None:
    """Show status and list, refreshed every second, until Ctrl-C."""
    stopping = StopSignal().install()
    with Live(console=console(), screen=False, auto_refresh=False) as live:
        while not stopping.is_set:
            live.update(_watched(coordinator), refresh=True)
            stopping.wait(WATCH_SECONDS)


def _watched(coordinator: str) -> RenderableType:
    parts: list[RenderableType] = []
    try:
        parts += map(_page_section, _pages(coordinator))
        parts.append(_limbo_table(ask(coordinator, "QSYNC_LIST")))
    except WalProposerError as error:
        parts.append(Text(" ".join(str(error).split()), style="bold red"))
    return Group(*parts)


def _pages(coordinator: str) -> list[dict[str, Any]]:
    """The status of each coordinator that answers, the one that leads first. Raises
    WalProposerError."""
    pages = [row["status"] for row in ask_each(coordinator, "QSYNC_STATUS")]
    return sorted(pages, key=lambda page: not page["owner"])


def _page_section(page: dict[str, Any]) -> RenderableType:
    lead = f"leads in term {page['term']}" if page["owner"] else "does not lead"
    lines = [
        Text(f"coordinator {page['address']}: {lead}", style="bold"),
        Text(
            f"limbo {page['len']} of {page['len_max']}, {page['unconfirmed']} not confirmed, the "
            f"oldest {page['age']:.0f} s; {page['foreign']} of others are prepared"
        ),
        Text(
            f"{page['waiting']} wait, the last verdict took {page['confirm_lag'] * 1000:.1f} ms; "
            f"{page['confirmed']} confirmed, {page['pending']} pending; left by their clients: "
            f"{page['committed']} committed, {page['rollback_count']} rolled back, "
            f"{page['adopted']} adopted"
        ),
    ]
    if page["refuses"]:
        lines.insert(1, Text(f"admits no transaction: {page['refuses']}", style=_REFUSED_STYLE))
    streams = "; ".join(f"{database} {state}" for database, state in page["streams"].items())
    if streams:
        lines.append(Text(f"streams: {streams}", overflow="fold"))
    return Group(*lines)


def _limbo_table(rows: Rows) -> RenderableType:
    table = plain_table(
        "gid", "database", "owner", "age", "prepare end", "confirmed", "policy", "deadline", "state"
    )
    for row in rows:
        bound = "" if row["is_exact"] else "<= "
        table.add_row(
            row["gid"],
            row["database"],
            row["owner"],
            f"{row['age_seconds']:.1f} s",
            f"{bound}{row['prepare_end_lsn']}" if row["prepare_end_lsn"] else "-",
            "yes" if row["confirmed"] else "no",
            row["policy"],
            _time(row["deadline"]),
            row["state"],
        )
    return table


def _time(moment: datetime) -> str:
    return moment.isoformat(" ", "seconds")


# ---- one transaction


@qsync.command()
@coordinator_option
@click.argument("gid", type=GidText())
@click.option("--lsn", type=LsnText(), help="An upper bound of the end of its PREPARE, if known.")
@json_option
@click.pass_context
def outcome(
    context: click.Context, coordinator: str, gid: str, lsn: str | None, json: bool
) -> None:
    """Print the outcome of the transaction GID.

    committed and rolled_back are final. Exits with 3 while it is pending, with 1 if the outcome is
    unknown because no record of the transaction is left.
    """
    verb = "OUTCOME {}" + (f" LSN {lsn}" if lsn else "")
    (row,) = ask(coordinator, verb, gid)
    if json:
        print_json(row)
    else:
        click.echo(" ".join(filter(None, (row["outcome"], row["lsn"]))))
    context.exit(EXIT_CODES[row["outcome"]])


@qsync.command()
@coordinator_option
@click.argument("gid", type=GidText())
@click.option("--commit", "end", flag_value="COMMIT", help="COMMIT PREPARED, if a quorum has it.")
@click.option("--rollback", "end", flag_value="ROLLBACK", help="ROLLBACK PREPARED.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=10.0,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait until a quorum has it.",
)
@json_option
def resolve(coordinator: str, gid: str, end: str | None, timeout: float, json: bool) -> None:
    """Commit or roll back the transaction GID now, instead of its client.

    Without this command, the coordinator commits it as soon as a quorum has it. Needs the role
    admin.
    """
    if end is None:
        raise click.UsageError("give --commit or --rollback")
    (row,) = ask(coordinator, f"RESOLVE {{}} {end} TIMEOUT {round(timeout * 1000)}", gid)
    if json:
        print_json(row)
    if row["verdict"] == "pending":
        raise CommandError(
            f"it is not known yet whether a quorum has the {end} PREPARED: the transaction may "
            "have been ended",
            "Run sk qsync outcome to see the outcome when it is known.",
            ExitCode.BLOCKED,
        )
    if not json:
        click.echo(row["verdict"])
