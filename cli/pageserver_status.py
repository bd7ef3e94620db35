"""`sk pageserver status`: show the status page of a pageserver as tables."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from psycopg.conninfo import make_conninfo
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from quorum_wal.cli.listening import HostPort
from quorum_wal.cli.output import ExitCode, console, plain_table, print_json
from quorum_wal.cli.parameters import http_token, http_token_option, json_option
from quorum_wal.telemetry.size import bytes_text
from quorum_wal.walproposer.errors import Unreachable
from quorum_wal.walproposer.timelines.status_page import PageAccess, PageAddress, read_status_page

DEFAULT_ADDRESS = "127.0.0.1:7680"
_NOTHING = "-"
_WELL, _REMARK, _UNWELL = "bold green", "bold yellow", "bold red"


@click.command()
@click.argument("address", type=HostPort(), default=DEFAULT_ADDRESS)
@http_token_option
@click.option("--ca-file", type=click.Path(path_type=Path), help="CA of its certificate.")
@json_option
@click.pass_context
def status(
    context: click.Context,
    address: tuple[str, int],
    http_token_file: Path | None,
    ca_file: Path | None,
    json: bool,
) -> None:
    """Show the pageserver at ADDRESS and the state of each of its timelines.

    ADDRESS is its --http, 127.0.0.1:7680 by default. Exits with 3 if a timeline makes no progress,
    is stale or is refused; with 4 if the pageserver does not answer.
    """
    verified = {"sslmode": "verify-full", "sslrootcert": str(ca_file)}
    conninfo = make_conninfo("", **verified) if ca_file is not None else ""
    access = PageAccess(conninfo, http_token(http_token_file))
    page = read_status_page(PageAddress(*address), access)
    if "node_generation" not in page or not isinstance(page.get("timelines"), dict):
        raise Unreachable(
            f"expected the status page of a pageserver at {PageAddress(*address)}",
            hint="Give the --http address of a pageserver.",
        )
    if json:
        print_json(page)
    else:
        console().print(_page(page))
    context.exit(ExitCode.BLOCKED if any(_problems(page)) else 0)


def _problems(page: dict[str, Any]) -> Iterator[str]:
    """Problems that an administrator must repair, worst first."""
    if not page["node_generation"]:
        yield f"not registered; the generation service reports: {page['generation_service']}"
    for timeline, found in page["timelines"].items():
        if found["problem"]:
            yield f"timeline {timeline}: {found['problem']}"


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
