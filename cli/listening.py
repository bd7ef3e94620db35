"""Where a service listens and whom it lets in: the options that safekeepers and proposers share."""

from __future__ import annotations

import hmac
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

from cli.output import CommandError
from pgwire.auth import ScramVerifier, make_verifier
from pgwire.errors import WireError

F = TypeVar("F", bound=Callable[..., Any])


class HostPort(click.ParamType[tuple[str, int]]):
    """`HOST:PORT`, `[V6]:PORT`."""

    name = "host:port"

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[str, int]:
        if isinstance(value, tuple):
            return value
        host, _, port = str(value).rpartition(":")
        if not host or not port.isdecimal() or int(port) > 65535:
            self.fail(f'"{value}" is not HOST:PORT', param, ctx)
        return host.removeprefix("[").removesuffix("]"), int(port)


@dataclass(frozen=True, slots=True)
class Access:
    """Of a listener: TLS when there is a certificate, passwords when there are verifiers."""

    certificate: Path | None
    key: Path | None
    verifiers: Mapping[str, ScramVerifier] | None

    @classmethod
    def read(cls, tls_cert: Path | None, tls_key: Path | None, auth_file: Path | None) -> Access:
        """From the values of the options. Raises click.UsageError, CommandError."""
        if (tls_cert is None) != (tls_key is None):
            raise click.UsageError("--tls-cert and --tls-key belong together")
        return cls(tls_cert, tls_key, _read_verifiers(auth_file) if auth_file else None)

    def accepts(self, user: str, password: str) -> bool:
        """Whether this is a user's password. Costs as many hashes as the verifier says."""
        wanted = (self.verifiers or {}).get(user)
        if wanted is None:
            return False
        given = make_verifier(password, wanted.salt, wanted.iterations)
        return hmac.compare_digest(given.stored_key, wanted.stored_key)


def access_options(function: F) -> F:
    """--tls-cert, --tls-key, --auth-file."""
    path = click.Path(path_type=Path)
    options = (
        click.option("--tls-cert", type=path, help="Certificate; demands TLS."),
        click.option("--tls-key", type=path, help="Private key of --tls-cert."),
        click.option(
            "--auth-file",
            type=path,
            help="Lines of user:SCRAM-verifier (sk safekeeper hash-password); demands a password.",
        ),
    )
    for option in reversed(options):
        function = option(function)
    return function


def _read_verifiers(path: Path) -> dict[str, ScramVerifier]:
    verifiers = {}
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", "") or "it is not text"
        raise CommandError(f'could not read "{path}": {reason}') from error
    for number, line in enumerate(lines, 1):
        user, _, verifier = line.strip().partition(":")
        if not user or user.startswith("#"):
            continue
        try:
            verifiers[user] = ScramVerifier.parse(verifier)
        except (ValueError, WireError) as error:
            raise CommandError(
                f'"{path}" line {number}: {error}',
                "sk safekeeper hash-password USER prints such a line; so does "
                "SELECT rolname || ':' || rolpassword FROM pg_authid.",
            ) from error
    return verifiers
