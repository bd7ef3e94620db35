"""`python -m benchmarks`: runs benchmarks, prints tables and verdicts, writes samples as JSON.

Progress goes to stderr, one line for each measurement; tables, in Markdown, go to stdout.
"""

from __future__ import annotations

import dataclasses
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec

from benchmarks import (
    archive,
    bulk,
    changes,
    commit,
    cuts,
    decode,
    failover,
    lake,
    large_transaction,
    many,
    merges,
    mirror,
    pages,
    profile,
    qsync,
    restart,
    restore,
    serve,
    topologies,
)
from benchmarks.machine import describe_machine, format_load
from benchmarks.network import Network, delayed_network
from benchmarks.primary import Primary
from benchmarks.rounds import Verdict
from benchmarks.setups import checkouts
from quorum_wal.pg_server.binaries import PostgresBinaries, find_postgres
from quorum_wal.pg_server.errors import PgServerError

ROUNDS = 5
SECONDS = 10
BULK_MEGABYTES = 2048
RESTART_MEGABYTES = 1024
SERVE_MEGABYTES = 512
ARCHIVE_MEGABYTES = 1024
RESTORE_MEGABYTES = 2048
LAKE_MEGABYTES = 8192
DECODE_MEGABYTES = 256
CHANGES_MEGABYTES = 128
LARGE_MEGABYTES = 1000
CPU_TITLE = "CPU us a commit, user + system, of each process, over all rounds"

S = TypeVar("S")


@dataclass(frozen=True, slots=True)
class Options:
    """The options of the command line. `against` is another checkout of this project."""

    binaries: PostgresBinaries
    directory: Path
    rounds: int
    seconds: int
    clients: tuple[int, ...]
    megabytes: int | None
    against: Path | None
    interpreted: bool
    delay_ms: float | None
    timelines: int
    primaries: int
    database_gb: float


@dataclass(frozen=True, slots=True)
class Report:
    """The outcome of one benchmark. `samples` are dataclasses; `remark` describes the method."""

    table: list[list[str]]
    verdicts: list[Verdict]
    samples: Sequence[Any]
    more_tables: dict[str, list[list[str]]] = field(default_factory=dict)  # by their titles
    remark: str = ""


@contextmanager
def _network(options: Options) -> Iterator[Network]:
    """The network of --delay-ms, or the loopback."""
    if options.delay_ms is None:
        yield Network()
        return
    with delayed_network(options.delay_ms, options.directory) as network:
        yield network


def run_commit(options: Options) -> Report:
    with (
        _network(options) as network,
        Primary(options.binaries, options.directory, network) as primary,
    ):
        measured = commit.setups(
            options.against,
            interpreted=options.interpreted,
            is_delayed=options.delay_ms is not None,
        )
        samples = _collect(
            commit.measure(
                primary,
                options.directory,
                measured,
                options.clients,
                options.rounds,
                options.seconds,
            )
        )
    return Report(
        commit.table(samples),
        commit.verdicts(samples),
        samples,
        more_tables={CPU_TITLE: commit.cpu_table(samples)},
        remark=network.description,
    )


def run_profile(options: Options) -> Report:
    with Primary(options.binaries, options.directory) as primary:
        samples = _collect(
            profile.measure(
                primary, options.directory, options.clients, options.rounds, options.seconds
            )
        )
    return Report(profile.table(samples), profile.verdicts(samples), samples)


def run_bulk(options: Options) -> Report:
    with Primary(options.binaries, options.directory) as primary:
        measured = bulk.setups(options.against)
        megabytes = options.megabytes or BULK_MEGABYTES
        samples = _collect(
            bulk.measure(primary, options.directory, measured, options.rounds, megabytes)
        )
    return Report(bulk.table(samples), bulk.verdicts(samples), samples)


def run_restart(options: Options) -> Report:
    with Primary(options.binaries, options.directory) as primary:
        megabytes = options.megabytes or RESTART_MEGABYTES
        samples = _collect(
            restart.measure(
                primary, options.directory, checkouts(options.against), options.rounds, megabytes
            )
        )
    return Report(restart.table(samples), restart.verdicts(samples), samples)


def run_serve(options: Options) -> Report:
    with Primary(options.binaries, options.directory) as primary:
        megabytes = options.megabytes or SERVE_MEGABYTES
        samples = _collect(
            serve.measure(primary, options.directory, options.against, options.rounds, megabytes)
        )
    return Report(serve.table(samples), serve.verdicts(samples), samples)


def run_failover(options: Options) -> Report:
    samples = _collect(
        failover.measure(
            options.binaries, options.directory, checkouts(options.against), options.rounds
        )
    )
    return Report(failover.table(samples), failover.verdicts(samples), samples)


def run_archive(options: Options) -> Report:
    with Primary(options.binaries, options.directory) as primary:
        megabytes = options.megabytes or ARCHIVE_MEGABYTES
        samples = _collect(
            archive.measure(
                primary,
                options.directory,
                options.against,
                options.rounds,
                options.seconds,
                megabytes,
            )
        )
    return Report(archive.table(samples), archive.verdicts(samples), samples)


