"""The command: `python -m tests.soak --minutes 30 --seed 7`.

It starts Postgres, three safekeepers, a proposer and a standby, injects faults, and checks all rows
at every failover and at the end. Ctrl-C ends it earlier, with the verdict up to then. It exits with
1 if an acknowledged row was lost, commits did not return, or `sk status` reported a wrong state.
With --members the members change continuously, and processes of the change are killed meanwhile.
With --qsync clients commit with the package qsync, and processes are killed at each step of it.
"""

from __future__ import annotations

import argparse
import random
import secrets
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import psycopg

from quorum_wal.pg_fixtures import processes
from quorum_wal.pg_fixtures.fork_server import ForkServers
from quorum_wal.pg_server.binaries import PostgresBinaries, find_postgres
from quorum_wal.pg_server.errors import PgServerError

from .books import Books
from .chronicle import Chronicle, SilenceWatch
from .members_run import MembersSoak
from .members_world import MembersWorld
from .qsync_outcome import print_qsync_outcome, problem_of
from .qsync_plants import PLANTS
from .qsync_run import Plan, QsyncSoak
from .qsync_strikes import VICTIMS, Minima, Victim
from .qsync_world import QsyncWorld
from .run import Soak
from .world import Loss, World

#: As many as commit while the members change.
MEMBERS_CLIENTS = 8


def main() -> int:
    arguments = _parser().parse_args()
    stopping = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: _stop(stopping))
    processes.fork_servers = ForkServers(processes.SK)
    root = Path(tempfile.mkdtemp(prefix="soak-", dir=arguments.dir))
    binaries = find_postgres(arguments.pg_major)
    seed = secrets.randbelow(1 << 32) if arguments.seed is None else arguments.seed
    print(f"seed {seed}, {arguments.minutes:g} minutes, Postgres {binaries.version}", flush=True)
    if arguments.qsync:
        return _main_of_qsync(root, binaries, seed, arguments, stopping)
    run = _run_members if arguments.members else _run_faults
    soak, problem = run(root, binaries, seed, arguments, stopping)
    _print_outcome(soak)
    if problem or not soak.books.reckoned.ok:
        print(f"FAILED: {problem or 'the ledger does not agree with the tables'}")
        print(f"all logs and data are in {root}; the same faults again: --seed {seed}")
        return 1
    shutil.rmtree(root, ignore_errors=True)
    print("PASSED: nothing acknowledged was lost")
    return 0


def _run_faults(
    root: Path,
    binaries: PostgresBinaries,
    seed: int,
    arguments: argparse.Namespace,
    stopping: threading.Event,
) -> tuple[Soak, str]:
    """Run it; returns the problem, or ""."""
    with World(root, binaries, arguments.template) as world:
        if world.disks_reason:
            print(f"no disk will be full: {world.disks_reason}")
        with Books(world.primary.postgres.dsn(), seed) as books:
            watch = SilenceWatch(lambda: books.acknowledged)
            watch.start()
            soak = Soak(world, books, Chronicle(), watch, random.Random(seed), stopping)
            return soak, _problem_of(soak, arguments.minutes)


def _run_members(
    root: Path,
    binaries: PostgresBinaries,
    seed: int,
    arguments: argparse.Namespace,
    stopping: threading.Event,
) -> tuple[MembersSoak, str]:
    """The same for changes of the members."""
    rng = random.Random(seed)
    with (
        MembersWorld(root, binaries, rng, arguments.template) as world,
        Books(world.primary.postgres.dsn(), seed, MEMBERS_CLIENTS) as books,
    ):
        watch = SilenceWatch(lambda: books.acknowledged)
        watch.start()
        soak = MembersSoak(world, books, Chronicle(), watch, rng, stopping)
        return soak, _problem_of(soak, arguments.minutes)


def _main_of_qsync(
    root: Path,
    binaries: PostgresBinaries,
    seed: int,
    arguments: argparse.Namespace,
    stopping: threading.Event,
) -> int:
    """Run transactions of qsync; returns the verdict."""
    raised = ""
    plan = _plan(arguments)
    with QsyncWorld(
        root, binaries, arguments.template, has_names=arguments.standby_names, plant=plan.plant
    ) as world:
        soak = QsyncSoak(world, root, seed, random.Random(seed), stopping, plan)
        try:
            soak.run()
        except (PgServerError, psycopg.Error, OSError) as error:
            raised = f"{type(error).__name__}: {error}"
        finally:
            soak.close()
    print_qsync_outcome(soak)
    problem = problem_of(soak, raised)
    if problem:
        print(f"FAILED: {problem}")
        print(f"all logs and data are in {root}; the same faults again: --seed {seed}")
        return 1
    shutil.rmtree(root, ignore_errors=True)
    print("PASSED: what was seen stayed, what was gone stayed away, and all had one end")
    return 0


