"""`sk pageserver status`: show the status page of a pageserver as tables."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import click
from psycopg.conninfo import make_conninfo
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from quorum_wal.cli.output import ExitCode, console, plain_table, print_json
from quorum_wal.cli.parameters import FiniteRange, http_token, http_token_option, json_option
from quorum_wal.telemetry.size import bytes_text
from quorum_wal.walproposer.connection import port_number
from quorum_wal.walproposer.errors import Unreachable
from quorum_wal.walproposer.timelines.status_page import PageAccess, PageAddress, read_status_page

DEFAULT_ADDRESS = "127.0.0.1:7680"
POLL_SECONDS = 0.5
#: By the scheme; without one, the page is asked with and without TLS.
_ENCRYPTED = {"": None, "http": False, "https": True}
_NOTHING = "-"
NO_TIMELINE = (
    "it has no timeline: the archive has none, or no tenant is attached to this pageserver "
    "(sk archive status, sk generations status)"
)
_WELL, _REMARK, _UNWELL = "bold green", "bold yellow", "bold red"


class StatusAddress(click.ParamType[PageAddress]):
    """`HOST:PORT`, or the URL that services print: `https://HOST:PORT`."""

    name = "host:port"

    def convert(self, value: Any, param: Any, ctx: Any) -> PageAddress:
        if isinstance(value, PageAddress):
            return value
        scheme, _, rest = str(value).rpartition("://")
        host, _, port = rest.removesuffix("/").rpartition(":")
        number = port_number(port)
        if scheme not in _ENCRYPTED or not host or "/" in host or number is None:
            self.fail(f'"{value}" is not HOST:PORT or a URL', param, ctx)
        host = host.removeprefix("[").removesuffix("]")
        return PageAddress(host, number, _ENCRYPTED[scheme])


@click.command()
@click.argument("address", type=StatusAddress(), default=DEFAULT_ADDRESS)
@http_token_option
@click.option("--ca-file", type=click.Path(path_type=Path), help="CA of its certificate.")
@click.option(
    "--wait",
    type=FiniteRange(min=0),
    default=0.0,
    metavar="SECONDS",
    help="Wait up to SECONDS until each timeline has a cut and no problem.",
)
@json_option
@click.pass_context
def status(
    context: click.Context,
    address: PageAddress,
    http_token_file: Path | None,
    ca_file: Path | None,
    wait: float,
    json: bool,
) -> None:
    """Show the pageserver at ADDRESS and the state of each of its timelines.

    ADDRESS is its --http, also as a URL; 127.0.0.1:7680 by default. Exits with 3 if a timeline
    makes no progress, is stale or is refused; with 4 if the pageserver does not answer.
    """
    verified = {"sslmode": "verify-full", "sslrootcert": str(ca_file)}
    conninfo = make_conninfo("", **verified) if ca_file is not None else ""
    access = PageAccess(conninfo, http_token(http_token_file))
    page = _ask_until_cut(address, access, wait) if wait else _read(address, access)
    if json:
        print_json(page)
    else:
        console().print(_page(page))
    is_unwell = any(_problems(page)) or (wait > 0 and bool(_reason_to_wait(page)))
    context.exit(ExitCode.BLOCKED if is_unwell else 0)


def _read(address: PageAddress, access: PageAccess) -> dict[str, Any]:
    page = read_status_page(address, access)
    if "node_generation" not in page or not isinstance(page.get("timelines"), dict):
        raise Unreachable(
            f"expected the status page of a pageserver at {address}",
            hint="Give the --http address of a pageserver.",
        )
    return page


def _ask_until_cut(address: PageAddress, access: PageAccess, seconds: float) -> dict[str, Any]:
    """The first page with a cut of each timeline and no problem, or the one at the end of
    `seconds`. Prints each new reason for the wait. Raises Unreachable."""
    deadline, printed = time.monotonic() + seconds, ""
    while True:
        try:
            page = _read(address, access)
            reason = _reason_to_wait(page)
            if not reason or time.monotonic() >= deadline:
                return page
        except Unreachable as error:
            # One that refuses, or is no pageserver, has a hint: it would also refuse later.
            if error.hint or time.monotonic() >= deadline:
                raise
            reason = str(error)
        if reason != printed:
            click.echo(f"waiting: {reason}", err=True)
            printed = reason
        time.sleep(POLL_SECONDS)


def _reason_to_wait(page: dict[str, Any]) -> str:
    """Why no table can be restored yet; "" if one can, of each timeline."""
    if not page["timelines"]:
        return NO_TIMELINE
    return next(chain(_problems(page), _first_cuts(page)), "")


def _problems(page: dict[str, Any]) -> Iterator[str]:
    """Problems that an administrator must repair, worst first."""
    if not page["node_generation"]:
        yield f"not registered; the generation service reports: {page['generation_service']}"
    for timeline, found in page["timelines"].items():
        if found["problem"]:
            yield f"timeline {timeline}: {found['problem']}"


def _first_cuts(page: dict[str, Any]) -> Iterator[str]:
    """What each timeline without a cut waits for."""
    for timeline, found in page["timelines"].items():
        if "first_cut" in found:
            yield f"timeline {timeline}: no table can be restored yet: {found['first_cut']}"


def _page(page: dict[str, Any]) -> RenderableType:
    problems = [*_problems(page)]
    verdict = Text("OK", style=_WELL) if not problems else Text("")
    parts: list[RenderableType] = [_head(page)]
    parts += [Text(f"UNWELL: {text}", style=_UNWELL, overflow="fold") for text in problems]
    parts += [] if problems else [verdict]
    parts += [Text(text, style=_REMARK, overflow="fold") for text in _remarks(page)]
    parts += [Text(""), _timelines(page["timelines"]), Text("")]
    return Group(*parts, _own(page))


def _head(page: dict[str, Any]) -> Text:
    head = Text(f"pageserver of node {page['node_id']}", style="bold")
    head.append(f"   version {page['version']}, archive {page['archive']}", style="dim")
    return head


def _remarks(page: dict[str, Any]) -> Iterator[str]:
    """Unusual states that need no action."""
    if not page["timelines"]:
        yield NO_TIMELINE
    yield from _first_cuts(page)
    if page.get("emergency"):
        yield page["emergency"]
    elif page["node_generation"] and page["generation_service"] != "ok":
        yield (
            "the generation service does not answer, so no object is deleted and the safekeepers "
            f"keep the WAL: {page['generation_service']}"
        )
    for timeline in page.get("deleted_timelines", []):
        yield f"timeline {timeline}: its pages were deleted for good"
    for name, reason in page.get("unusable_files", {}).items():
        yield f"{name} is not in force: {reason}"


def _timelines(timelines: dict[str, dict[str, Any]]) -> Table:
    table = plain_table(
        "timeline", "mode", "does", "lag", "newest cut", "cuts", "layers", "stored", "projected",
        "visible", "suffix",
    )  # fmt: skip
    for timeline, found in timelines.items():
        lag = found.get("lag_bytes")
        table.add_row(
            timeline,
            found["mode"],
            found.get("ingest", found["phase"]),
            _NOTHING if lag is None else bytes_text(lag),
            found.get("cut_at") or _NOTHING,
            str(found["cuts"]),
            str(found["layers"]),
            bytes_text(found["layer_bytes"]),
            found["projected_lsn"],
            found["visible_lsn"],
            found["suffix"],
            style="red" if found["problem"] else "",
        )
    return table


def _own(page: dict[str, Any]) -> Table:
    queue, age = page.get("deletion_queue"), page["validated_seconds_ago"]
    table = plain_table(
        "generation", "validated", "deletion queue", "deleted", "generation service"
    )
    table.add_row(
        str(page["node_generation"] or _NOTHING),
        _NOTHING if age is None else f"{age:g} s ago",
        f"{queue['lists']} lists, {queue['unvalidated']} not validated" if queue else _NOTHING,
        f"{page['deleted_objects']} objects",
        page["generation_service"],
    )
    return table
