"""`sk rejoin`: a deposed primary becomes a standby that follows the safekeepers."""

from __future__ import annotations

import os
import pwd
import shutil
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import click
import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from cli.output import CommandError
from cli.parameters import Dsn, safekeepers_option, slot_option, timeline_option, with_conninfo
from consensus.ids import TimelineId
from consensus.messages import ServerFacts
from pg_server.account import Account
from pg_server.binaries import PostgresBinaries, find_postgres
from pg_server.program import run_program
from pgwal.history import TimelineHistory
from storage import durable
from walproposer.errors import Refusal
from walproposer.log_marker import PREFIX, marker_name
from walproposer.promotion import Problem
from walproposer.rewind import (
    ControlData,
    base_backup_hint,
    failure_reason,
    lost_tails,
    rewind_problem,
    same_timeline_problem,
    standby_settings,
)
from walproposer.safekeeper_client import SafekeeperAddress
from walproposer.standby import StandbyServer, safekeepers_conninfo
from walproposer.timeline_creation import require_timeline
from walproposer.upstream import PrimaryAddress, read_server_facts

VERSION_FILE = "PG_VERSION"  # of the owner and the mode that all files of the server have
SIGNAL_FILE = "standby.signal"
AUTO_CONF = "postgresql.auto.conf"
REWIND_SECONDS_MAX = 24 * 3600.0
PG_CTL_RUNNING = 0
#: In pg_rewind's words.
SAME_TIMELINE = "source and target cluster are on the same timeline"


@click.command()
@click.option(
    "--old-primary",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    metavar="DATA_DIR",
    required=True,
    help="Data directory of the deposed primary, which must be stopped.",
)
@click.option(
    "--new-primary", type=Dsn(), required=True, help="DSN of the new primary (a superuser)."
)
@safekeepers_option
@click.option(
    "--replica-conninfo",
    type=Dsn(),
    help="libpq settings with which the standby connects to safekeepers (user, sslmode, passfile, "
    "...).  [default: --safekeeper-conninfo]",
)
@timeline_option
@slot_option
@click.option(
    "--config-file",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="postgresql.conf, when it is not in the data directory (Postgres 15 or newer).",
)
def rejoin(
    old_primary: Path,
    new_primary: str,
    safekeepers: tuple[SafekeeperAddress, ...],
    safekeeper_conninfo: str,
    replica_conninfo: str | None,
    timeline: TimelineId | None,
    slot: str,
    config_file: Path | None,
) -> None:
    """Make a standby of a deposed primary, by pg_rewind.

    What it wrote and no quorum has is undone; nobody was told that it is committed. Afterwards it
    follows the safekeepers, and starts as any standby does. Where pg_rewind cannot be used, says
    why a new base backup is needed. Run it as the owner of the data directory.
    """
    address = PrimaryAddress(new_primary)
    server, history = _ask_new_primary(address)
    addresses = with_conninfo(safekeepers, safekeeper_conninfo)
    _, found = require_timeline(addresses, server.system_id, timeline)
    settings = safekeeper_conninfo if replica_conninfo is None else replica_conninfo
    conninfo = safekeepers_conninfo(addresses, found.timeline, settings)
    target = Target.at(old_primary)
    way_out = base_backup_hint(str(old_primary), conninfo)
    control = target.control_data()
    problem = rewind_problem(control, server.system_id, way_out)
    if problem is not None:
        refuse(problem)
    if (old_primary / SIGNAL_FILE).exists() and control.recovery_tli == history.tli:
        click.echo("it is a standby of this timeline already")
    elif control.checkpoint_tli == history.tli:
        refuse(same_timeline_problem(history.tli, way_out))
    else:
        target.rewind(new_primary, config_file, history.tli, way_out)
    target.cut_lost_tails(history, server.wal_seg_size)
    target.become_standby(conninfo, slot, found.timeline)
    click.echo(f"{old_primary} is a standby that follows {', '.join(map(str, addresses))}")
    click.echo("start it; its configuration is now that of the new primary", err=True)


def _ask_new_primary(address: PrimaryAddress) -> tuple[ServerFacts, TimelineHistory]:
    """What it is, and its timeline's history; pg_rewind before 16 knows that by a checkpoint."""
    with closing(address.connect()) as connection:
        server = read_server_facts(connection)
        try:
            connection.execute("CHECKPOINT")
        except psycopg.Error as error:
            raise Refusal(f"the new primary refused a checkpoint: {error}") from error
    history, _ = StandbyServer(address).read_history()
    return server, history


