"""`OldPrimary`: the data directory of a deposed primary, which becomes a standby by pg_rewind.

The rules are in rewind.py. This file runs the programs, as the owner of the files because Postgres
refuses to run as root, and changes the files. Law: once changed, the directory is never used as a
primary again.
"""

from __future__ import annotations

import os
import pwd
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from psycopg.conninfo import conninfo_to_dict, make_conninfo

from quorum_wal.consensus.ids import TimelineId
from quorum_wal.pg_server.account import Account
from quorum_wal.pg_server.binaries import PostgresBinaries, find_postgres
from quorum_wal.pg_server.program import run_program
from quorum_wal.pgwal.history import TimelineHistory
from quorum_wal.pgwal.lsn import format_lsn
from quorum_wal.pgwal.page import WAL_PAGE_SIZE
from quorum_wal.qsync.gid import Gid
from quorum_wal.storage import durable
from quorum_wal.walproposer.errors import Refusal
from quorum_wal.walproposer.failover.promotion import Problem
from quorum_wal.walproposer.failover.rewind import (
    ControlData,
    failure_reason,
    lost_tails,
    recovery_start_lsn,
    rewind_problem,
    same_timeline_problem,
    standby_settings,
    streamed_from_lsn,
)
from quorum_wal.walproposer.failover.undone_prepares import undone_prepares
from quorum_wal.walproposer.primary.log_marker import PREFIX, marker_name
from quorum_wal.walproposer.primary.logical_slots import SLOT_PREFIX as LOGICAL_PREFIX

VERSION_FILE = "PG_VERSION"  # has the owner and mode of all files of the server
SIGNAL_FILE = "standby.signal"
BACKUP_LABEL = "backup_label"
AUTO_CONF = "postgresql.auto.conf"
REWIND_SECONDS_MAX = 24 * 3600.0
PG_CTL_RUNNING = 0
#: The text of pg_rewind.
SAME_TIMELINE = "source and target cluster are on the same timeline"


