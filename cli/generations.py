"""`sk generations`: run the generation service; show and change where tenants are attached."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from quorum_wal.cli.listening import (
    PATH,
    HostPort,
    port,
    refuse_open_ports,
    tls_files,
    tokenless_tls_options,
)
from quorum_wal.cli.output import CommandError, console, plain_table, print_json
from quorum_wal.cli.parameters import json_option
from quorum_wal.consensus.errors import MessageError
from quorum_wal.consensus.ids import parse_id
from quorum_wal.generations.client import GenerationClient
from quorum_wal.generations.errors import GenerationError
from quorum_wal.generations.messages import AttachmentMode, GenerationStatus, TenantState
from quorum_wal.generations.operations import embedded_generations
from quorum_wal.generations.protocol import GenerationService
from quorum_wal.generations.store import is_postgres
from quorum_wal.generations.suffix import NODE_ID_MAX, Suffix
from quorum_wal.telemetry.service_manager import ServiceManager
from quorum_wal.telemetry.status_server import ListenError, http_listener
from quorum_wal.telemetry.stop_signal import StopSignal

if TYPE_CHECKING:
    from quorum_wal.generations.service import GenerationServer

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_PORT = 7670
DEFAULT_SERVICE = f"http://127.0.0.1:{DEFAULT_PORT}"


class TenantName(click.ParamType[str]):
    """32 hex digits, with or without the dashes of a UUID."""

    name = "tenant"

    def convert(self, value: Any, param: Any, ctx: Any) -> str:
        try:
            return parse_id(str(value), "tenant").hex()
        except MessageError as error:
            self.fail(str(error), param, ctx)


class SuffixText(click.ParamType[Suffix]):
    """The suffix in the name of an object."""

    name = "suffix"

    def convert(self, value: Any, param: Any, ctx: Any) -> Suffix:
        if isinstance(value, Suffix):
            return value
        try:
            return Suffix.parse(str(value))
        except GenerationError as error:
            self.fail(str(error), param, ctx)


class Database(click.ParamType[str]):
    """A path, or a URI of Postgres. Messages never repeat a URI."""

    name = "path|uri"

    def convert(self, value: Any, param: Any, ctx: Any) -> str:
        if "://" in str(value) and not is_postgres(str(value)):
            self.fail("expected the path of a file, or postgresql://...", param, ctx)
        return str(value)


@click.group()
def generations() -> None:
    """Assign generation numbers, which decide to which pageserver each tenant is attached.

    See docs/generations.md.
    """


# ---- the service


@generations.command()
@click.option(
    "--database",
    type=Database(),
    required=True,
    help="A SQLite file, created if it does not exist; or postgresql://..., on the primary, but "
    "not the database that is protected.",
)
@click.option(
    "--listen",
    type=HostPort(),
    default=f"127.0.0.1:{DEFAULT_PORT}",
    show_default=True,
    help="Address for pageservers, administrators, status, metrics and health (HTTP).",
)
@click.option(
    "--node-token-file",
    type=PATH,
    help="File with the bearer token of pageservers and readers. Reread when changed.",
)
@click.option(
    "--admin-token-file",
    type=PATH,
    help="File with the bearer token that attach, detach, move and fence require.",
)
@tokenless_tls_options
def serve(
    database: str,
    listen: tuple[str, int],
    node_token_file: Path | None,
    admin_token_file: Path | None,
    tls_cert: Path | None,
    tls_key: Path | None,
    insecure: bool,
) -> None:
    """Run the service in the foreground until SIGTERM or SIGINT."""
    from quorum_wal.generations.service import GenerationServer  # the other commands need no server

    tls = tls_files(tls_cert, tls_key)
    protection = {
        "--tls-cert": tls,
        "--node-token-file": node_token_file,
        "--admin-token-file": admin_token_file,
    }
    refuse_open_ports([port("--listen", listen[0], protection)], insecure=insecure)
    try:
        listener = http_listener(*listen, tls, node_token_file, admin_token_file=admin_token_file)
    except (OSError, ValueError) as error:
        raise CommandError(
            f"could not secure the port: {error}", getattr(error, "hint", "")
        ) from error
    stopping = StopSignal().install()
    _serve(GenerationServer(embedded_generations(database), listener), stopping)


def _serve(server: GenerationServer, stopping: StopSignal) -> None:
    """Raises GenerationError, CommandError."""
    manager = ServiceManager()
    try:
        with server:
            manager.notify("READY=1", f"STATUS=serving on {server.address}")
            stopping.wait()
            manager.notify("STOPPING=1")
    except ListenError as error:
        raise CommandError(str(error), "Choose another --listen.") from error


# ---- the service or database to use


@dataclass(frozen=True, slots=True)
class Target:
    """A service, or a database on this machine."""

    service: str | None
    database: str | None
    token_file: Path | None
    ca_file: Path | None

    @contextmanager
    def opened(self) -> Iterator[GenerationService]:
        """Raises GenerationError, click.UsageError."""
        if self.database is None:
            found: GenerationService = GenerationClient(
                self.service or DEFAULT_SERVICE, token_file=self.token_file, ca_file=self.ca_file
            )
        elif self.service or self.token_file or self.ca_file:
            raise click.UsageError("--database excludes --service, --token-file and --ca-file")
        else:
            found = embedded_generations(self.database, create=False)
        try:
            yield found
        finally:
            found.close()


def target_options(function: F) -> Callable[..., Any]:
    """Adds --service with its options, and --database; the command gets them as `target`."""

    @click.option(
        "--service", metavar="URL", help=f"The generation service.  [default: {DEFAULT_SERVICE}]"
    )
    @click.option("--token-file", type=PATH, help="File with the bearer token of the service.")
    @click.option(
        "--ca-file", type=PATH, help="CA of the service's certificate.  [default: the system's]"
    )
    @click.option(
        "--database", type=Database(), help="Use this database directly, without a service."
    )
    @wraps(function)
    def command(
        service: str | None,
        token_file: Path | None,
        ca_file: Path | None,
        database: str | None,
        **options: Any,
    ) -> Any:
        return function(target=Target(service, database, token_file, ca_file), **options)

    return command


tenant_argument = click.argument("tenant", type=TenantName())


def node_option(*, required: bool, text: str) -> Callable[[F], F]:
    return click.option(
        "--node", type=click.IntRange(0, NODE_ID_MAX), metavar="N", required=required, help=text
    )


# ---- status


@generations.command()
@target_options
@json_option
def status(target: Target, json: bool) -> None:
    """Show the nodes, where each tenant is attached, and the last changes."""
    with target.opened() as service:
        found = service.status()
    if json:
        print_json(found)
    else:
        _print_status(found)


def _print_status(found: GenerationStatus) -> None:
    nodes = plain_table("node", "generation", "registered", "incarnation")
    for node in found.nodes:
        nodes.add_row(
            str(node.node_id), str(node.node_generation), node.registered_at, node.incarnation
        )
    tenants = plain_table("tenant", "generation", "attached to")
    for tenant in found.tenants:
        tenants.add_row(tenant.tenant, str(tenant.attachment_generation), _places(tenant))
    changes = plain_table("last changes", "operation", "tenant", "node", "generation")
    for change in found.changes:
        numbers = ("" if n is None else str(n) for n in (change.node_id, change.generation))
        changes.add_row(change.changed_at, change.operation, change.tenant, *numbers)
    for number, table in enumerate((nodes, tenants, changes)):
        if number:
            console().print()
        console().print(table)


def _places(tenant: TenantState) -> str:
    places = (
        f"node {a.node_id}, {a.mode.value}"
        + (f" since {a.attachment_generation}" if a.mode is AttachmentMode.STALE else "")
        for a in tenant.attachments
    )
    return "; ".join(places) or "-"


def _print_tenant(tenant: TenantState, *, json: bool) -> None:
    if json:
        print_json(tenant)
    else:
        click.echo(
            f"tenant {tenant.tenant}: generation {tenant.attachment_generation}, "
            f"attached to: {_places(tenant)}"
        )


# ---- changes


@generations.command()
@tenant_argument
@node_option(required=True, text="The pageserver.")
@target_options
@json_option
def attach(tenant: str, node: int, target: Target, json: bool) -> None:
    """Attach TENANT to a node, with a new generation.

    Refuses a tenant that is attached to another node; use sk generations move.
    """
    with target.opened() as service:
        _print_tenant(service.attach(tenant, node), json=json)


@generations.command()
@tenant_argument
@node_option(required=True, text="The pageserver.")
@target_options
@json_option
def detach(tenant: str, node: int, target: Target, json: bool) -> None:
    """Detach TENANT from a node.

    When the last stale attachment is detached, the current one may delete objects again (see move
    --multi).
    """
    with target.opened() as service:
        _print_tenant(service.detach(tenant, node), json=json)


@generations.command()
@tenant_argument
@node_option(required=True, text="The pageserver to move it to.")
@click.option(
    "--multi",
    is_flag=True,
    help="Delete nothing until the previous attachments are detached, because they still read.",
)
@target_options
@json_option
def move(tenant: str, node: int, multi: bool, target: Target, json: bool) -> None:
    """Attach TENANT to another node, with a new generation. The previous attachment becomes stale.

    The previous node need not answer, and may continue to run: it no longer deletes or trims.
    """
    mode = AttachmentMode.MULTI if multi else AttachmentMode.SINGLE
    with target.opened() as service:
        _print_tenant(service.move(tenant, node, mode), json=json)


@generations.command()
@tenant_argument
@node_option(required=False, text="The pageserver to attach it to.")
@target_options
@json_option
def fence(tenant: str, node: int | None, target: Target, json: bool) -> None:
    """Make all attachments of TENANT stale, on all nodes."""
    with target.opened() as service:
        _print_tenant(service.fence_tenant(tenant, node), json=json)


@generations.command()
@tenant_argument
@click.argument("suffix", type=SuffixText())
@click.option(
    "--own",
    is_flag=True,
    help="A pageserver claimed SUFFIX in an emergency, and continues to use it.",
)
@target_options
@json_option
def advance(tenant: str, suffix: Suffix, own: bool, target: Target, json: bool) -> None:
    """Assign only numbers above SUFFIX from now on. SUFFIX was found in the object store.

    For a service that was restored from an old copy, or was unavailable in an emergency. Never
    lowers a number, and does nothing if the numbers are above SUFFIX already.
    """
    with target.opened() as service:
        _print_tenant(service.advance(tenant, suffix, is_own=own), json=json)
