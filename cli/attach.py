"""`sk attach` and `sk detach`: make a running primary quorum-durable, and stop doing so."""

from __future__ import annotations

import click

from cli.output import EXIT_FAILED, EXIT_FENCED, EXIT_UNREACHABLE, CommandError
from cli.parameters import HostPort, TimelineName, safekeepers_option, with_conninfo
from consensus.ids import TimelineId
from telemetry.status_server import HttpListener, ListenError, StatusServer
from telemetry.stop_signal import StopSignal
from walproposer.config import ProposerConfig
from walproposer.errors import Fenced, Unreachable, WalProposerError
from walproposer.safekeeper_client import SafekeeperAddress
from walproposer.service import WalProposer
from walproposer.synchronous_standby import reset, setting_statement
from walproposer.upstream import PrimaryAddress


def command_error(error: WalProposerError) -> CommandError:
    """The library's error as the command's end."""
    codes = {Fenced: EXIT_FENCED, Unreachable: EXIT_UNREACHABLE}
    return CommandError(str(error), error.hint, codes.get(type(error), EXIT_FAILED))


@click.command()
@click.option("--primary", required=True, help="DSN of the primary (a role with REPLICATION).")
@safekeepers_option
@click.option("--timeline", type=TimelineName(), help="TENANT/TIMELINE, when there are several.")
@click.option("--slot", default="walproposer", show_default=True, help="Physical slot to use.")
@click.option(
    "--application-name",
    default="walproposer",
    show_default=True,
    help="Our name in synchronous_standby_names.",
)
@click.option(
    "--configure",
    is_flag=True,
    help="Set synchronous_standby_names by ALTER SYSTEM once streaming.",
)
@click.option(
    "--http",
    type=HostPort(),
    default="127.0.0.1:7677",
    show_default=True,
    help="Address for status, metrics and health.",
)
def attach(
    primary: str,
    safekeepers: tuple[SafekeeperAddress, ...],
    safekeeper_conninfo: str,
    timeline: TimelineId | None,
    slot: str,
    application_name: str,
    configure: bool,
    http: tuple[str, int],
) -> None:
    """Attach to a primary and run its proposer in the foreground.

    Creates the timeline on all safekeepers if this primary has none there yet.
    """
    config = ProposerConfig(
        primary=PrimaryAddress(primary, slot, application_name),
        safekeepers=with_conninfo(safekeepers, safekeeper_conninfo),
        timeline=timeline,
        configure=configure,
        http=f"{http[0]}:{http[1]}",
    )
    proposer = WalProposer(config, StopSignal().install())
    try:
        found = proposer.prepare()
        click.echo(f"timeline {found.timeline}")
        if not configure:
            click.echo(f"once streaming, run: {setting_statement(application_name)}")
        with StatusServer(HttpListener(*http), proposer.pages()):
            proposer.run()
    except WalProposerError as error:
        raise command_error(error) from error
    except ListenError as error:
        raise CommandError(str(error), "Choose another --http.") from error


@click.command()
@click.option("--primary", required=True, help="DSN of the primary.")
@click.option("--slot", default="walproposer", show_default=True, help="Physical slot in use.")
@click.option("--drop-slot", is_flag=True, help="Drop the slot too: its WAL is no longer held.")
def detach(primary: str, slot: str, drop_slot: bool) -> None:
    """Let commits of a primary no longer wait for a quorum.

    Resets synchronous_standby_names. Stop the proposer before you drop the slot.
    """
    try:
        for line in reset(PrimaryAddress(primary, slot), drop_slot):
            click.echo(line)
    except WalProposerError as error:
        raise command_error(error) from error
