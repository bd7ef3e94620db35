"""`sk branch list`."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from quorum_wal.cli.branch_options import branches_dir_option
from quorum_wal.cli.output import console, plain_table, print_json
from quorum_wal.cli.parameters import json_option
from quorum_wal.pageserver.branches.branch_folder import BranchFolder, branch_folders
from quorum_wal.pageserver.branches.branch_server import BranchServer, state_of
from quorum_wal.pageserver.errors import BranchError
from quorum_wal.pgwal.lsn import format_lsn
from quorum_wal.telemetry.size import bytes_text

COLUMNS = ("name", "moment", "lsn", "age", "size", "state", "dsn")


@click.command(name="list")
@branches_dir_option
@json_option
def list_branches(branches_dir: Path, json: bool) -> None:
    """List the branches of a folder: their moment, their state, and how to connect.

    The moment shown is that of the last transaction in the branch. The state "incomplete" means
    that its creation was interrupted; remove it with sk branch drop.
    """
    rows = [_row(folder) for folder in branch_folders(branches_dir)]
    if json:
        print_json(rows)
        return
    table = plain_table(*(column.upper() for column in COLUMNS))
    for row in rows:
        table.add_row(*(_text(row, column) for column in COLUMNS))
    console().print(table)


def _row(folder: BranchFolder) -> dict[str, Any]:
    row: dict[str, Any] = {"name": folder.name, "size_bytes": folder.size_bytes(), "problem": ""}
    try:
        row["state"] = state_of(folder).value
        branch = folder.record()
    except BranchError as error:
        return {**row, "state": "unknown", "problem": str(error)}
    if branch is None:
        return row
    server = BranchServer(folder, branch)
    age = datetime.now(UTC) - branch.created_at
    return {
        **row,
        "timeline": branch.timeline,
        "moment": branch.last_commit_at,
        "asked": branch.moment,
        "lsn": format_lsn(branch.lsn),
        "cut_lsn": format_lsn(branch.cut_lsn),
        "tli": branch.tli,
        "pg_version": branch.pg_version,
        "created_at": branch.created_at,
        "age_seconds": round(age.total_seconds()),
        "prepared": branch.prepared,
        "port": server.port,
        "dsn": server.dsn,
        "socket_dsn": server.socket_dsn,
    }


def _text(row: dict[str, Any], column: str) -> str:
    if column == "size":
        return bytes_text(row["size_bytes"])
    if column == "age":
        return _age_text(row["age_seconds"]) if "age_seconds" in row else ""
    if column == "state":
        return f"{row['state']}: {row['problem']}" if row["problem"] else row["state"]
    value = row.get(column)
    if isinstance(value, datetime):
        return value.isoformat(" ", "seconds")
    return "" if value is None else str(value)


def _age_text(seconds: int) -> str:
    """The age in the greatest unit of which it has at least two."""
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds // length} {unit}"
    return f"{seconds} s"
