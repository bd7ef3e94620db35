"""`sk dev`: run a cluster on this machine for experiments, until Ctrl-C."""

from __future__ import annotations

import shlex
import time
from pathlib import Path

import click

from quorum_wal.cli.playground import playground
from quorum_wal.pg_fixtures.cluster import QuorumCluster
from quorum_wal.pg_fixtures.processes import SK, ServiceProcess
from quorum_wal.pg_server.errors import DeadlineExceeded, Unavailable

POLL_SECONDS = 0.2


@click.command()
@click.option(
    "--dir",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder of the cluster, used again next time.  [default: a temporary one, removed at the "
    "end]",
)
@click.option(
    "--pg-major", type=click.IntRange(13, 18), metavar="N", help="Major version of Postgres."
)
@click.option(
    "--members",
    type=click.IntRange(1, 9),
    metavar="N",
    default=3,
    show_default=True,
    help="Number of safekeepers.",
)
def dev(dir: Path | None, pg_major: int | None, members: int) -> None:
    """Run Postgres, safekeepers and a proposer on this machine, until Ctrl-C.

    No password is required, and all ports listen on 127.0.0.1 only.
    """
    try:
        with playground(dir) as root:
            cluster = QuorumCluster(root, pg_major=pg_major, safekeepers=members)
            with cluster:
                click.echo(_introduction(cluster, removed=dir is None))
                _report_ends(cluster)
    except KeyboardInterrupt:
        click.echo("all processes have ended")


def _introduction(cluster: QuorumCluster, *, removed: bool) -> str:
    """The addresses of the processes, and commands to try."""
    addresses = ",".join(safekeeper.address for safekeeper in cluster.safekeepers)
    rows = [
        (f"Postgres {cluster.postgres.binaries.version}", cluster.postgres.dsn(), ""),
        *(
            (s.name, s.address, f"http://{s.http_address}/status   pid {s.pid}")
            for s in cluster.safekeepers
        ),
        ("proposer", "", f"http://{cluster.proposer.http_address}/status   pid "
         f"{cluster.proposer.pid}"),
    ]  # fmt: skip
    last = cluster.safekeepers[-1]
    try:
        psql = str(cluster.postgres.binaries.program("psql"))
    except Unavailable:
        psql = "psql"
    tries = [
        f"{shlex.join([psql, cluster.postgres.dsn()])}",
        f"sk status --safekeepers {addresses} --watch",
        f"kill -9 {last.pid}    # one member is lost: commits go on",
        f"{start_command(last)}    # the member runs again",
    ]
    end = f"Ctrl-C ends everything{' and removes' if removed else '; data and logs stay in'}"
    return "\n".join(
        (
            *(f"{name:<16} {place:<18} {more}".rstrip() for name, place, more in rows),
            *("", "Try, in another terminal:", *(f"  {each}" for each in tries)),
            *("", f"{end} {cluster.root}"),
        )
    )


def start_command(service: ServiceProcess) -> str:
    """The shell command that starts the service."""
    return shlex.join(["sk", *service.program[len(SK) :]])


def _report_ends(cluster: QuorumCluster) -> None:
    """Reports each component that ends, once, until Ctrl-C; then stops the others in order."""
    running: list[ServiceProcess] = [*cluster.safekeepers, cluster.proposer]
    postgres_runs = True
    try:
        while True:
            for service in [service for service in running if not service.alive]:
                running.remove(service)
                click.echo(f"{service.name} has ended, exit code {service.exit_code}; to start it:")
                click.echo(f"  {start_command(service)}")
            if postgres_runs and not cluster.postgres.is_running:
                postgres_runs = False
                click.echo(f"Postgres has ended, see {cluster.postgres.log_path}")
            time.sleep(POLL_SECONDS)
    finally:
        _stop(cluster)


def _stop(cluster: QuorumCluster) -> None:
    """Stops Postgres first, which waits for its last WAL to be confirmed. Kills processes that do
    not end."""
    try:
        cluster.postgres.stop()
        for service in (cluster.proposer, *cluster.safekeepers):
            if service.alive:
                service.terminate()
    except DeadlineExceeded as error:
        click.echo(f"killing the rest: {error}", err=True)
