"""`sk check`: check a primary and its safekeepers before sk attach, without changing anything."""

from __future__ import annotations

import time
from pathlib import Path

import click
from rich.text import Text

from quorum_wal.cli.output import ExitCode, console, plain_table, print_json
from quorum_wal.cli.parameters import (
    application_name_option,
    http_token,
    http_token_option,
    json_option,
    primary_option,
    safekeepers_option,
    slot_option,
    standby_option,
    timeline_option,
    wait_option,
    with_conninfo,
)
from quorum_wal.consensus.ids import TimelineId
from quorum_wal.walproposer.checks.finding import Finding, Level, fail
from quorum_wal.walproposer.checks.preflight import check_primary
from quorum_wal.walproposer.checks.preflight_members import check_safekeepers
from quorum_wal.walproposer.checks.preflight_qsync import check_standbys
from quorum_wal.walproposer.errors import WalProposerError
from quorum_wal.walproposer.primary.primary_address import PrimaryAddress
from quorum_wal.walproposer.primary.primary_settings import PrimarySettings, read_primary_settings
from quorum_wal.walproposer.safekeeper_client import SafekeeperAddress
from quorum_wal.walproposer.timelines.discovery import SafekeeperReport, inspect_safekeepers

POLL_SECONDS = 0.5

_STYLES = {Level.OK: "green", Level.WARN: "yellow", Level.FAIL: "bold red"}


@click.command()
@primary_option()
@safekeepers_option
@http_token_option
@timeline_option
@slot_option
@application_name_option
@standby_option
@wait_option("Wait up to SECONDS until all safekeepers answer.")
@json_option
@click.pass_context
def check(
    context: click.Context,
    primary: str,
    safekeepers: tuple[SafekeeperAddress, ...],
    safekeeper_conninfo: str,
    http_token_file: Path | None,
    timeline: TimelineId | None,
    slot: str,
    application_name: str,
    standby: tuple[str, ...],
    wait: float,
    json: bool,
) -> None:
    """Check a primary and its safekeepers before sk attach. Changes nothing.

    Prints one line per check: ok, warn or FAIL, with the command that repairs it. Exits with 3 if
    any check FAILs.
    """
    address = PrimaryAddress(primary, slot, application_name)
    addresses = with_conninfo(safekeepers, safekeeper_conninfo)
    reports = _ask_safekeepers(addresses, http_token(http_token_file), wait)
    found, findings = _ask_primary(address)  # last, so that its positions are not before theirs
    findings += check_safekeepers(reports, found, timeline, application_name)
    if found is not None:
        findings += standby_findings(found, standby)
    passed = all(finding.level is not Level.FAIL for finding in findings)
    if json:
        print_json({"passed": passed, "findings": findings})
    else:
        print_findings(findings)
    context.exit(0 if passed else ExitCode.BLOCKED)


def _ask_safekeepers(
    addresses: tuple[SafekeeperAddress, ...], token: str, wait_seconds: float
) -> tuple[SafekeeperReport, ...]:
    """Waits for those that do not answer. One that refuses would also refuse later."""
    deadline = time.monotonic() + wait_seconds
    while True:
        reports = inspect_safekeepers(addresses, token)
        is_complete = all(report.reachable or report.hint for report in reports)
        if is_complete or time.monotonic() >= deadline:
            return reports
        time.sleep(POLL_SECONDS)


def _ask_primary(address: PrimaryAddress) -> tuple[PrimarySettings | None, list[Finding]]:
    try:
        primary = read_primary_settings(address)
    except WalProposerError as error:
        return None, [unreachable("connection", error, "Start it, or correct --primary.")]
    connected = Finding("connection", Level.OK, str(address))
    return primary, [connected, *check_primary(primary, address)]


def standby_findings(primary: PrimarySettings, standbys: tuple[str, ...]) -> list[Finding]:
    """The findings about each given standby, also about one that does not answer."""
    findings: list[Finding] = []
    for dsn in standbys:
        address = PrimaryAddress(dsn)
        try:
            settings = read_primary_settings(address)
        except WalProposerError as error:
            findings.append(unreachable("standby", error, "Start it, or correct --standby."))
        else:
            findings += check_standbys(primary, [(str(address), settings)])
    return findings


def unreachable(check: str, error: WalProposerError, remedy: str) -> Finding:
    """`remedy` is used if the error has no hint."""
    return fail(check, " ".join(str(error).split()), error.hint or remedy)


def print_findings(findings: list[Finding]) -> None:
    """Prints one line per finding, and below it the remedy."""
    table = plain_table("", "check", "")
    table.show_header = False
    table.columns[2].no_wrap = False
    for finding in findings:
        level = Text(finding.level.value, _STYLES[finding.level])
        table.add_row(level, finding.check, finding.text)
        if finding.remedy:
            table.add_row("", "", Text(f"-> {finding.remedy}", "dim"))
    console().print(table)
