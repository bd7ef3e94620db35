"""Types and options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from consensus.errors import MessageError
from consensus.ids import TimelineId, parse_id
from walproposer.errors import WalProposerError
from walproposer.safekeeper_client import SafekeeperAddress

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


class Safekeepers(click.ParamType[tuple[SafekeeperAddress, ...]]):
    """`A,B,C`, each host:port."""

    name = "a,b,c"

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[SafekeeperAddress, ...]:
        if isinstance(value, tuple):
            return value
        try:
            addresses = tuple(SafekeeperAddress.parse(part.strip()) for part in value.split(","))
        except WalProposerError as error:
            self.fail(f"{error}. {error.hint}", param, ctx)
        if len(set(addresses)) != len(addresses):
            self.fail("an address is given twice", param, ctx)
        return addresses


class TimelineName(click.ParamType[TimelineId]):
    """`TENANT/TIMELINE`, 32 hex digits each; a lone TIMELINE belongs to the tenant of zeros."""

    name = "tenant/timeline"

    def convert(self, value: Any, param: Any, ctx: Any) -> TimelineId:
        if isinstance(value, TimelineId):
            return value
        tenant, slash, timeline = value.rpartition("/")
        try:
            tenant_id = parse_id(tenant, "tenant id") if slash else bytes(16)
            return TimelineId(tenant_id, parse_id(timeline, "timeline id"))
        except MessageError as error:
            self.fail(str(error), param, ctx)


def safekeepers_option(function: F) -> F:
    """--safekeepers A,B,C, and how to connect to them."""
    conninfo = click.option(
        "--safekeeper-conninfo",
        default="",
        help="libpq settings for safekeeper connections: sslmode, user, passfile, ...",
    )
    safekeepers = click.option(
        "--safekeepers",
        type=Safekeepers(),
        required=True,
        help="The members' addresses: HOST:PORT,HOST:PORT,...",
    )
    return safekeepers(conninfo(function))


def with_conninfo(
    addresses: tuple[SafekeeperAddress, ...], conninfo: str
) -> tuple[SafekeeperAddress, ...]:
    """The addresses, each with what libpq needs besides."""
    return tuple(SafekeeperAddress(a.host, a.port, conninfo) for a in addresses)
