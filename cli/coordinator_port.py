"""Sends commands of qsync to the port of a coordinator, and returns the rows of the answer."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import click
from psycopg import sql
from psycopg.rows import dict_row

from quorum_wal.qsync.coordinator_hosts import hosts_of
from quorum_wal.qsync.errors import UsageError
from quorum_wal.walproposer.connection import converting_errors, open_connection
from quorum_wal.walproposer.errors import Unreachable, WalProposerError

DEFAULT = "127.0.0.1:5455"

Rows = list[dict[str, Any]]


class Coordinators(click.ParamType[str]):
    """`HOST:PORT,...` or a libpq connection string. Messages never repeat it."""

    name = "host:port"

    def convert(self, value: Any, param: Any, ctx: Any) -> str:
        try:
            hosts_of(str(value))
        except UsageError:
            self.fail(
                'expected HOST:PORT,... or "host=... port=... user=..."',
                param,
                ctx,
            )
        return str(value)


coordinator_option = click.option(
    "--coordinator",
    type=Coordinators(),
    default=DEFAULT,
    show_default=True,
    help="The coordinator's port (sk attach --qsync), with user and passfile if it has users. "
    "If several are given, the one that leads answers.",
)


def ask(coordinator: str, verb: str, *arguments: str) -> Rows:
    """The answer of the coordinator that leads. `arguments` replace `{}` as literals.

    Raises WalProposerError, that of the last coordinator if none leads.
    """
    text = sql.SQL(verb).format(*map(sql.Literal, arguments)).as_string()
    last: WalProposerError | None = None
    for host in hosts_of(coordinator):
        try:
            return _ask(host, text)
        except Unreachable as error:  # or it does not lead
            last = error
    assert last is not None
    raise last


def ask_each(coordinator: str, verb: str) -> Rows:
    """The first row of each coordinator that answers. Raises Unreachable if none does."""
    rows, last = [], None
    for host in hosts_of(coordinator):
        try:
            rows += _ask(host, verb)[:1]
        except Unreachable as error:
            last = error
    if not rows and last is not None:
        raise last
    return rows


def _ask(conninfo: str, text: str) -> Rows:
    with closing(open_connection(conninfo, "the coordinator")) as connection:
        cursor = connection.cursor(row_factory=dict_row)
        try:
            with converting_errors("the coordinator refused"):
                return cursor.execute(text.encode()).fetchall()
        except Unreachable as error:
            hint = error.hint or "Try again, or run sk status to see which coordinator leads."
            raise Unreachable(str(error), hint=hint, sqlstate=error.sqlstate) from error