def run_restore(options: Options) -> Report:
    megabytes = options.megabytes or RESTORE_MEGABYTES
    samples = _collect(
        restore.measure(options.binaries, options.directory, options.rounds, megabytes)
    )
    return Report(restore.table(samples), restore.verdicts(samples), samples)


def run_decode(options: Options) -> Report:
    with Primary(options.binaries, options.directory) as primary:
        megabytes = options.megabytes or DECODE_MEGABYTES
        samples = _collect(decode.measure(primary, options.directory, options.rounds, megabytes))
    return Report(decode.table(samples), decode.verdicts(samples), samples)


def run_changes(options: Options) -> Report:
    primary = Primary(options.binaries, options.directory)
    primary.postgres.configure(wal_level="logical")
    with primary:
        megabytes = options.megabytes or CHANGES_MEGABYTES
        samples = _collect(changes.measure(primary, options.rounds, megabytes))
    return Report(changes.table(samples), changes.verdicts(samples), samples)


def run_large(options: Options) -> Report:
    megabytes = options.megabytes or LARGE_MEGABYTES
    samples: list[large_transaction.LargeSample] = []
    for wal_level in large_transaction.WAL_LEVELS:
        folder = options.directory / wal_level
        folder.mkdir()
        primary = Primary(options.binaries, folder)
        primary.postgres.configure(wal_level=wal_level, wal_keep_size="64GB", max_wal_size="16GB")
        with primary:
            samples += _collect(
                large_transaction.measure(primary, wal_level, options.rounds, megabytes)
            )
        shutil.rmtree(folder)
    return Report(large_transaction.table(samples), large_transaction.verdicts(samples), samples)


def run_lake(options: Options) -> Report:
    with Primary(options.binaries, options.directory) as primary:
        megabytes = options.megabytes or LAKE_MEGABYTES
        samples = _collect(lake.measure(primary, options.directory, options.rounds, megabytes))
    return Report(lake.table(samples), lake.verdicts(samples), samples)


def run_many(options: Options) -> Report:
    samples = _collect(
        many.measure(
            options.binaries,
            options.directory,
            options.rounds,
            options.seconds,
            options.timelines,
            options.primaries,
        )
    )
    return Report(
        many.table(samples),
        many.verdicts(samples),
        samples,
        more_tables={"One safekeeper without connections": many.idle_table(samples)},
    )


def run_topologies(options: Options) -> Report:
    latencies = _collect(
        topologies.measure_latencies(
            options.binaries, options.directory, options.clients, options.rounds, options.seconds
        )
    )
    losses = _collect(topologies.run_scenarios(options.binaries, options.directory))
    return Report(
        topologies.latency_table(latencies),
        topologies.verdicts(latencies, losses),
        [*latencies, *losses],
        more_tables={"Losses": topologies.loss_table(losses)},
        remark=topologies.description(),
    )


def run_qsync(options: Options) -> Report:
    with _network(options) as network:
        primary = Primary(options.binaries, options.directory, network)
        primary.postgres.configure(
            max_prepared_transactions=qsync.PREPARED_MAX, wal_level=qsync.WAL_LEVEL
        )
        with primary:
            samples = _collect(
                qsync.measure(
                    primary, options.directory, options.clients, options.rounds, options.seconds
                )
            )
    verdicts = qsync.verdicts(samples)
    return Report(qsync.table(samples), verdicts, samples, remark=network.description)


def run_cuts(options: Options) -> Report:
    samples = _collect(
        cuts.measure(
            options.binaries,
            options.directory,
            options.rounds,
            options.database_gb,
            options.against,
        )
    )
    return Report(cuts.table(samples), cuts.verdicts(samples), samples, remark=cuts.remark(samples))


def run_pages(options: Options) -> Report:
    samples = _collect(pages.measure(options.binaries, options.directory, options.rounds))
    return Report(pages.table(samples), pages.verdicts(samples), samples)


def run_merges(options: Options) -> Report:
    samples = _collect(merges.measure(options.directory, options.rounds))
    return Report(merges.table(samples), merges.verdicts(samples), samples)


def run_mirror(options: Options) -> Report:
    samples = _collect(mirror.measure(options.binaries, options.directory, options.seconds))
    return Report(mirror.table(samples), mirror.verdicts(samples), samples)


