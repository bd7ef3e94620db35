"""Options of a safekeeper that archives: the archive, its intervals, limits and compression."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import click

from quorum_wal.cli.archive_options import archive_options, parse_options
from quorum_wal.cli.parameters import ByteSize, FiniteRange
from quorum_wal.safekeeper.archive_progress import PARTIAL_INTERVAL_SECONDS, ArchiveSettings
from quorum_wal.safekeeper.archive_workers import WORKERS


def archiving_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Passes all options as one parameter `archive`, which is None without --archive."""

    @wraps(function)
    def gathered(
        *args: Any,
        archive: str | None,
        archive_option: tuple[str, ...],
        archive_partial_interval: float,
        archive_compression: int,
        archive_backlog_max: int,
        archive_workers: int,
        archive_begin: bool,
        **others: Any,
    ) -> Any:
        settings = None
        if archive is not None:
            settings = ArchiveSettings(
                archive,
                parse_options(archive_option),
                archive_compression or None,
                archive_partial_interval,
                archive_backlog_max,
                archive_workers,
                archive_begin,
            )
        return function(*args, archive=settings, **others)

    decorated: Callable[..., Any] = gathered
    for option in reversed(_options()):
        decorated = option(decorated)
    return archive_options(required=False)(decorated)


def _options() -> list[Callable[..., Any]]:
    return [
        click.option(
            "--archive-partial-interval",
            type=FiniteRange(0.1),
            default=PARTIAL_INTERVAL_SECONDS,
            show_default=True,
            metavar="SECONDS",
            help="How long after its newest commit an unfinished segment is archived.",
        ),
        click.option(
            "--archive-compression",
            type=click.IntRange(0, 19),
            default=1,
            show_default=True,
            metavar="LEVEL",
            help="zstd compression level; 0: no compression.",
        ),
        click.option(
            "--archive-backlog-max",
            type=ByteSize(),
            default="0",
            show_default=True,
            help="WAL that may wait for the archive before more is refused; 0: limited only by "
            "the disk.",
        ),
        click.option(
            "--archive-workers",
            type=click.IntRange(1, 64),
            default=WORKERS,
            show_default=True,
            metavar="N",
            help="Number of timelines archived at the same time.",
        ),
        click.option(
            "--archive-begin",
            is_flag=True,
            help="Begin a new archive for timelines that another one has. Without it, an archive "
            "that is empty is a folder that is not mounted.",
        ),
    ]
