"""`sk safekeeper`: run a safekeeper."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from quorum_wal.access.access import AccessConfig
from quorum_wal.access.admission import DEFAULT_LIMITS, ConnectionLimits
from quorum_wal.cli.archiving_options import archiving_options
from quorum_wal.cli.chain_options import PeerConninfo
from quorum_wal.cli.listening import (
    PATH,
    HostPort,
    port,
    refuse_open_ports,
    spare_http_ports,
    tls_files,
    tls_options,
)
from quorum_wal.cli.many_options import ManyOptions, many_options
from quorum_wal.cli.output import CommandError
from quorum_wal.cli.parameters import ByteSize, FiniteRange
from quorum_wal.consensus.membership import TEXT_BYTES_MAX
from quorum_wal.safekeeper.archive_progress import ArchiveSettings
from quorum_wal.safekeeper.config import SafekeeperConfig
from quorum_wal.safekeeper.replica import WAL_SENDER_TIMEOUT_SECONDS
from quorum_wal.safekeeper.retention import (
    DISK_RESERVE_BYTES,
    GIB,
    MAX_MEMBER_WAL_KEEP_BYTES,
    MAX_SLOT_WAL_KEEP_BYTES,
    WAL_KEEP_BYTES,
    RetentionPolicy,
)
from quorum_wal.safekeeper.scrub import MEGABYTE, PERIOD_HOURS, RATE_MEGABYTES, ScrubSettings
from quorum_wal.safekeeper.service import Safekeeper
from quorum_wal.telemetry.hang_guard import HANG_TIMEOUT_SECONDS, hang_guard
from quorum_wal.telemetry.status_server import ListenError
from quorum_wal.telemetry.stop_signal import StopSignal

if TYPE_CHECKING:
    from quorum_wal.telemetry.page.page_view import WebPage


class Site(click.ParamType[str]):
    """The name of a site, short enough for a membership."""

    name = "name"

    def convert(self, value: Any, param: Any, ctx: Any) -> str:
        if len(value.encode()) > TEXT_BYTES_MAX or not value.isprintable():
            self.fail(f"expected at most {TEXT_BYTES_MAX} bytes of printable text", param, ctx)
        return str(value)


@click.group()
def safekeeper() -> None:
    """Run a safekeeper: it stores WAL, votes, and serves the WAL."""


@safekeeper.command()
@click.option(
    "--id", type=click.IntRange(1), metavar="N", required=True, help="Unique id of the member."
)
@click.option(
    "--data-dir", type=click.Path(path_type=Path), required=True, help="Folder of its WAL."
)
@click.option(
    "--listen",
    type=HostPort(),
    default="127.0.0.1:5454",
    show_default=True,
    help="Address for proposers and readers (Postgres protocol).",
)
@click.option(
    "--http",
    type=HostPort(),
    default="127.0.0.1:7676",
    show_default=True,
    help="Address for status, metrics and health. If the default port is in use, the next one.",
)
@click.option(
    "--wal-keep-size",
    type=ByteSize(),
    default=f"{WAL_KEEP_BYTES // GIB}GB",
    show_default=True,
    help="WAL to keep for readers without a slot.",
)
@click.option(
    "--max-slot-wal-keep-size",
    type=ByteSize(),
    default=f"{MAX_SLOT_WAL_KEEP_BYTES // GIB}GB",
    show_default=True,
    help="WAL that a slot may hold before the slot is lost; 0: no limit.",
)
@click.option(
    "--max-member-wal-keep-size",
    type=ByteSize(),
    default=f"{MAX_MEMBER_WAL_KEEP_BYTES // GIB}GB",
    show_default=True,
    help="WAL to keep for an unavailable member before it is left behind; 0: no limit.",
)
@click.option(
    "--wal-sender-timeout",
    type=FiniteRange(0),
    default=WAL_SENDER_TIMEOUT_SECONDS,
    show_default=True,
    metavar="SECONDS",
    help="Disconnect a replica that sends nothing for this long; 0: never.",
)
@click.option(
    "--user-file",
    type=PATH,
    help="Users, roles and verifiers (sk user); requires a password. Reread when changed.",
)
@click.option(
    "--tls-client-ca",
    type=PATH,
    help="Also requires a client certificate of this CA, issued to the user's name.",
)
@click.option(
    "--connections-max",
    type=click.IntRange(1),
    metavar="N",
    default=DEFAULT_LIMITS.connections_max,
    show_default=True,
    help="Maximum number of connections of all users.",
)
@click.option(
    "--connections-per-user-max",
    type=click.IntRange(1),
    metavar="N",
    default=DEFAULT_LIMITS.connections_per_user_max,
    show_default=True,
    help="Maximum number of connections of one user.",
)
@click.option(
    "--connections-per-role-max",
    type=click.IntRange(1),
    metavar="N",
    default=DEFAULT_LIMITS.connections_per_role_max,
    show_default=True,
    help="Maximum number of connections of each of the roles replica, monitor and client.",
)
@click.option(
    "--connections-reserved",
    type=click.IntRange(0),
    metavar="N",
    default=DEFAULT_LIMITS.connections_reserved,
    show_default=True,
    help="Part of --connections-max that is reserved for proposers and admins.",
)
@click.option(
    "--site",
    type=Site(),
    default="",
    metavar="NAME",
    help="Site of this safekeeper, shown in the list of members: a room, a zone.",
)
@click.option(
    "--peer-conninfo",
    type=PeerConninfo(),
    default="",
    help="libpq settings to read WAL from another safekeeper, of a user with the role proposer: "
    "user, passfile, sslmode, ... (daisy chain).",
)
@archiving_options
@click.option(
    "--disk-reserve",
    type=ByteSize(),
    default=f"{DISK_RESERVE_BYTES >> 20}MB",
    show_default=True,
    help="Free space below which the safekeeper accepts no more WAL.",
)
@click.option(
    "--hang-timeout",
    type=FiniteRange(0),
    default=HANG_TIMEOUT_SECONDS,
    show_default=True,
    metavar="SECONDS",
    help="Kill the process if it hangs for this long, so that clients use another one; 0: never.",
)
@click.option(
    "--scrub-rate",
    type=FiniteRange(0),
    default=RATE_MEGABYTES,
    show_default=True,
    metavar="MB/S",
    help="Rate at which old WAL is read again to find damage; 0: never.",
)
@click.option(
    "--scrub-period",
    type=FiniteRange(0),
    default=PERIOD_HOURS,
    show_default=True,
    metavar="HOURS",
    help="Time from the start of one scrub to the start of the next.",
)
@many_options
@tls_options
def run(
    id: int,
    data_dir: Path,
    listen: tuple[str, int],
    http: tuple[str, int],
    wal_keep_size: int,
    max_slot_wal_keep_size: int,
    max_member_wal_keep_size: int,
    wal_sender_timeout: float,
    user_file: Path | None,
    tls_client_ca: Path | None,
    connections_max: int,
    connections_per_user_max: int,
    connections_per_role_max: int,
    connections_reserved: int,
    site: str,
    peer_conninfo: str,
    archive: ArchiveSettings | None,
    disk_reserve: int,
    hang_timeout: float,
    scrub_rate: float,
    scrub_period: float,
    many: ManyOptions,
    tls_cert: Path | None,
    tls_key: Path | None,
    http_token_file: Path | None,
    insecure: bool,
) -> None:
    """Run one safekeeper in the foreground until SIGTERM or SIGINT."""
    tls = tls_files(tls_cert, tls_key, tls_client_ca)
    _check_users(tls_client_ca, user_file)
    ports = [
        port("--listen", listen[0], {"--tls-cert": tls, "--user-file": user_file}),
        port("--http", http[0], {"--tls-cert": tls, "--http-token-file": http_token_file}),
    ]
    refuse_open_ports(ports, insecure=insecure)
    limits = ConnectionLimits(
        connections_max, connections_per_user_max, connections_per_role_max, connections_reserved
    )
    _check_limits(limits)
    config = SafekeeperConfig(
        safekeeper_id=id,
        data_dir=data_dir,
        host=listen[0],
        port=listen[1],
        http_host=http[0],
        http_port=http[1],
        access=AccessConfig(tls, user_file, limits),
        tenant_limits=many.tenant_limits,
        http_token_file=http_token_file,
        http_spare_ports=spare_http_ports(),
        retention=RetentionPolicy(
            wal_keep_size, max_slot_wal_keep_size, disk_reserve, max_member_wal_keep_size
        ),
        archive=archive,
        scrub=ScrubSettings(scrub_rate * MEGABYTE, scrub_period * 3600),
        wal_sender_timeout_seconds=wal_sender_timeout,
        idle_seconds=many.idle_seconds,
        metrics_timelines_max=many.metrics_timelines_max,
        site=site,
        peer_conninfo=peer_conninfo,
    )
    _serve(config, hang_timeout)


def _check_users(tls_client_ca: Path | None, user_file: Path | None) -> None:
    """Raises UsageError."""
    if tls_client_ca is not None and user_file is None:
        raise click.UsageError(
            "--tls-client-ca needs --user-file, which has the roles of the users"
        )


def _check_limits(limits: ConnectionLimits) -> None:
    """Raises UsageError."""
    if limits.connections_reserved >= limits.connections_max:
        raise click.UsageError("--connections-reserved must be less than --connections-max")


def _serve(config: SafekeeperConfig, hang_timeout: float) -> None:
    """Runs until a signal. Raises SafekeeperError, AccessError, CommandError."""
    with hang_guard(hang_timeout):
        stopping = StopSignal().install()
        try:
            with Safekeeper(config, _web_page):
                stopping.wait()
        except ListenError as error:
            raise CommandError(str(error), "Choose another --http.") from error


def _web_page(safekeeper: Safekeeper) -> WebPage:
    # Imported late: the page is needed only when it is served.
    from quorum_wal.cluster.page.safekeeper_page import SafekeeperPage, Source

    archive = safekeeper.config.archive
    source = Source(
        safekeeper.status, safekeeper.positions, archive.url if archive is not None else ""
    )
    return SafekeeperPage(source).web_page