BENCHMARKS = {
    "commit": run_commit,
    "profile": run_profile,
    "bulk": run_bulk,
    "restart": run_restart,
    "serve": run_serve,
    "failover": run_failover,
    "archive": run_archive,
    "restore": run_restore,
    "decode": run_decode,
    "lake": run_lake,
    "changes": run_changes,
    "large": run_large,
    "many": run_many,
    "topologies": run_topologies,
    "qsync": run_qsync,
    "pages": run_pages,
    "cuts": run_cuts,
    "merges": run_merges,
    "mirror": run_mirror,
}


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(list(BENCHMARKS)))
@click.option("--rounds", type=click.IntRange(1), default=ROUNDS, show_default=True)
@click.option(
    "--seconds",
    type=click.IntRange(1),
    default=SECONDS,
    show_default=True,
    help="commit, profile, many, topologies, qsync: length of one measurement.",
)
@click.option(
    "--clients",
    type=click.IntRange(1),
    multiple=True,
    default=commit.CLIENTS,
    show_default=True,
    help="commit, profile, topologies, qsync: once for each number of clients.",
)
@click.option(
    "--megabytes",
    type=click.IntRange(1),
    help=f"WAL to write.  [default: bulk {BULK_MEGABYTES}, restart {RESTART_MEGABYTES}, "
    f"serve {SERVE_MEGABYTES}, archive {ARCHIVE_MEGABYTES}, "
    f"restore {RESTORE_MEGABYTES}, decode {DECODE_MEGABYTES}, "
    f"changes {CHANGES_MEGABYTES}, large {LARGE_MEGABYTES}]",
)
@click.option(
    "--against",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help='Another checkout: "other" in the tables of commit, bulk, restart, serve, failover, '
    "archive, cuts and mirror.",
)
@click.option("--interpreted", is_flag=True, help="commit: also ours without the compiled module.")
@click.option(
    "--delay-ms",
    type=click.FloatRange(min=0, min_open=True),
    help="commit, qsync: every packet between any two of primary (with its clients), proposer and "
    "copies takes this long, one way; a round trip takes twice as long. Uses network "
    "namespaces, which need root.  [default: the loopback]",
)
@click.option(
    "--timelines",
    type=click.IntRange(2),
    default=1000,
    show_default=True,
    help="many: the number of unused timelines.",
)
@click.option(
    "--primaries",
    type=click.IntRange(1),
    default=10,
    show_default=True,
    help="many: the number of primaries under load at once.",
)
@click.option(
    "--database-gb",
    type=click.FloatRange(min=0.1),
    default=cuts.DATABASE_GB,
    show_default=True,
    help="cuts: the size of the database; its WAL, archive and copies take ten times as much.",
)
@click.option(
    "--directory",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="The folder for the data: on a real disk with 25 GB.  [default: the temporary folder]",
)
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write all samples.")
def main(
    names: tuple[str, ...],
    rounds: int,
    seconds: int,
    clients: tuple[int, ...],
    megabytes: int | None,
    against: Path | None,
    interpreted: bool,
    delay_ms: float | None,
    timelines: int,
    primaries: int,
    database_gb: float,
    directory: Path | None,
    json_path: Path | None,
) -> None:
    """Run the benchmarks NAMES, or all of them."""
    root = Path(tempfile.mkdtemp(prefix="benchmarks-", dir=directory))
    try:
        binaries = find_postgres()
        machine = describe_machine(root, binaries.version)
        click.echo(machine.format())
        if machine.is_memory_disk:
            raise click.UsageError(f"{root} is in memory, where fsync is free: use --directory")
        outcome: dict[str, Any] = {"machine": dataclasses.asdict(machine)}
        for name in names or BENCHMARKS:
            folder = root / name
            folder.mkdir()
            options = Options(
                binaries, folder, rounds, seconds, clients, megabytes, against, interpreted,
                delay_ms, timelines, primaries, database_gb,
            )  # fmt: skip
            load = format_load()
            report = BENCHMARKS[name](options)
            shutil.rmtree(folder)
            _print(f"{name} ({rounds} rounds; before: {load}, after: {format_load()})", report)
            outcome[name] = [dataclasses.asdict(sample) for sample in report.samples]
        if json_path is not None:
            json_path.write_bytes(msgspec.json.format(msgspec.json.encode(outcome)))
    except PgServerError as error:
        raise click.ClickException(f"{error}\n{error.hint}".strip()) from error
    finally:
        shutil.rmtree(root, ignore_errors=True)


def _collect(samples: Iterable[S]) -> list[S]:
    """Collects all samples, and prints each when it is taken."""
    taken = []
    for sample in samples:
        click.echo(sample, err=True)
        taken.append(sample)
    return taken


def _print(title: str, report: Report) -> None:
    click.echo(f"\n### {title}\n")
    click.echo(f"`{shlex.join(['python', '-m', 'benchmarks', *sys.argv[1:]])}`")
    if report.remark:
        click.echo(f"\n{report.remark}")
    _print_table(report.table)
    for title, table in report.more_tables.items():
        click.echo(f"\n{title}:")
        _print_table(table)
    click.echo()
    for verdict in report.verdicts:
        click.echo(f"- {verdict.format()}")


def _print_table(table: Sequence[Sequence[str]]) -> None:
    header, *rows = table
    click.echo()
    for row in (header, ["---"] * len(header), *rows):
        click.echo(f"| {' | '.join(row)} |")


if __name__ == "__main__":
    main(prog_name="python -m benchmarks")
