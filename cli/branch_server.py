"""`sk branch start`, `stop` and `drop`."""

from __future__ import annotations

from pathlib import Path

import click

from quorum_wal.cli.branch_options import branches_dir_option, log_tail_shown, port_option
from quorum_wal.cli.output import CommandError
from quorum_wal.pageserver.branches.branch_folder import BranchFolder
from quorum_wal.pageserver.branches.branch_server import BranchServer, StopMode, stop_server


@click.command()
@click.argument("name")
@branches_dir_option
@port_option("Port to use instead of its own, until it is stopped.")
def start(name: str, branches_dir: Path, port: int | None) -> None:
    """Start the server of a branch, and print the connection string."""
    folder = BranchFolder(branches_dir, name)
    branch = folder.require()
    server = BranchServer(folder, branch)
    with log_tail_shown(), folder.locked():
        found = server.start(port)
    if port not in (None, found):
        raise CommandError(f"branch {name} already runs, on port {found}", "Stop it first.")
    click.echo(server.dsn)
    click.echo(f"without a password, as its account: {server.socket_dsn}", err=True)


@click.command()
@click.argument("name")
@branches_dir_option
def stop(name: str, branches_dir: Path) -> None:
    """Stop the server of a branch, and close its connections."""
    folder = BranchFolder(branches_dir, name)
    folder.require()
    with folder.locked():
        ran = stop_server(folder.data, StopMode.FAST)
    click.echo(f"branch {name} is stopped" if ran else f"branch {name} does not run", err=True)


@click.command()
@click.argument("name")
@branches_dir_option
@click.option("--yes", is_flag=True, help="Do not ask.")
def drop(name: str, branches_dir: Path, yes: bool) -> None:
    """Stop a branch and remove it, also one whose creation was interrupted.

    Refuses a folder that is not a branch.
    """
    folder = BranchFolder(branches_dir, name)
    with folder.locked():
        if not yes:
            click.confirm(f"Remove {folder.path} and all data in it?", abort=True)
        stop_server(folder.data, StopMode.IMMEDIATE)
        folder.remove()
    click.echo(f"branch {name} is dropped", err=True)
