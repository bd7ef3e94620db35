"""`sk attach` and `sk detach`: make the commits of a running primary wait for a quorum, or stop."""

from __future__ import annotations

import os
import ssl
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

import click
from psycopg.conninfo import conninfo_to_dict

from quorum_wal.cli.chain_options import chain_options, chain_rule
from quorum_wal.cli.listening import (
    PATH,
    HostPort,
    port,
    refuse_open_ports,
    spare_http_ports,
    tls_files,
    tls_options,
)
from quorum_wal.cli.output import CommandError
from quorum_wal.cli.parameters import (
    FiniteRange,
    application_name_option,
    primary_option,
    safekeepers_option,
    slot_option,
    timeline_option,
    with_conninfo,
)
from quorum_wal.cli.qsync_options import QsyncValues, qsync_config, qsync_options
from quorum_wal.consensus.ids import TimelineId
from quorum_wal.pgwire.tls import TlsFiles
from quorum_wal.telemetry.status_server import (
    HttpListener,
    ListenError,
    StatusServer,
    http_listener,
)
from quorum_wal.telemetry.stop_signal import StopSignal
from quorum_wal.walproposer.attachment import Attachment
from quorum_wal.walproposer.config import ProposerConfig
from quorum_wal.walproposer.failover.detachment import leave
from quorum_wal.walproposer.locks.lease import LEASE_SECONDS
from quorum_wal.walproposer.primary.primary_address import PrimaryAddress
from quorum_wal.walproposer.primary.synchronous_standby import reset, setting_statement
from quorum_wal.walproposer.safekeeper_client import SafekeeperAddress
from quorum_wal.walproposer.service import WalProposer
from quorum_wal.walproposer.timelines.timeline_creation import FoundTimeline

if TYPE_CHECKING:
    from quorum_wal.telemetry.page.page_view import WebPage

proposer_http_option = click.option(
    "--http",
    type=HostPort(),
    default="127.0.0.1:7677",
    show_default=True,
    help="Address for status, metrics and health. If the default port is in use, the next one.",
)

admin_token_option = click.option(
    "--admin-token-file",
    type=PATH,
    help="File with the bearer token that is required to change the members. Without it, changes "
    "are accepted from this machine only.",
)


@click.command()
@primary_option()
@safekeepers_option
@timeline_option
@slot_option
@application_name_option
@click.option(
    "--configure",
    is_flag=True,
    help="Set synchronous_standby_names with ALTER SYSTEM once WAL streams.",
)
@click.option(
    "--lock",
    metavar="URL",
    help="Attach only while holding this lock: etcd://HOST:PORT/NAME, s3://..., /folder.",
)
@click.option(
    "--lock-ttl",
    type=FiniteRange(1.0),
    default=LEASE_SECONDS,
    show_default=True,
    metavar="SECONDS",
    help="Time after which a lock that was not renewed is free.",
)
@click.option(
    "--supervise",
    type=click.Path(path_type=Path),
    metavar="PGDATA",
    help="Follow the server on this data directory: wait until it is a primary, retry if attaching "
    "fails, exit when the server has stopped.",
)
@click.option(
    "--take-over",
    is_flag=True,
    help="Prepare everything, then take over from the proposer that runs on this machine, if there "
    "is one. If the --http port is in use, use the next free one.",
)
@chain_options
@qsync_options
@proposer_http_option
@tls_options
@admin_token_option
def attach(
    primary: str,
    safekeepers: tuple[SafekeeperAddress, ...],
    safekeeper_conninfo: str,
    timeline: TimelineId | None,
    slot: str,
    application_name: str,
    configure: bool,
    lock: str | None,
    lock_ttl: float,
    supervise: Path | None,
    take_over: bool,
    via: tuple[tuple[int, int], ...],
    via_sites: bool,
    site: str,
    http: tuple[str, int],
    tls_cert: Path | None,
    tls_key: Path | None,
    http_token_file: Path | None,
    insecure: bool,
    admin_token_file: Path | None,
    **qsync: Unpack[QsyncValues],
) -> None:
    """Attach to a primary and run its proposer in the foreground.

    Creates the timeline on all safekeepers if this primary has none there yet, and prints its name.
    Refuses a primary that belongs to another log; sk detach --drop-slot removes it from that log.
    """
    files = tls_files(tls_cert, tls_key)
    config = ProposerConfig(
        primary=PrimaryAddress(primary, slot, application_name),
        safekeepers=with_conninfo(safekeepers, safekeeper_conninfo),
        timeline=timeline,
        configure=configure,
        lock=None if lock == "none" else lock,
        lock_seconds=lock_ttl,
        chains=chain_rule(via, site, via_sites=via_sites),
        qsync=qsync_config(qsync, files, insecure=insecure),
    )
    if supervise is not None and "," in str(conninfo_to_dict(primary).get("host", "")):
        raise click.UsageError("--supervise is for one server, --primary names several hosts")
    listener = proposer_listener(http, files, http_token_file, insecure, admin_token_file)
    stopping = StopSignal().install()

    def attached(found: FoundTimeline) -> None:
        click.echo(f"timeline {found.timeline}")
        if not configure:
            hint = f"once streaming, run: {setting_statement(application_name)}"
            click.echo(hint, err=True)

    with proposer_with_page(config, listener, stopping, is_ready=take_over) as proposer:
        Attachment(proposer, stopping, attached, supervised=supervise, takes_over=take_over).run()
    _end_at_once()


