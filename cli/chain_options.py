"""Options for daisy chains, in which a member takes the WAL from another member.

--via, --via-sites and --site choose the source; --peer-conninfo has the settings to connect to it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import click
from psycopg.conninfo import conninfo_to_dict

from quorum_wal.cli.parameters import Dsn
from quorum_wal.walproposer.chain_rule import ChainRule

F = TypeVar("F", bound=Callable[..., Any])


class Via(click.ParamType[tuple[int, int]]):
    """ID=SOURCE_ID."""

    name = "id=source_id"

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[int, int]:
        ids = [int(part) if _is_id(part) else 0 for part in str(value).split("=")]
        if len(ids) != len(("ID", "SOURCE_ID")) or not all(ids):
            self.fail("expected two member ids, as 4=2", param, ctx)
        if ids[0] == ids[1]:
            self.fail(f"safekeeper {ids[0]} cannot take its WAL from itself", param, ctx)
        return ids[0], ids[1]


#: The leader names the source of a chain; its address and timeline are not settings.
NOT_FOR_PEERS = ("host", "hostaddr", "port", "dbname", "options", "replication")


class PeerConninfo(Dsn):
    """libpq settings that fit every safekeeper, and so have no address."""

    def convert(self, value: Any, param: Any, ctx: Any) -> str:
        conninfo = super().convert(value, param, ctx)
        named = conninfo_to_dict(conninfo)
        wrong = next((name for name in NOT_FOR_PEERS if name in named), None)
        if wrong is not None:
            self.fail(
                f"{wrong} is not allowed, because it comes from the membership; expected user, "
                "passfile, sslmode, ...",
                param,
                ctx,
            )
        return conninfo


def _is_id(text: str) -> bool:
    # The length is checked first, because int() refuses thousands of digits.
    return text.isascii() and text.isdecimal() and len(text) <= len(str(2**63))


def chain_options(function: F) -> F:
    """Adds the parameters `via`, `via_sites` and `site`."""
    options = (
        click.option(
            "--via",
            type=Via(),
            multiple=True,
            metavar="ID=SOURCE_ID",
            help="Member ID takes the WAL from member SOURCE_ID, not from the proposer, while the "
            "source keeps up with the log (repeatable).",
        ),
        click.option(
            "--via-sites",
            is_flag=True,
            help="At each site other than --site, the first member takes the WAL from the "
            "proposer, and the other members take it from the first.",
        ),
        click.option("--site", default="", metavar="NAME", help="Site of this proposer."),
    )
    for option in reversed(options):
        function = option(function)
    return function


def chain_rule(via: Sequence[tuple[int, int]], site: str, *, via_sites: bool) -> ChainRule:
    """Raises UsageError."""
    sources: Mapping[int, int] = dict(via)
    if len(sources) < len(via):
        raise click.UsageError("--via names a member twice: a member has one source")
    both = sorted({*sources} & {*sources.values()})
    if both:
        raise click.UsageError(
            f"--via: safekeeper {both[0]} is both a source and takes from a source: a chain has "
            "one link"
        )
    if via_sites and not site:
        raise click.UsageError("--via-sites needs --site, the site of this proposer")
    return ChainRule(sources, site, via_sites)