@dataclass(frozen=True, slots=True)
class Target:
    """The stopped server. Its programs run as its owner: Postgres refuses to run as root."""

    path: Path
    binaries: PostgresBinaries
    account: Account | None

    @classmethod
    def at(cls, path: Path) -> Target:
        """Raises CommandError when this is no data directory, or its server runs."""
        try:
            major = int((path / VERSION_FILE).read_text())
        except (OSError, ValueError) as error:
            raise CommandError(f"{path} is not a data directory of Postgres") from error
        target = cls(path, find_postgres(major), _owner(path))
        status = run_program(
            [target.binaries.program("pg_ctl"), "status", "-D", path],
            account=target.account,
            check=False,
        )
        if status.returncode == PG_CTL_RUNNING:
            raise CommandError(
                f"the server in {path} is running",
                f"Stop it: pg_ctl stop -D {path} -m fast (its waiting commits were not "
                "acknowledged).",
            )
        return target

    def control_data(self) -> ControlData:
        program = [self.binaries.program("pg_controldata"), self.path]
        done = run_program(program, account=self.account, env={"LC_ALL": "C"})
        try:
            return ControlData.parse(done.stdout)
        except ValueError as error:
            raise CommandError(str(error)) from error

    def rewind(self, dsn: str, config_file: Path | None, tli: int, way_out: str) -> None:
        """pg_rewind makes it a standby in the same run, so that it never is a primary again."""
        parts = conninfo_to_dict(dsn)
        password = parts.pop("password", None)  # a command line can be read by everybody
        done = run_program(
            [
                self.binaries.program("pg_rewind"),
                f"--target-pgdata={self.path}",
                f"--source-server={make_conninfo('', **parts)}",
                "--write-recovery-conf",
                *([f"--config-file={config_file}"] if config_file else []),
            ],
            account=self.account,
            env={"LC_ALL": "C", **({"PGPASSWORD": str(password)} if password else {})},
            timeout=REWIND_SECONDS_MAX,
            check=False,
        )
        output = done.stdout + done.stderr
        if done.returncode != 0:
            raise CommandError(f"pg_rewind failed: {failure_reason(output)}", way_out)
        if SAME_TIMELINE in output:  # as its recovery has shown, which pg_rewind runs after a crash
            durable.remove_file(self.path / SIGNAL_FILE)
            refuse(same_timeline_problem(tli, way_out))
        required = "no rewind required" not in output
        click.echo("pg_rewind has undone what it wrote alone" if required else "nothing to undo")

    def cut_lost_tails(self, history: TimelineHistory, wal_seg_size: int) -> None:
        """Recovery must not find in pg_wal what the others do not have: it would replay it."""
        folder = self.path / "pg_wal"
        for name, kept_bytes in lost_tails(os.listdir(folder), history, wal_seg_size).items():
            if not kept_bytes:
                durable.remove_file(folder / name)
                continue
            with open(folder / name, "r+b") as segment:
                durable.zero_range(segment.fileno(), kept_bytes, wal_seg_size, folder / name)
            durable.sync_file(folder / name)
        durable.sync_directory(folder)

    def become_standby(self, conninfo: str, slot: str, timeline: TimelineId) -> None:
        """Its old slot goes too: on a standby nobody would ever move it on. So do the names of
        other logs than the one that it follows now."""
        auto_conf = self.path / AUTO_CONF
        text = auto_conf.read_text() if auto_conf.exists() else ""
        for name, content in ((AUTO_CONF, standby_settings(text, conninfo)), (SIGNAL_FILE, "")):
            durable.replace_file(self.path / name, content.encode(), like=self.path / VERSION_FILE)
        slots = self.path / "pg_replslot"
        others = [each for each in slots.glob(f"{PREFIX}*") if each.name != marker_name(timeline)]
        for unwanted in (slots / slot, *others):
            shutil.rmtree(unwanted, ignore_errors=True)


def refuse(problem: Problem) -> NoReturn:
    raise Refusal(problem.text, hint=problem.hint)


def _owner(path: Path) -> Account | None:
    """Whom its programs run as; None: as ourselves. Raises CommandError."""
    owner = path.stat()
    if owner.st_uid == os.geteuid():
        return None
    if os.geteuid() != 0:
        raise CommandError(
            f"{path} belongs to another user", "Run sk rejoin as the owner of the data directory."
        )
    return Account(pwd.getpwuid(owner.st_uid).pw_name, owner.st_uid, owner.st_gid)