@dataclass(frozen=True, slots=True)
class OldPrimary:
    """A stopped server. `account` is the owner of its files; None: our own user."""

    path: Path
    binaries: PostgresBinaries
    account: Account | None
    control: ControlData

    @classmethod
    def at(cls, path: Path) -> OldPrimary:
        """Raises Refusal if this is not a data directory, or its server runs; Unavailable."""
        try:
            major = int((path / VERSION_FILE).read_text())
        except (OSError, ValueError) as error:
            raise Refusal(f"{path} is not a data directory of Postgres") from error
        binaries, account = find_postgres(major), _owner(path)
        status = run_program(
            [binaries.program("pg_ctl"), "status", "-D", path], account=account, check=False
        )
        if status.returncode == PG_CTL_RUNNING:
            raise Refusal(
                f"the server in {path} is running",
                hint=f"Stop it: pg_ctl stop -D {path} -m fast (its waiting commits were not "
                "acknowledged).",
            )
        return cls(path, binaries, account, _control_data(path, binaries, account))

    def check_rewindable(self, system_id: int, way_out: str) -> None:
        """Raises Refusal if pg_rewind cannot be used; `way_out` is the alternative, for the
        hint."""
        problem = rewind_problem(self.control, system_id, way_out)
        if problem is not None:
            _refuse(problem)

    def is_standby_of(self, history: TimelineHistory) -> bool:
        """Whether it has already recovered to this timeline as a standby."""
        return (self.path / SIGNAL_FILE).exists() and self.control.recovery_tli == history.tli

    def undone_prepares(self, history: TimelineHistory) -> tuple[Gid, ...]:
        """The gids of qsync that were prepared only here, after the position where this server left
        `history`. Call it before `rewind`. Empty if that WAL is missing; pg_rewind then fails."""
        tli = self.control.checkpoint_tli
        switch_lsn = history.switch_lsn_of(tli)
        if switch_lsn is None:
            return ()
        done = run_program(
            [
                *(self.binaries.program("pg_waldump"), "--rmgr=Transaction"),
                *(f"--path={self.path / 'pg_wal'}", f"--timeline={tli}"),
                f"--start={format_lsn(switch_lsn)}",
            ],
            account=self.account,
            env={"LC_ALL": "C"},
            timeout=REWIND_SECONDS_MAX,
            check=False,  # it fails at the end of the log
        )
        return undone_prepares(done.stdout)

    def rewind(self, dsn: str, config_file: Path | None, tli: int, way_out: str) -> bool:
        """Returns False if there was nothing to undo. pg_rewind also makes the directory a standby,
        so that it never is a primary again. Raises Refusal."""
        if self.control.checkpoint_tli == tli:
            _refuse(same_timeline_problem(tli, way_out))
        parts = conninfo_to_dict(dsn)
        password = parts.pop("password", None)  # other users can read a command line
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
            raise Refusal(f"pg_rewind failed: {failure_reason(output)}", hint=way_out)
        if SAME_TIMELINE in output:  # pg_rewind runs recovery after a crash, which can show this
            durable.remove_file(self.path / SIGNAL_FILE)
            _refuse(same_timeline_problem(tli, way_out))
        return "no rewind required" not in output

    def cut_lost_tails(self, history: TimelineHistory, wal_seg_size: int) -> None:
        """Remove WAL that the other servers do not have from pg_wal. Recovery would replay it."""
        folder = self.path / "pg_wal"
        for name, kept_bytes in lost_tails(os.listdir(folder), history, wal_seg_size).items():
            if not kept_bytes:
                durable.remove_file(folder / name)
                continue
            with open(folder / name, "r+b") as segment:
                durable.zero_range(segment.fileno(), kept_bytes, wal_seg_size, folder / name)
            durable.sync_file(folder / name)
        durable.sync_directory(folder)

    def needed_lsn(self, history: TimelineHistory, wal_seg_size: int) -> int:
        """The position from which its recovery needs WAL that is not in its own pg_wal."""
        label = self.path / BACKUP_LABEL
        begin_lsn = recovery_start_lsn(label.read_text()) if label.exists() else None
        begin_lsn = begin_lsn or self.control.redo_lsn
        files = [path for path in (self.path / "pg_wal").iterdir() if path.is_file()]
        first_pages = {path.name: _first_page(path) for path in files}
        return streamed_from_lsn(first_pages, begin_lsn, history, wal_seg_size)

    def has_restore_command(self, config_file: Path | None) -> bool:
        """Whether it may also get WAL from an archive."""
        done = run_program(
            [
                self.binaries.program("postgres"),
                *("-D", self.path, "-C", "restore_command"),
                *(["-c", f"config_file={config_file}"] if config_file else []),
            ],
            account=self.account,
            check=False,
        )
        return bool(done.stdout.strip())

    def become_standby(self, conninfo: str, slot: str, timeline: TimelineId) -> None:
        """Make it a standby. Also drop its old slots, which a standby would never advance, and the
        markers of other logs than the one that it now follows."""
        auto_conf = self.path / AUTO_CONF
        text = auto_conf.read_text() if auto_conf.exists() else ""
        for name, content in ((AUTO_CONF, standby_settings(text, conninfo)), (SIGNAL_FILE, "")):
            durable.replace_file(self.path / name, content.encode(), like=self.path / VERSION_FILE)
        slots = self.path / "pg_replslot"
        others = [each for each in slots.glob(f"{PREFIX}*") if each.name != marker_name(timeline)]
        for unwanted in (slots / slot, *slots.glob(f"{LOGICAL_PREFIX}*"), *others):
            shutil.rmtree(unwanted, ignore_errors=True)


def _control_data(path: Path, binaries: PostgresBinaries, account: Account | None) -> ControlData:
    program = [binaries.program("pg_controldata"), path]
    done = run_program(program, account=account, env={"LC_ALL": "C"})
    try:
        return ControlData.parse(done.stdout)
    except ValueError as error:
        raise Refusal(str(error)) from error


def _first_page(path: Path) -> bytes:
    with open(path, "rb") as file:
        return file.read(WAL_PAGE_SIZE)


def _owner(path: Path) -> Account | None:
    """The account for its programs; None: our own user. Raises Refusal."""
    owner = path.stat()
    if owner.st_uid == os.geteuid():
        return None
    if os.geteuid() != 0:
        raise Refusal(
            f"{path} belongs to another user",
            hint="Run sk rejoin as the owner of the data directory.",
        )
    return Account(pwd.getpwuid(owner.st_uid).pw_name, owner.st_uid, owner.st_gid)


def _refuse(problem: Problem) -> NoReturn:
    raise Refusal(problem.text, hint=problem.hint)
