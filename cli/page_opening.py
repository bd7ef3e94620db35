"""`sk status --open`: finds a web page of the cluster and opens it in the user's browser."""

from __future__ import annotations

import webbrowser
from collections.abc import Iterator

import click

from quorum_wal.cli.output import CommandError
from quorum_wal.cluster.timeline_view import timeline_views
from quorum_wal.walproposer.errors import WalProposerError
from quorum_wal.walproposer.timelines.discovery import Discovery
from quorum_wal.walproposer.timelines.status_page import (
    PageAccess,
    PageAddress,
    demands_tls,
    page_url,
)


def open_page(discovery: Discovery, conninfo: str) -> None:
    """Also prints the address of the page. `conninfo` has the settings that verify TLS. Raises
    CommandError if no page can be reached."""
    url = _find_page(discovery, conninfo)
    click.echo(url)
    if not webbrowser.open(url):
        click.echo(
            "no browser was found on this machine: open the address in another one", err=True
        )


def _find_page(discovery: Discovery, conninfo: str) -> str:
    problems = []
    for page in _pages(discovery, conninfo):
        try:
            return page_url(page, PageAccess(conninfo))
        except WalProposerError as error:
            problems.append(str(error))
    problems += [f"safekeeper {r.address}: {r.error}" for r in discovery.safekeepers if r.error]
    raise CommandError(
        f"no web page can be reached: {'; '.join(problems)}",
        "Run it on a machine that can reach the HTTP ports, which are those of --http of sk attach "
        "and of sk safekeeper run.",
    )


def _pages(discovery: Discovery, conninfo: str) -> Iterator[PageAddress]:
    """The pages of the proposers first, which show more than those of the safekeepers."""
    for view in timeline_views(discovery):
        for proposer in view.proposers:
            yield PageAddress.parse(proposer.http, "")
    for report in discovery.safekeepers:
        if report.reachable and report.http:
            host = report.address.rpartition(":")[0].strip("[]")
            page = PageAddress.parse(report.http, host)
            # The HTTP port of a safekeeper has TLS if its WAL port has it.
            yield PageAddress(page.host, page.port, True) if demands_tls(conninfo) else page
