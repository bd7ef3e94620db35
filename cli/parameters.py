"""Types and options that several commands share: safekeepers, timelines, connection strings."""

from __future__ import annotations

import re
from collections.abc import Callable
from math import isfinite
from pathlib import Path
from typing import Any, TypeVar

import click
import psycopg
from psycopg.conninfo import conninfo_to_dict

from quorum_wal.cli.output import CommandError
from quorum_wal.cli.shared_option import shared_option
from quorum_wal.consensus.errors import MessageError
from quorum_wal.consensus.ids import TimelineId
from quorum_wal.telemetry.http_token import read_http_token
from quorum_wal.walproposer.errors import WalProposerError
from quorum_wal.walproposer.safekeeper_client import SafekeeperAddress

F = TypeVar("F", bound=Callable[..., Any])

_UNIT_BITS = {"B": 0, "kB": 10, "MB": 20, "GB": 30, "TB": 40}
_SIZE = re.compile("(?P<number>[0-9]{1,12}) ?(?P<unit>B|kB|MB|GB|TB)?")


class Dsn(click.ParamType[str]):
    """A libpq connection string or URI. Messages never contain any part of it, because a mistyped
    string may have the password anywhere."""

    name = "dsn"

    def split_envvar_value(self, rv: str) -> list[str]:
        """Of an option that may be repeated: one a line, because a DSN contains spaces."""
        return rv.splitlines()

    def convert(self, value: Any, param: Any, ctx: Any) -> str:
        try:
            conninfo_to_dict(str(value))
        except (psycopg.Error, UnicodeError):  # parts of a URI may be no valid text
            self.fail(
                'not a libpq connection string; expected "host=... dbname=..." with values that '
                "contain spaces in single quotes, or postgresql://user@host:port/dbname",
                param,
                ctx,
            )
        return str(value)


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


class SafekeeperPlace(click.ParamType[SafekeeperAddress]):
    """One host:port."""

    name = "host:port"

    def convert(self, value: Any, param: Any, ctx: Any) -> SafekeeperAddress:
        if isinstance(value, SafekeeperAddress):
            return value
        try:
            return SafekeeperAddress.parse(value)
        except WalProposerError as error:
            self.fail(f"{error}. {error.hint}", param, ctx)


class TimelineName(click.ParamType[TimelineId]):
    """`TENANT/TIMELINE`, 32 hex digits each; a lone TIMELINE belongs to the tenant of zeros."""

    name = "tenant/timeline"

    def convert(self, value: Any, param: Any, ctx: Any) -> TimelineId:
        if isinstance(value, TimelineId):
            return value
        try:
            return TimelineId.parse(value)
        except MessageError as error:
            self.fail(str(error), param, ctx)


class ByteSize(click.ParamType[int]):
    """`512MB`, `1GB`: a number of bytes with Postgres's units; 0 needs none."""

    name = "size"

    def convert(self, value: Any, param: Any, ctx: Any) -> int:
        if isinstance(value, int):
            return value
        match = _SIZE.fullmatch(value.strip())
        if match is None:
            self.fail(
                f'"{value}" is not a size; expected a number and kB, MB, GB or TB', param, ctx
            )
        return int(match["number"]) << _UNIT_BITS[match["unit"] or "B"]


class FiniteRange(click.FloatRange):
    """A finite number in a range. Refuses nan, which every range accepts, and inf."""

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        number = super().convert(value, param, ctx)
        if not isfinite(number):
            self.fail(f"{value} is not a finite number", param, ctx)
        return number


def primary_option(*, required: bool = True) -> Callable[[F], F]:
    """--primary DSN. An optional one selects a mode of its command, so no variable sets it."""
    text = "DSN of the primary (a role with REPLICATION)."
    if not required:
        return click.option("--primary", type=Dsn(), help=text)
    return shared_option("--primary", "SK_PRIMARY", type=Dsn(), required=True, help=text)