def _plan(arguments: argparse.Namespace) -> Plan:
    victims: Sequence[Victim] = VICTIMS
    if arguments.only:
        victims = [victim for victim in VICTIMS if arguments.only in victim]
    if arguments.only_failovers:
        victims = [Loss[arguments.only_failovers.upper()]]
    minima = Minima(arguments.faults, arguments.failovers)
    return Plan(arguments.minutes, minima, victims, arguments.plant)


def _problem_of(soak: Soak | MembersSoak, minutes: float) -> str:
    problem = ""
    try:
        soak.run(minutes)
    except (PgServerError, psycopg.Error, OSError) as error:
        problem = f"{type(error).__name__}: {error}"
    soak.watch.stop()
    return problem


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--pg-major", type=int)
    parser.add_argument(
        "--template", type=Path, help="a data folder to copy; default: initdb makes one"
    )
    parser.add_argument("--members", action="store_true", help="change the members all the time")
    parser.add_argument("--qsync", action="store_true", help="transactions that commit on quorum")
    _add_options_of_qsync(parser.add_argument_group("with --qsync"))
    parser.add_argument("--dir", type=Path, help="where to put the data; default: a temporary one")
    return parser


def _add_options_of_qsync(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--faults",
        type=int,
        default=0,
        help="go on until so many have struck at their steps, and each victim at each step before, "
        "during and after its request; FAILED if --minutes are over before",
    )
    group.add_argument("--failovers", type=int, default=0, help="and until so many were survived")
    group.add_argument(
        "--standby-names",
        action="store_true",
        help="the primary has synchronous_standby_names; default: it has none",
    )
    group.add_argument(
        "--only", choices=("client", "coordinator", "primary", "a safekeeper", "two"), help="victim"
    )
    group.add_argument(
        "--only-failovers", choices=[loss.name.lower() for loss in Loss], help="no other faults"
    )
    plants = "; ".join(f"{name}: {what}" for name, what in PLANTS.items())
    group.add_argument("--plant", default="", choices=PLANTS, help=f"a bug to be found. {plants}")


def _stop(stopping: threading.Event) -> None:
    """The first time in good order, then at once."""
    if stopping.is_set():
        raise KeyboardInterrupt
    stopping.set()


def _print_outcome(soak: Soak | MembersSoak) -> None:
    books, chronicle, longest = soak.books, soak.chronicle, soak.watch.longest
    reckoned = books.reckoned
    print(f"\nafter {(time.monotonic() - chronicle.begun) / 60:.1f} minutes")
    for what, count in sorted(chronicle.survived.items()):
        print(f"{count:9}  {what}")
    if isinstance(soak, MembersSoak):
        _print_changes(soak)
    else:
        print(f"{sum(chronicle.survived.values()):9}  faults survived")
        print(f"{soak.inspections:9}  times sk status was asked, and came to say what was so")
    print(f"{soak.failovers:9}  failovers")
    print(f"{reckoned.reckonings:9}  reckonings")
    print(f"{books.acknowledged:9}  rows acknowledged")
    print(f"{reckoned.lost:9}  rows lost")
    print(f"{reckoned.twice:9}  rows twice")
    print(f"{reckoned.wrong:9}  rows that nobody inserted so")
    print(f"{books.unknown:9}  rows of unknown outcome: their connection broke in COMMIT")
    if isinstance(soak, MembersSoak):
        wait = soak.longest_wait
        print(f"the longest wait of a commit for a change itself: {wait.seconds:.2f} s, during")
        print(f"           {wait.during}")
    else:
        print(f"{soak.world.disk_bytes_max >> 20:9}  MiB of disk at most")
    print(f"the longest time without a commit: {longest.seconds:.1f} s, during")
    for what in chronicle.at(longest):
        print(f"           {what}")


def _print_changes(soak: MembersSoak) -> None:
    print(f"{soak.changes:9}  changes of the members")
    print(f"{soak.calm_changes:9}  of them in which nobody was struck")
    print(f"{soak.struck_under_way:9}  strikes while a change was made")
    print(f"{soak.kills:9}  kills")
    print(f"{soak.world.outvoted:9}  proposers that were outvoted by sk member as they started")


if __name__ == "__main__":
    sys.exit(main())