def _end_at_once() -> None:
    """Exits without the interpreter's cleanup, when everything is closed and reported. The cleanup
    takes a tenth of the time of a start, and commits wait until the next proposer has started."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


@contextmanager
def proposer_with_page(
    config: ProposerConfig, listener: HttpListener, stopping: StopSignal, *, is_ready: bool = False
) -> Iterator[WalProposer]:
    """Serves the status page inside the block. With `is_ready` the page answers from the beginning;
    otherwise only when the proposer has started. Raises CommandError."""
    proposer = WalProposer(config, stopping)
    try:
        is_busy = (lambda: False) if is_ready else proposer.is_starting
        pages = replace(proposer.pages(), web=lambda: _web_page(proposer))
        with StatusServer(listener, pages, is_busy) as server:
            if is_ready:
                server.wait_started()  # or its imports would delay the take-over
            proposer.config = replace(config, http=_page_address(listener, server.port))
            with closing(proposer):
                yield proposer
    except ListenError as error:
        raise CommandError(str(error), "Choose another --http.") from error


def proposer_listener(
    http: tuple[str, int],
    files: TlsFiles | None,
    token_file: Path | None,
    insecure: bool,
    admin_token_file: Path | None,
) -> HttpListener:
    """The listener of the status page. Raises CommandError if a file cannot be used."""
    protection = {"--tls-cert": files, "--http-token-file": token_file}
    refuse_open_ports([port("--http", http[0], protection)], insecure=insecure)
    try:
        return http_listener(*http, files, token_file, spare_http_ports(), admin_token_file)
    except ssl.SSLError as error:
        raise CommandError(f"could not load the TLS certificate: {error}") from error
    except (OSError, ValueError) as error:
        hint = getattr(error, "hint", "")
        raise CommandError(f"could not secure the HTTP port: {error}", hint) from error


def _web_page(proposer: WalProposer) -> WebPage:
    # Imported late: a start need not wait for it.
    from quorum_wal.cluster.page.proposer_page import ProposerPage

    return ProposerPage(proposer).web_page


def _page_address(listener: HttpListener, port: int) -> str:
    """The address of our status page that the safekeepers report."""
    host = f"[{listener.host}]" if ":" in listener.host else listener.host
    return f"{'https://' if listener.tls is not None else ''}{host}:{port}"


@click.command()
@primary_option()
@slot_option
@click.option(
    "--drop-slot",
    is_flag=True,
    help="Also drop the slot, so that the primary no longer keeps WAL for it. The primary forgets "
    "which log it belongs to, and can be attached to another one.",
)
@click.option(
    "--force",
    is_flag=True,
    help="Detach even if commits wait. They then return with one copy, on the primary.",
)
def detach(primary: str, slot: str, drop_slot: bool, force: bool) -> None:
    """Stop making the commits of a primary wait for a quorum.

    Resets synchronous_standby_names. Stop the proposer before you drop the slot. Refuses, with exit
    code 3, while commits wait that no quorum has confirmed. Lists the transactions of qsync that
    remain prepared.
    """
    address = PrimaryAddress(primary, slot)
    for line in reset(address, drop_slot=drop_slot, force=force):
        click.echo(line)
    for line in leave(address, drop_slot=drop_slot):
        click.echo(line)
