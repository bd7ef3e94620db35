"""The request of `sk restore`: parses its options, checks them against the archive, and writes."""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import click
from psycopg.conninfo import conninfo_to_dict

from quorum_wal.backup.backup_catalog import BackupCatalog
from quorum_wal.backup.recovery_settings import SignalFile, restore_command
from quorum_wal.backup.restore import restore as write_data_directory
from quorum_wal.backup.restore_plan import LiveLog, RestorePlan, RestorePlanner
from quorum_wal.backup.safekeeper_wal import Safekeeper, SafekeeperWalSource
from quorum_wal.backup.target import AtLsn, AtTime, AtXid, Latest, Target, recovery_target
from quorum_wal.backup.unpack import Unpacking, require_empty
from quorum_wal.backup.wal_prefetch import FOLDER as PREFETCH_FOLDER
from quorum_wal.cli.backup import open_catalog
from quorum_wal.cli.output import CommandError, ExitCode
from quorum_wal.cli.parameters import with_conninfo
from quorum_wal.cli.progress import ByteProgress
from quorum_wal.cli.restorable_cuts import RestorableCuts
from quorum_wal.consensus.ids import TimelineId
from quorum_wal.consensus.quorum import has_quorum
from quorum_wal.pg_server.account import account_of
from quorum_wal.pg_server.binaries import PostgresBinaries, find_postgres
from quorum_wal.pg_server.restored_server import RestoredServer
from quorum_wal.pgwal.errors import WalError
from quorum_wal.pgwal.history import TimelineHistory
from quorum_wal.pgwal.lsn import Lsn
from quorum_wal.telemetry.size import bytes_text
from quorum_wal.walproposer.failover.standby import safekeepers_conninfo
from quorum_wal.walproposer.safekeeper_client import SafekeeperAddress
from quorum_wal.walproposer.timelines.survey import (
    Member,
    addresses_of,
    answering,
    check_members,
    follow,
    greatest_membership,
    known_timelines,
    statuses_of,
    survey,
    wanted_of,
)

#: Words in the names of store options whose values are not written into a file.
SECRETS = ("secret", "password", "token", "key", "sas")