def standby_option(function: F) -> F:
    """--standby DSN, repeatable, for the commands that check standbys too."""
    return click.option(
        "--standby", type=Dsn(), multiple=True, help="Also check this standby (repeatable)."
    )(function)


def slot_option(function: F) -> F:
    """--slot."""
    return click.option(
        "--slot", default="walproposer", show_default=True, help="Physical slot on the primary."
    )(function)


def application_name_option(function: F) -> F:
    """--application-name."""
    return click.option(
        "--application-name",
        default="walproposer",
        show_default=True,
        help="Our name in synchronous_standby_names.",
    )(function)


def timeout_option(text: str) -> Callable[[F], F]:
    """--timeout, for the commands that wait for a quorum."""
    return click.option(
        "--timeout",
        type=FiniteRange(min=0, min_open=True),
        metavar="SECONDS",
        default=60.0,
        show_default=True,
        help=text,
    )


def wait_option(text: str) -> Callable[[F], F]:
    """--wait, for the commands that look at a cluster that may just be starting."""
    return click.option(
        "--wait",
        type=FiniteRange(min=0),
        metavar="SECONDS",
        default=0.0,
        help=text,
    )


def safekeepers_option(function: F) -> F:
    """--safekeepers A,B,C and --safekeeper-conninfo."""
    text = "Addresses of the members: HOST:PORT,HOST:PORT,..."
    safekeepers = shared_option(
        "--safekeepers", "SK_SAFEKEEPERS", type=Safekeepers(), required=True, help=text
    )
    return safekeepers(_conninfo_option(function))


def live_safekeepers_option(function: F) -> F:
    """--safekeepers and --safekeeper-conninfo, both optional; () without --safekeepers."""
    text = "Members that run, for WAL that is not archived yet: HOST:PORT,HOST:PORT,..."
    safekeepers = shared_option(
        "--safekeepers", "SK_SAFEKEEPERS", type=Safekeepers(), default=(), help=text
    )
    return safekeepers(_conninfo_option(function))


def _conninfo_option(function: F) -> F:
    return shared_option(
        "--safekeeper-conninfo",
        "SK_SAFEKEEPER_CONNINFO",
        type=Dsn(),
        default="",
        help="libpq settings for safekeeper connections: sslmode, user, passfile, ...",
    )(function)


def http_token_option(function: F) -> F:
    """--http-token-file, for the commands that read status pages."""
    return shared_option(
        "--http-token-file",
        "SK_HTTP_TOKEN_FILE",
        type=click.Path(path_type=Path),
        help="File with the bearer token of the HTTP ports.",
    )(function)


def http_token(path: Path | None) -> str:
    """The token in the file; "" without a file. Raises CommandError."""
    try:
        return "" if path is None else read_http_token(path)
    except (OSError, ValueError) as error:
        raise CommandError(f"could not read the HTTP token: {error}") from error


def timeline_option(function: F) -> F:
    """--timeline, to choose one."""
    return click.option(
        "--timeline", type=TimelineName(), help="Timeline to use; required if there are several."
    )(function)


def database_option(function: F) -> F:
    """--dsn, for the commands that read from a database."""
    return click.option(
        "--dsn", type=Dsn(), required=True, help="DSN of the database, on a primary or a standby."
    )(function)


def output_option(function: F) -> F:
    """--output, for the commands that write a file."""
    return click.option(
        "--output",
        "-o",
        type=click.Path(dir_okay=False, writable=True, path_type=Path),
        required=True,
        help="The file to write.",
    )(function)


def json_option(function: F) -> F:
    """--json."""
    return click.option("--json", is_flag=True, help="Print JSON.")(function)


def with_conninfo(
    addresses: tuple[SafekeeperAddress, ...], conninfo: str
) -> tuple[SafekeeperAddress, ...]:
    """The addresses, each with the libpq settings `conninfo`."""
    return tuple(SafekeeperAddress(a.host, a.port, conninfo) for a in addresses)
