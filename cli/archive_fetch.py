"""`sk archive fetch`: the restore_command of a Postgres that recovers from the archive.

Postgres reads the exit code. 0: the file was written. 1 to 125: there is no such file, and the
recovery ends. Above 125: an error, and Postgres stops, because a server that started now could lack
WAL that exists. Law: the command exits with 1 only when it is certain that the file does not exist.
Every other failure, also a mistake on the command line, exits with 255. Modules are imported where
they are used, because Postgres waits for each run.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from quorum_wal.cli.archive_options import archive_options, open_archive, parse_options
from quorum_wal.cli.output import CommandError, ExitCode

if TYPE_CHECKING:
    from quorum_wal.backup.wal_source import WalSource
    from quorum_wal.consensus.ids import TimelineId

PREFETCH = 8
PATIENCE_SECONDS = 60.0


class RestoreCommand(click.Command):
    """Exits with CANNOT_TELL on every error, also on wrong usage."""

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        try:
            return super().make_context(info_name, args, parent, **extra)
        except click.UsageError as error:
            error.exit_code = int(ExitCode.CANNOT_TELL)  # type: ignore[misc]  # click means it so
            raise

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (click.exceptions.Exit, CommandError):
            raise
        except click.ClickException as error:
            error.exit_code = int(ExitCode.CANNOT_TELL)  # type: ignore[misc]  # click means it so
            raise
        except KeyboardInterrupt as error:
            raise CommandError("interrupted", exit_code=ExitCode.CANNOT_TELL) from error
        except Exception as error:  # a bug of ours must not end a recovery early either
            text = " ".join(str(error).split()) or type(error).__name__
            hint = getattr(error, "hint", "")
            raise CommandError(text, hint, ExitCode.CANNOT_TELL) from error


@click.command(cls=RestoreCommand)
@archive_options(required=False)
@click.option("--safekeepers", metavar="A,B,C", default="", help="Also ask these: HOST:PORT,...")
@click.option(
    "--safekeeper-conninfo",
    metavar="DSN",
    default="",
    help="libpq settings for safekeeper connections: sslmode, user, passfile, ...",
)
@click.option(
    "--timeline", metavar="TENANT/TIMELINE", default="", help="Required if there are several."
)
@click.option(
    "--prefetch",
    type=click.IntRange(0, 64),
    default=PREFETCH,
    show_default=True,
    metavar="N",
    help="Number of following segments to fetch in the background. Needs --timeline.",
)
@click.option(
    "--patience",
    type=click.FloatRange(min=0),
    default=PATIENCE_SECONDS,
    show_default=True,
    metavar="SECONDS",
    help="How long to retry after a temporary failure.",
)
@click.option(
    "--whole",
    is_flag=True,
    help="Return whole segments only. For a standby that streams the rest: when it is promoted, it "
    "reads the last segment again, and the archive may have less of it than was streamed.",
)
@click.argument("file")
@click.argument("path", type=click.Path(path_type=Path, dir_okay=False))
@click.pass_context
def fetch(
    context: click.Context,
    archive: str | None,
    archive_option: tuple[str, ...],
    safekeepers: str,
    safekeeper_conninfo: str,
    timeline: str,
    prefetch: int,
    patience: float,
    whole: bool,
    file: str,
    path: Path,
) -> None:
    """Write the WAL segment or history file FILE to PATH, for Postgres's restore_command:

        restore_command = 'sk archive fetch --archive /srv/archive %f %p'

    A whole segment is read from the archive, or from a safekeeper if the archive does not have it.
    The last segment is the longest beginning that any of them has, padded with zeros. Exits with 1
    if all of them answered and none has FILE; recovery ends there. Exits with 255 if that is not
    certain: the store or a majority of the safekeepers does not answer, an object is damaged, or an
    option is wrong. Postgres then stops its recovery, and can be started again.
    """
    from quorum_wal.backup.wal_fetch import is_segment
    from quorum_wal.backup.wal_prefetch import PrefetchFolder

    if archive is None and not safekeepers:
        raise click.UsageError("give --archive, --safekeepers, or both")
    folder, wanted = None, _timeline(timeline)
    if prefetch and archive is not None and wanted is not None and is_segment(file):
        folder = PrefetchFolder.beside(path, wanted)
        if folder.take(file, path):
            return
    sources = _sources(archive, archive_option, safekeepers, safekeeper_conninfo, wanted)
    if not _fetch(file, path, sources, patience, whole):
        if folder is not None:
            folder.end()
        click.echo(f"sk: {file} does not exist", err=True)
        context.exit(ExitCode.FAILED)
    if folder is not None:
        settings = {"url": archive, "timeline": timeline, "ahead": prefetch}
        folder.ask(file, {**settings, "options": parse_options(archive_option)})


def _fetch(file: str, path: Path, sources: list[WalSource], patience: float, whole: bool) -> bool:
    from quorum_wal.backup.wal_fetch import fetch_wal_file
    from quorum_wal.storage import durable

    content = fetch_wal_file(file, sources, patience, whole_only=whole)
    if content is None:
        return False
    durable.replace_file(path.absolute(), content)
    return True


def _sources(
    archive: str | None,
    archive_option: tuple[str, ...],
    safekeepers: str,
    safekeeper_conninfo: str,
    timeline: TimelineId | None,
) -> list[WalSource]:
    """In the order in which they are asked."""
    sources: list[WalSource] = []
    if archive is not None:
        from quorum_wal.backup.archived_wal import ArchivedWalSource
        from quorum_wal.objectstore.archive import require_archive

        store = open_archive(archive, archive_option)
        sources.append(ArchivedWalSource(lambda: require_archive(store, timeline)))
    if safekeepers:
        from quorum_wal.backup.safekeeper_wal import Safekeeper, SafekeeperWalSource
        from quorum_wal.cli.parameters import Dsn, Safekeepers, with_conninfo

        conninfo = Dsn().convert(safekeeper_conninfo, None, None)
        addresses = with_conninfo(Safekeepers().convert(safekeepers, None, None), conninfo)
        sources.append(
            SafekeeperWalSource(
                [Safekeeper(str(a), partial(a.connect, timeline)) for a in addresses]
            )
        )
    return sources


def _timeline(text: str) -> TimelineId | None:
    """Raises MessageError."""
    if not text:
        return None
    from quorum_wal.consensus.ids import TimelineId

    return TimelineId.parse(text)
