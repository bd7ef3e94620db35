"""`sk safekeeper`: run one."""

from __future__ import annotations

from pathlib import Path

import click

from cli.output import CommandError
from cli.parameters import HostPort
from pgwire.auth import ScramVerifier
from pgwire.errors import WireError
from safekeeper.config import SafekeeperConfig
from safekeeper.errors import SafekeeperError
from safekeeper.service import Safekeeper
from telemetry.status_server import ListenError
from telemetry.stop_signal import StopSignal


@click.group()
def safekeeper() -> None:
    """Run a safekeeper: it stores WAL, votes, and serves the WAL."""


@safekeeper.command()
@click.option(
    "--id", "safekeeper_id", type=click.IntRange(1), required=True, help="Unique member id."
)
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
@click.option("--tls-cert", type=click.Path(path_type=Path), help="Certificate; demands TLS.")
@click.option("--tls-key", type=click.Path(path_type=Path), help="Private key of --tls-cert.")
@click.option(
    "--auth-file",
    type=click.Path(path_type=Path),
    help="Lines of user:SCRAM-verifier (as in pg_authid); demands SCRAM-SHA-256.",
)
def run(
    safekeeper_id: int,
    data_dir: Path,
    listen: tuple[str, int],
    http: tuple[str, int],
    tls_cert: Path | None,
    tls_key: Path | None,
    auth_file: Path | None,
) -> None:
    """Run one safekeeper in the foreground until SIGTERM or SIGINT."""
    if (tls_cert is None) != (tls_key is None):
        raise click.UsageError("--tls-cert and --tls-key belong together")
    config = SafekeeperConfig(
        safekeeper_id=safekeeper_id,
        data_dir=data_dir,
        host=listen[0],
        port=listen[1],
        http_host=http[0],
        http_port=http[1],
        tls_certificate=tls_cert,
        tls_key=tls_key,
        verifiers=_read_verifiers(auth_file) if auth_file is not None else None,
    )
    stopping = StopSignal().install()
    try:
        with Safekeeper(config):
            stopping.wait()
    except SafekeeperError as error:
        raise CommandError(str(error), error.hint) from error
    except ListenError as error:
        raise CommandError(str(error), "Choose another --http.") from error


def _read_verifiers(path: Path) -> dict[str, ScramVerifier]:
    verifiers = {}
    try:
        lines = path.read_text().splitlines()
    except OSError as error:
        raise CommandError(f'could not read "{path}": {error.strerror}') from error
    for number, line in enumerate(lines, 1):
        user, _, verifier = line.strip().partition(":")
        if not user or user.startswith("#"):
            continue
        try:
            verifiers[user] = ScramVerifier.parse(verifier)
        except (ValueError, WireError) as error:
            raise CommandError(
                f'"{path}" line {number}: {error}',
                "Write user:verifier; SELECT rolname, rolpassword FROM pg_authid shows them.",
            ) from error
    return verifiers