@dataclass(slots=True)
class RestoreRequest:
    """The parsed options."""

    catalog: BackupCatalog
    archive_words: tuple[str, ...]
    #: As given; `plan` replaces them with the addresses of the present members.
    addresses: tuple[SafekeeperAddress, ...]
    safekeeper_conninfo: str
    target: Target
    options: dict[str, Any]
    _cuts: RestorableCuts

    @classmethod
    def of(cls, options: dict[str, Any]) -> RestoreRequest:
        """Raises click.UsageError, ObjectStoreError."""
        _check_usage(options)
        target = _target(options)
        url, store_options = options["archive"], options["archive_option"]
        catalog = open_catalog(url, store_options, options["timeline"])
        conninfo = options["safekeeper_conninfo"]
        return cls(
            catalog=catalog,
            archive_words=_archive_words(url, store_options, catalog.archive.timeline),
            addresses=with_conninfo(options["safekeepers"], conninfo),
            safekeeper_conninfo=conninfo,
            target=target,
            options=options,
            _cuts=RestorableCuts(catalog.archive),
        )

    def close(self) -> None:
        """Removes temporary files."""
        self._cuts.close()

    @property
    def data_dir(self) -> Path:
        return Path(self.options["data_dir"]).absolute()

    @property
    def timeline(self) -> TimelineId:
        return self.catalog.archive.timeline

    @property
    def _prefetched(self) -> str:
        """The folder of prefetched WAL, relative to the data directory."""
        return f"pg_wal/{PREFETCH_FOLDER}/{self.timeline}"

    # ---- what exists

    def plan(self) -> RestorePlan:
        """Checks the request, prints the plan and returns it. Raises CommandError, BackupError,
        ObjectStoreError, WalProposerError, PageserverError, Unavailable."""
        live = self._live_log()
        wanted = self.options["backup_id"]
        planner = RestorePlanner(self.catalog.archive, live)
        if wanted:
            plan = planner.plan(self.catalog.backups(), self.target, self.catalog.get(wanted))
        else:
            plan = self._cuts.plan(planner, self.catalog.backups(), self.target)
        self.binaries(plan)
        for folder in self._unpacking().folders(plan.backup):
            require_empty(folder)
        click.echo(
            f"backup {plan.backup.backup_id}, {bytes_text(plan.backup.content_bytes)}, "
            f"target {plan.target}"
        )
        click.echo(f"the log ends at {plan.end}")
        return plan

    def _live_log(self) -> LiveLog | None:
        if not self.addresses:
            return None
        members = survey(self.addresses)
        check_members(members)
        members = follow(members, wanted_of(None, self.timeline))
        statuses = statuses_of(self.timeline, members)
        if not statuses:
            raise CommandError(
                f"no safekeeper that answers has timeline {self.timeline}"
                + "".join(f"; {member.error}" for member in members if member.error),
                "Give the members that run. To restore from the archive alone, give no "
                "--safekeepers, and unset SK_SAFEKEEPERS.",
                ExitCode.UNREACHABLE,
            )
        self.addresses = _tell_quorum(members, self.timeline)
        newest = max(statuses, key=lambda status: Lsn.parse(status["commit_lsn"]))
        sources = [
            Safekeeper(str(address), partial(address.connect, self.timeline))
            for address in self.addresses
        ]
        return LiveLog(
            source=SafekeeperWalSource(sources),
            begin_lsn=min(int(Lsn.parse(status["local_start_lsn"])) for status in statuses),
            commit_lsn=int(Lsn.parse(newest["commit_lsn"])),
            history=TimelineHistory.parse(newest["tli"], newest["tli_history"]),
        )

    def binaries(self, plan: RestorePlan) -> PostgresBinaries | None:
        """The Postgres that runs the server. Raises CommandError, Unavailable."""
        chosen, major = self.options["pg_bin"], plan.backup.pg_major
        if chosen is not None:
            found = PostgresBinaries.at(chosen)
            if found.major != major:
                raise CommandError(
                    f"the backup is of Postgres {major}, {chosen} has {found.version}",
                    f"Give the programs of Postgres {major} with --pg-bin.",
                )
            return found
        needs_them = self.options["start"] or self.options["promote"]
        return find_postgres(major) if needs_them else None

    # ---- what is written

    def recovery_settings(self, plan: RestorePlan) -> dict[str, str]:
        """Settings of a server that recovers to a copy. No quorum confirms its commits."""
        live = ("--safekeepers", ",".join(map(str, self.addresses)))
        conninfo = ("--safekeeper-conninfo", self.safekeeper_conninfo)
        words = [
            *self.archive_words,
            *(live if self.addresses else ()),
            *(conninfo if self.safekeeper_conninfo else ()),
        ]
        target = recovery_target(plan.target)
        action = {"recovery_target_action": self.options["target_action"]} if target else {}
        return {
            "restore_command": restore_command(self._prefetched, words),
            "recovery_target_timeline": "latest",
            **target,
            **action,
            "synchronous_standby_names": "",
            "hot_standby": "on",
        }

    def standby_settings(self, replica_conninfo: str) -> dict[str, str]:
        """Settings of a server to promote. It streams unarchived WAL from the safekeepers."""
        return {
            "restore_command": restore_command(self._prefetched, [*self.archive_words, "--whole"]),
            "recovery_target_timeline": "latest",
            "primary_conninfo": safekeepers_conninfo(
                self.addresses, self.timeline, replica_conninfo
            ),
            "hot_standby": "on",
        }

    def write(self, plan: RestorePlan, signal: SignalFile, settings: dict[str, str]) -> None:
        with ByteProgress("restore", plan.backup.content_bytes) as bar:
            unpacking = self._unpacking(bar)
            unpack = self._cuts.writer(plan.backup)
            write_data_directory(self.catalog, plan, unpacking, signal, settings, unpack)

    def _unpacking(self, bar: ByteProgress | None = None) -> Unpacking:
        moved = (pair.partition("=") for pair in self.options["tablespace"])
        return Unpacking(
            data_dir=self.data_dir,
            tablespaces={old: Path(new).absolute() for old, _, new in moved},
            owner=account_of(self.data_dir),
            is_synced=not self.options["no_sync"],
            progress=bar.more if bar is not None else lambda length: None,
        )

    def restored_server(self, plan: RestorePlan) -> RestoredServer:
        binaries = self.binaries(plan)
        assert binaries is not None
        account = account_of(self.data_dir)
        return RestoredServer(self.data_dir, binaries, account, self.options["server_options"])


