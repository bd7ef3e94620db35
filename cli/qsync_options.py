"""--qsync and its options, for the commands that run a proposer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypedDict, TypeVar

import click

from quorum_wal.cli.listening import PATH, HostPort, port, refuse_open_ports
from quorum_wal.pgwire.tls import TlsFiles
from quorum_wal.walproposer.config import AGE_MAX_SECONDS, ORPHAN_GRACE_SECONDS, QsyncConfig

F = TypeVar("F", bound=Callable[..., Any])


class QsyncValues(TypedDict):
    """The parameters that `qsync_options` adds to a command."""

    qsync: tuple[str, int] | None
    qsync_user_file: Path | None
    qsync_limbo_max: int | None
    qsync_age_max: float
    qsync_order: str
    qsync_orphan_grace: float


def qsync_options(function: F) -> F:
    options = (
        click.option(
            "--qsync",
            type=HostPort(),
            help="Coordinate transactions of qsync, and listen for their clients at this address.",
        ),
        click.option(
            "--qsync-user-file",
            type=PATH,
            help="Users of that port and their roles (sk user). Reread when changed.",
        ),
        click.option(
            "--qsync-limbo-max",
            type=click.IntRange(1),
            metavar="N",
            help="Maximum number of prepared transactions.  [default: half of the primary's "
            "max_prepared_transactions]",
        ),
        click.option(
            "--qsync-age-max",
            type=click.FloatRange(0.1),
            default=AGE_MAX_SECONDS,
            show_default=True,
            metavar="SECONDS",
            help="No more transactions are admitted while one has been prepared for longer.",
        ),
        click.option(
            "--qsync-order",
            type=click.Choice(["any", "fifo"]),
            default="any",
            show_default=True,
            help="fifo: transactions are confirmed and committed in the order of their PREPAREs.",
        ),
        click.option(
            "--qsync-orphan-grace",
            type=click.FloatRange(0.0),
            default=ORPHAN_GRACE_SECONDS,
            show_default=True,
            metavar="SECONDS",
            help="How long after its client disconnects the coordinator finishes a transaction.",
        ),
    )
    for option in reversed(options):
        function = option(function)
    return function


def qsync_config(
    values: QsyncValues, tls: TlsFiles | None, *, insecure: bool
) -> QsyncConfig | None:
    """The configuration, or None without --qsync. Raises click.UsageError, or CommandError if other
    machines can reach the port and it is not protected."""
    if values["qsync"] is None:
        for name in ("qsync_user_file", "qsync_limbo_max"):
            if values.get(name) is not None:
                raise click.UsageError(f"--{name.replace('_', '-')} needs --qsync")
        return None
    # Imported here, because a start without --qsync then imports a tenth less.
    from quorum_wal.access.access import AccessConfig
    from quorum_wal.walproposer.qsync.verdict_server import PORT_LIMITS

    host, number = values["qsync"]
    protection = {"--tls-cert": tls, "--qsync-user-file": values["qsync_user_file"]}
    refuse_open_ports([port("--qsync", host, protection)], insecure=insecure)
    return QsyncConfig(
        host=host,
        port=number,
        access=AccessConfig(tls, values["qsync_user_file"], PORT_LIMITS),
        limbo_max=values["qsync_limbo_max"],
        age_max_seconds=values["qsync_age_max"],
        orphan_grace_seconds=values["qsync_orphan_grace"],
        is_fifo=values["qsync_order"] == "fifo",
    )
