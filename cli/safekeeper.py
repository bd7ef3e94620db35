"""`sk safekeeper`: run one, and make the passwords it asks for."""

from __future__ import annotations

import secrets
import sys
from pathlib import Path

import click

from cli.listening import Access, HostPort, access_options
from cli.output import CommandError
from pgwire.auth import make_verifier
from safekeeper.config import SafekeeperConfig
from safekeeper.service import Safekeeper
from telemetry.status_server import ListenError
from telemetry.stop_signal import StopSignal

SALT_BYTES = 16  # as Postgres takes them: SCRAM_DEFAULT_SALT_LEN


@click.group()
def safekeeper() -> None:
    """Run a safekeeper: it stores WAL, votes, and serves the WAL."""


@safekeeper.command()
@click.option("--id", type=click.IntRange(1), metavar="N", required=True, help="Unique member id.")
@click.option(
    "--data-dir", type=click.Path(path_type=Path), required=True, help="Where its WAL is kept."
)
@click.option(
    "--listen",
    type=HostPort(),
    default="127.0.0.1:5454",
    show_default=True,
    help="Address for proposers and readers (Postgres protocol).",
)
@click.option(
    "--http",
    type=HostPort(),
    default="127.0.0.1:7676",
    show_default=True,
    help="Address for status, metrics and health.",
)
@access_options
def run(
    id: int,
    data_dir: Path,
    listen: tuple[str, int],
    http: tuple[str, int],
    tls_cert: Path | None,
    tls_key: Path | None,
    auth_file: Path | None,
) -> None:
    """Run one safekeeper in the foreground until SIGTERM or SIGINT."""
    access = Access.read(tls_cert, tls_key, auth_file)
    config = SafekeeperConfig(
        safekeeper_id=id,
        data_dir=data_dir,
        host=listen[0],
        port=listen[1],
        http_host=http[0],
        http_port=http[1],
        tls_certificate=access.certificate,
        tls_key=access.key,
        verifiers=dict(access.verifiers) if access.verifiers is not None else None,
    )
    stopping = StopSignal().install()
    try:
        with Safekeeper(config):
            stopping.wait()
    except ListenError as error:
        raise CommandError(str(error), "Choose another --http.") from error


@safekeeper.command("hash-password")
@click.argument("user")
def hash_password(user: str) -> None:
    """Print the line for --auth-file that lets USER in.

    The password is asked for, or read from a pipe: its first line. It is not kept anywhere; the
    line holds a SCRAM-SHA-256 verifier, from which it cannot be had back.
    """
    if not user or set(user) & set(":#\n"):
        raise click.UsageError('a user name is not empty and has no ":" and no "#"')
    if sys.stdin.isatty():
        password = click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
    else:
        password = sys.stdin.readline().rstrip("\n")
    if not password:
        raise CommandError("the password is empty", "Write it to stdin, as one line.")
    click.echo(f"{user}:{make_verifier(password, secrets.token_bytes(SALT_BYTES))}")
