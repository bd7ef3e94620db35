"""Options that safekeepers and proposers share: where a service listens, and how it is protected.

Law: a port that other machines can reach has TLS and authentication, unless --insecure is given.
Every host name other than localhost counts as one that other machines can reach.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from quorum_wal.cli.output import CommandError, ExitCode
from quorum_wal.pgwire.tls import TlsFiles
from quorum_wal.telemetry.loopback import is_loopback
from quorum_wal.walproposer.connection import port_number

PATH = click.Path(path_type=Path)

F = TypeVar("F", bound=Callable[..., Any])


#: The default ports of safekeepers are even, those of proposers odd.
_PORT_STEP = 2
_SPARE_PORTS = 32


class HostPort(click.ParamType[tuple[str, int]]):
    """`HOST:PORT`, `[V6]:PORT`."""

    name = "host:port"

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[str, int]:
        if isinstance(value, tuple):
            return value
        host, _, port = str(value).rpartition(":")
        number = port_number(port)
        if not host or "/" in host or number is None:
            self.fail(f'"{value}" is not HOST:PORT', param, ctx)
        return host.removeprefix("[").removesuffix("]"), number


@dataclass(frozen=True, slots=True)
class Port:
    """A port to listen on. `option` is the option that sets it; `lacks` has the options that
    protect it and were not given."""

    option: str
    host: str
    lacks: tuple[str, ...]


_TLS_OPTIONS = (
    click.option("--tls-cert", type=PATH, help="Certificate; requires TLS. Reread when changed."),
    click.option("--tls-key", type=PATH, help="Private key of --tls-cert."),
)
_HTTP_TOKEN_OPTION = click.option(
    "--http-token-file",
    type=PATH,
    help="File with the bearer token that HTTP requires, except for /healthz.",
)
_INSECURE_OPTION = click.option(
    "--insecure", is_flag=True, help="Accept other machines without TLS, users or token."
)


def tls_options(function: F) -> F:
    """--tls-cert, --tls-key, --http-token-file, --insecure."""
    return _with(function, *_TLS_OPTIONS, _HTTP_TOKEN_OPTION, _INSECURE_OPTION)


def tokenless_tls_options(function: F) -> F:
    """--tls-cert, --tls-key, --insecure, for a service that has token options of its own."""
    return _with(function, *_TLS_OPTIONS, _INSECURE_OPTION)


def _with(function: F, *options: Callable[[F], F]) -> F:
    for option in reversed(options):
        function = option(function)
    return function


def tls_files(
    tls_cert: Path | None, tls_key: Path | None, client_ca: Path | None = None
) -> TlsFiles | None:
    """Checks the values of the options. Raises click.UsageError."""
    if (tls_cert is None) != (tls_key is None):
        raise click.UsageError("give both --tls-cert and --tls-key, or neither")
    if tls_cert is None or tls_key is None:
        if client_ca is not None:
            raise click.UsageError("--tls-client-ca needs --tls-cert and --tls-key")
        return None
    return TlsFiles(tls_cert, tls_key, client_ca)


def spare_http_ports() -> Sequence[int]:
    """Ports to try if the port of the running command is in use. Empty if --http was given, unless
    the command takes over from a proposer that uses the port."""
    context = click.get_current_context()
    is_default = context.get_parameter_source("http") is ParameterSource.DEFAULT
    if not is_default and not context.params.get("take_over"):
        return ()
    first = context.params["http"][1] + _PORT_STEP
    return range(first, first + _PORT_STEP * _SPARE_PORTS, _PORT_STEP)


def port(option: str, host: str, protection: Mapping[str, object]) -> Port:
    """`protection`: the options that a port needs that other machines can reach, with values."""
    return Port(option, host, tuple(name for name, value in protection.items() if value is None))


def refuse_open_ports(ports: Sequence[Port], *, insecure: bool) -> None:
    """Raises CommandError if other machines can reach a port that is not protected."""
    exposed = [p for p in ports if p.lacks and not is_loopback(p.host)]
    if exposed and not insecure:
        lacks = dict.fromkeys(name for p in exposed for name in p.lacks)
        raise CommandError(
            "; ".join(
                f"{p.option} {p.host} can be reached from other machines, without "
                f"{' and '.join(p.lacks)}"
                for p in exposed
            ),
            f"Give {', '.join(lacks)}; or --insecure if the network itself is closed to others.",
            ExitCode.USAGE,
        )
