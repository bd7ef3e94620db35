"""`sk pageserver run`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import click
import structlog

from quorum_wal.backup.safekeeper_wal import Safekeeper
from quorum_wal.cli.archive_options import archive_options, open_existing_archive
from quorum_wal.cli.generations import TenantName
from quorum_wal.cli.generations_options import generations_options, is_service, open_generations
from quorum_wal.cli.listening import (
    PATH,
    HostPort,
    port,
    refuse_open_ports,
    tls_files,
    tokenless_tls_options,
)
from quorum_wal.cli.output import CommandError
from quorum_wal.cli.parameters import ByteSize, Dsn, live_safekeepers_option, with_conninfo
from quorum_wal.consensus.ids import TimelineId
from quorum_wal.generations.suffix import NODE_ID_MAX
from quorum_wal.pageserver.checks.scheduled_checks import CHECK_PAGES, CHECK_SECONDS, CheckSchedule
from quorum_wal.pageserver.config import ProcessConfig
from quorum_wal.pageserver.epochs.redo import SHARED_BUFFERS_MB, RedoServer
from quorum_wal.pageserver.ingest.cut_rule import CUT_BYTES, CUT_SECONDS, CutRule
from quorum_wal.pageserver.ingest.ingest import WAL_BYTES_MAX, IngestConfig
from quorum_wal.pageserver.ingest.lasting_refusal import check_not_refused
from quorum_wal.pageserver.service import PageserverService
from quorum_wal.pg_server.account import server_account
from quorum_wal.pg_server.binaries import PostgresBinaries, find_postgres
from quorum_wal.pg_server.program import can_leave_network
from quorum_wal.telemetry.service_manager import ServiceManager
from quorum_wal.telemetry.status_server import ListenError, http_listener
from quorum_wal.telemetry.stop_signal import StopSignal
from quorum_wal.walproposer.safekeeper_client import SafekeeperAddress

log = structlog.get_logger()

DEFAULT_PORT = 7680
GENERATIONS_FILE = "generations.sqlite"
HISTORY_DAYS = 7.0
GRACE_HOURS = 24.0


@click.command()
@archive_options()
@live_safekeepers_option
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path, file_okay=False),
    required=True,
    help="Folder for WAL to replay, and for state that a start would otherwise read again.",
)
@click.option(
    "--node-id",
    type=click.IntRange(1, NODE_ID_MAX),
    default=1,
    show_default=True,
    help="Number of this pageserver, unique among the pageservers of the archive.",
)
@generations_options(default=f"{GENERATIONS_FILE} in the data directory")
@click.option(
    "--cut-bytes",
    type=ByteSize(),
    default=CUT_BYTES,
    help="Make a cut after this much WAL, or after --cut-seconds.  [default: 1GB]",
)
@click.option(
    "--cut-seconds",
    type=click.FloatRange(min=0, min_open=True),
    default=CUT_SECONDS,
    show_default=True,
    help="Make a cut after this time. A cut is made after a checkpoint.",
)
@click.option(
    "--wal-bytes-max",
    type=ByteSize(),
    default=WAL_BYTES_MAX,
    help="WAL in the data directory that waits for a cut. At the limit the pageserver receives no "
    "more.  [default: 64GB]",
)
@click.option(
    "--history-days",
    type=click.FloatRange(min=0),
    default=HISTORY_DAYS,
    show_default=True,
    help="How long every cut is kept.",
)
@click.option(
    "--grace-hours",
    type=click.FloatRange(min=0),
    default=GRACE_HOURS,
    show_default=True,
    help="How long an object is kept that is no longer needed, because readers may still use it.",
)
@click.option(
    "--check",
    type=Dsn(),
    help="Regularly check pages of this server, the primary or a standby. Needs a superuser, and a "
    "database with the extension pageinspect.",
)
@click.option(
    "--check-seconds",
    type=click.FloatRange(min=0, min_open=True),
    default=CHECK_SECONDS,
    show_default=True,
    help="Time from one round of checks to the next.",
)
@click.option(
    "--check-pages",
    type=click.IntRange(min=1),
    default=CHECK_PAGES,
    show_default=True,
    help="Number of pages to check in a round, at random.",
)
@click.option(
    "--emergency",
    is_flag=True,
    help="Start without the generation service, with the last known attachments of this node. Use "
    "it if the service is lost, or down for long. The service is informed when it answers again.",
)
@click.option(
    "--emergency-tenant",
    "emergency_tenants",
    type=TenantName(),
    multiple=True,
    help="With --emergency: also attach this tenant, whichever node had it (repeatable).",
)
@click.option(
    "--pg-bin",
    type=click.Path(path_type=Path),
    help="Folder of the Postgres programs that replay WAL.  [default: found by version]",
)
@click.option(
    "--shared-buffers",
    type=ByteSize(),
    default=SHARED_BUFFERS_MB << 20,
    help="shared_buffers of the Postgres that replays WAL.  [default: 256MB]",
)
@click.option(
    "--http",
    type=HostPort(),
    default=f"127.0.0.1:{DEFAULT_PORT}",
    show_default=True,
    help="Address for status, metrics and health.",
)
@click.option("--http-token-file", type=PATH, help="File with the bearer token of that port.")
@tokenless_tls_options
def run(**options: Any) -> None:
    """Run a pageserver in the foreground until SIGTERM or SIGINT.

    It receives the WAL of a cluster, makes pages from it, and stores them in the archive. Its user
    on the safekeepers needs the role replica.
    """
    tls = tls_files(options["tls_cert"], options["tls_key"])
    host, number = options["http"]
    token_file = options["http_token_file"]
    protection = {"--tls-cert": tls, "--http-token-file": token_file}
    refuse_open_ports([port("--http", host, protection)], insecure=options["insecure"])
    if not options["safekeepers"]:
        raise click.UsageError("give --safekeepers, the safekeepers to read WAL from")
    if options["emergency_tenants"] and not options["emergency"]:
        raise click.UsageError("--emergency-tenant needs --emergency")
    if options["emergency"] and not is_service(options["generations"]):
        raise click.UsageError(
            "--emergency needs a generation service, --generations URL; to repair a database that "
            "was lost, use sk generations advance"
        )
    try:
        listener = http_listener(host, number, tls, token_file)
    except (OSError, ValueError) as error:
        raise CommandError(
            f"could not secure the port: {error}", getattr(error, "hint", "")
        ) from error
    store = open_existing_archive(options["archive"], options["archive_option"])
    check_not_refused([Safekeeper(str(each), each.connect) for each in _addresses(options)])
    if options["generations"] is None:
        options["data_dir"].mkdir(parents=True, exist_ok=True)
    service = open_generations(options, own=options["data_dir"] / GENERATIONS_FILE)
    config = _config(options)
    schedule = None
    if options["check"] is not None:
        schedule = CheckSchedule(options["check"], options["check_seconds"], options["check_pages"])
    if not can_leave_network(server_account()):
        log.warning("replays run with the network of this host", reason="no network namespace")
    stopping = StopSignal().install()
    manager = ServiceManager()
    manager.notify("READY=1")
    try:
        PageserverService(config, store, service, listener, schedule).run(stopping)
    except ListenError as error:
        raise CommandError(str(error), "Choose another --http.") from error


def _addresses(options: dict[str, Any]) -> tuple[SafekeeperAddress, ...]:
    return with_conninfo(options["safekeepers"], options["safekeeper_conninfo"])


def _config(options: dict[str, Any]) -> ProcessConfig:
    addresses = _addresses(options)

    def safekeepers_of(timeline: TimelineId) -> list[Safekeeper]:
        return [Safekeeper(str(each), partial(each.connect, timeline)) for each in addresses]

    def server_of(major: int) -> RedoServer:
        chosen = options["pg_bin"]
        binaries = PostgresBinaries.at(chosen) if chosen else find_postgres(major)
        return RedoServer(binaries, server_account(), options["shared_buffers"] >> 20)

    rule = CutRule(options["cut_bytes"], options["cut_seconds"])
    ingest = IngestConfig(safekeepers_of, rule, server_of, options["wal_bytes_max"])
    named = options["generations"] or ""
    tenants = frozenset(options["emergency_tenants"]) if options["emergency"] else None
    return ProcessConfig(
        node_id=options["node_id"],
        data_dir=options["data_dir"].absolute(),
        ingest=ingest,
        attaches_all=not named,
        history_seconds=int(options["history_days"] * 24 * 3600),
        grace_seconds=options["grace_hours"] * 3600,
        emergency_tenants=tenants,
    )
