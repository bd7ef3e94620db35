"""--via, --via-sites and --site: which members take the WAL from another one (daisy chain); and
--peer-conninfo, how they connect to it."""

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


#: Of a chain the leader says whom to connect to, and the timeline what to ask for.
NOT_FOR_PEERS = ("host", "hostaddr", "port", "dbname", "options", "replication")


class PeerConninfo(Dsn):
    """libpq settings for any safekeeper, so without an address."""

    def convert(self, value: Any, param: Any, ctx: Any) -> str:
        conninfo = super().convert(value, param, ctx)
        named = conninfo_to_dict(conninfo)
        wrong = next((name for name in NOT_FOR_PEERS if name in named), None)
        if wrong is not None:
            self.fail(
                f"it says {wrong}, which is the source's and comes from the membership; expected "
                "user, passfile, sslmode, ...",
                param,
                ctx,
            )
        return conninfo


def _is_id(text: str) -> bool:
    # Its digits are counted first: int() refuses thousands of them.
    return text.isascii() and text.isdecimal() and len(text) <= len(str(2**63))


def chain_options(function: F) -> F:
    """Gives `via`, `via_sites` and `site`."""
    options = (
        click.option(
            "--via",
            type=Via(),
            multiple=True,
            metavar="ID=SOURCE_ID",
            help="This member takes the WAL from that one, not from here, while that one is no "
            "later. May be given more than once.",
        ),
        click.option(
            "--via-sites",
            is_flag=True,
            help="So does a member at another site than --site, from the first one at its own.",
        ),
        click.option("--site", default="", metavar="NAME", help="Where this proposer stands."),
    )
    for option in reversed(options):
        function = option(function)
    return function


def chain_rule(via: Sequence[tuple[int, int]], site: str, *, via_sites: bool) -> ChainRule:
    """Raises UsageError."""
    sources: Mapping[int, int] = dict(via)
    if len(sources) < len(via):
        raise click.UsageError("--via names a member twice: it has one source")
    both = sorted({*sources} & {*sources.values()})
    if both:
        raise click.UsageError(
            f"--via: safekeeper {both[0]} is the source of one and takes from another: a chain has "
            "one link"
        )
    if via_sites and not site:
        raise click.UsageError("--via-sites needs --site, where this proposer stands")
    return ChainRule(sources, site, via_sites)