def _tell_quorum(members: list[Member], timeline: TimelineId) -> tuple[SafekeeperAddress, ...]:
    """The addresses of the members. Prints a warning if fewer than a quorum of them answer."""
    membership = greatest_membership(known_timelines(members)[timeline])
    having = answering([m for m in members if timeline in m.timelines], membership)
    if not has_quorum(membership, having):
        click.echo(
            f"WARNING: only {len(having)} of {len(membership.all_members)} members answer: the "
            "last acknowledged commits may be missing",
            err=True,
        )
    return addresses_of(membership, members)


# ---- the command line


def _check_usage(options: dict[str, Any]) -> None:
    """Raises click.UsageError."""
    given = [f"--{n.replace('_', '-')}" for n in _TARGETS if options[n] is not None]
    if len(given) > 1:
        raise click.UsageError(f"{given[0]} and {given[1]} exclude each other")
    if options["start"] and options["promote"]:
        raise click.UsageError("--start excludes --promote, which starts it too")
    if (options["start"] or options["promote"]) and options["server"] is None:
        raise click.UsageError("--start and --promote need --server")
    if options["promote"] and given not in ([], ["--target"]):
        raise click.UsageError(
            f"{given[0]} makes a copy: to promote it would lose later acknowledged commits"
        )
    if options["promote"] and not options["safekeepers"]:
        raise click.UsageError("--promote needs --safekeepers: all members; a quorum must run")
    if options["start"] and options["target_action"] == "shutdown":
        raise click.UsageError("--start excludes --target-action shutdown")
    if conninfo_to_dict(options["safekeeper_conninfo"]).get("password"):
        raise click.UsageError("a password would be written to a file: keep it in a passfile")
    if any(not all(pair.partition("=")) for pair in options["tablespace"]):
        raise click.UsageError("--tablespace needs OLD=NEW")


_TARGETS = ("target", "target_lsn", "target_time", "target_xid")


def _target(options: dict[str, Any]) -> Target:
    """Raises click.UsageError."""
    if options["target_lsn"] is not None:
        try:
            return AtLsn(int(Lsn.parse(options["target_lsn"])))
        except WalError as error:
            raise click.UsageError(f"--target-lsn: {error}") from error
    if options["target_time"] is not None:
        return AtTime(_time(options["target_time"]))
    if options["target_xid"] is not None:
        return AtXid(options["target_xid"])
    return Latest()


def _time(text: str) -> datetime:
    """Raises click.UsageError."""
    try:
        time = datetime.fromisoformat(text)
    except ValueError as error:
        raise click.UsageError(f"--target-time: {error}") from error
    if time.tzinfo is None:
        raise click.UsageError(
            "--target-time needs its offset from UTC, as in 2026-11-21T10:15:00+00:00"
        )
    return time


def _archive_words(
    url: str, store_options: tuple[str, ...], timeline: TimelineId
) -> tuple[str, ...]:
    """The first words of the restore_command. Secrets are not written to it; they must be in the
    environment of the server."""
    options = []
    for option in store_options:
        if any(word in option.partition("=")[0].lower() for word in SECRETS):
            click.echo(
                f"{option.partition('=')[0]} is not written: the server needs it in its "
                "environment (SK_ARCHIVE_OPTION)",
                err=True,
            )
        else:
            options += ["--archive-option", option]
    located = url if "://" in url else str(Path(url).absolute())
    words = ("archive", "fetch", "--archive", located, *options, "--timeline", str(timeline))
    return (*_sk(), *words)


def _sk() -> tuple[str, ...]:
    """The `sk` of this installation, by its absolute path."""
    beside = Path(sys.executable).with_name("sk")
    found = str(beside) if os.access(beside, os.X_OK) else shutil.which("sk")
    return (found,) if found else (sys.executable, "-m", "quorum_wal.cli.main")
