"""A primary with an archive, cuts of it, and the two data directories that must agree at each cut:
the virtual full of the engine, and a standby from the same base backup, stopped at the cut."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import psycopg

from quorum_wal.backup.backup_catalog import BackupCatalog
from quorum_wal.backup.backup_record import Backup
from quorum_wal.backup.base_backup import BackupOptions
from quorum_wal.backup.create import BackedUpServer, create_backup
from quorum_wal.backup.unpack import Unpacking
from quorum_wal.consensus.ids import TimelineId
from quorum_wal.consensus.messages import ServerFacts
from quorum_wal.objectstore.archive import ArchivedTimeline, TimelineArchive
from quorum_wal.objectstore.local import LocalStore
from quorum_wal.pageserver.cuts.cut_files import CutFiles
from quorum_wal.pageserver.cuts.virtual_full import write_virtual_full
from quorum_wal.pageserver.epochs.epoch import EpochInput, EpochOutput, EpochReplay, survey_epoch
from quorum_wal.pageserver.epochs.in_place_tablespaces import link_wal
from quorum_wal.pageserver.epochs.redo import RedoServer
from quorum_wal.pageserver.epochs.wal_folder import WalFolder
from quorum_wal.pageserver.layers.backup_base import BackupBase, read_backup
from quorum_wal.pageserver.layers.control_file import CONTROL_FILE
from quorum_wal.pageserver.layers.fork import ForkKind, parse_file
from quorum_wal.pageserver.layers.frame import EMPTIED, LEFT_OUT
from quorum_wal.pageserver.layers.layer_file import LayerPart
from quorum_wal.pageserver.layers.page_stack import Layer, LayerStack, PageStack
from quorum_wal.pageserver.layers.touches import Checkpoint
from quorum_wal.pg_fixtures.postgres import Postgres
from quorum_wal.pg_fixtures.standby import wait_replayed
from quorum_wal.pg_fixtures.waiting import wait_until
from quorum_wal.pg_server.account import server_account
from quorum_wal.pgwal.lsn import Lsn

TIMEOUT = 60.0
ARCHIVE_SETTINGS = {
    "archive_mode": True,
    "autovacuum": False,
    "max_prepared_transactions": 10,
    "checkpoint_timeout": "1h",
    "max_wal_size": "8GB",
    "wal_level": "replica",
}


class PageWorld:
    """All files are below `root`."""

    def __init__(self, primary: Postgres, root: Path) -> None:
        self.primary = primary
        self.root = root
        self.server = RedoServer(primary.binaries, server_account())
        self.wal_dir = root / "wal"
        self.wal_dir.mkdir()
        self.server.give(self.wal_dir)
        wal = self.wal_dir
        primary.configure(
            **ARCHIVE_SETTINGS,
            archive_command=f"cp %p {wal}/.%f && mv {wal}/.%f {wal}/%f",
        )
        self._epochs = self._promotions = 0

    def start(self) -> None:
        self.primary.restart()
        control = self.primary.control_data()
        self.facts = ServerFacts(
            int(control["Database system identifier"]),
            int(self.primary.execute("SHOW server_version_num")[0][0]),
            int(control["Bytes per WAL segment"]),
        )
        self.wal = WalFolder(self.wal_dir, self.facts)

    def take_base(self) -> None:
        """Takes a base backup into an archive, and builds the stack on it."""
        facts = ArchivedTimeline(
            self.facts.system_id, self.facts.pg_version, self.facts.wal_seg_size, 1, 0
        )
        store = LocalStore(str(self.root / "archive"))
        archive = TimelineArchive.create(store, TimelineId(bytes(16), bytes(16)), facts)
        self.catalog = BackupCatalog(archive)
        server = BackedUpServer(facts.system_id, facts.pg_version, False, lambda: datetime.now(UTC))
        dsn = self.primary.dsn(replication="true")
        with closing(psycopg.connect(dsn, autocommit=True)) as connection:
            self.stand_on(
                create_backup(connection, server, self.catalog, BackupOptions(label="base"))
            )

    def stand_on(self, backup: Backup) -> None:
        """Uses `backup` as the start of the next epoch."""
        self.backup = backup
        self.files, self.frame = read_backup(self.catalog, backup, self.root / "frame-0.tar")
        self.base = BackupBase(self.catalog, backup, self.files)
        self.layers: list[Layer] = []
        self.redo_lsn = backup.start_lsn

    def cut(self) -> Checkpoint:
        """Makes a checkpoint, and waits until all its WAL is archived."""
        self.primary.execute("CHECKPOINT")
        ((lsn, redo),) = self.primary.execute(
            "SELECT checkpoint_lsn::text, redo_lsn::text FROM pg_control_checkpoint()"
        )
        start_lsn = int(Lsn.parse(lsn))
        self.switch_wal()
        ((tli,),) = self.primary.execute("SELECT timeline_id FROM pg_control_checkpoint()")
        # SQL does not return the record's end; the survey of the WAL finds it.
        far = EpochInput(
            self.frame, self.base, self.wal, self.redo_lsn,
            Checkpoint(start_lsn, start_lsn + 1, int(Lsn.parse(redo)), tli, datetime.now(UTC)),
        )  # fmt: skip
        found = survey_epoch(far).checkpoints[-1]
        assert found.start_lsn == start_lsn
        return found

    def switch_wal(self) -> None:
        ((name,),) = self.primary.execute("SELECT pg_walfile_name(pg_current_wal_insert_lsn())")
        self.primary.execute("SELECT pg_switch_wal()")
        wait_until(lambda: (self.wal_dir / name).exists(), TIMEOUT, f"{name} to be archived")

    def promote(self) -> Postgres:
        """Promotes a standby to a new timeline."""
        old = self.primary
        self._promotions += 1
        name = f"promoted-{self._promotions}"
        standby = old.base_backup(
            self.root / name, "--write-recovery-conf", *self._tablespace_mappings(name)
        )
        standby.start()
        wait_replayed(standby, old.flush_lsn(), TIMEOUT)
        old.stop()
        standby.execute("SELECT pg_promote()")
        self.primary = standby
        return standby

    def _tablespace_mappings(self, name: str) -> list[str]:
        """For pg_basebackup: two servers on one host must not share a tablespace folder."""
        spaces = self.primary.execute(
            "SELECT location FROM (SELECT pg_tablespace_location(oid) AS location"
            " FROM pg_tablespace) s WHERE location <> ''"
        )
        mappings = []
        for (where,) in spaces:
            own = Path(f"{where}-of-{name}")
            own.mkdir()
            self.server.give(own)
            mappings.append(f"--tablespace-mapping={where}={own}")
        return mappings

    def replay(self, target: Checkpoint) -> EpochOutput:
        """Replays the next epoch, and adds its layer to the stack."""
        self._epochs += 1
        work_dir = self.root / f"epoch-{self._epochs}"
        work_dir.mkdir()
        given = EpochInput(self.frame, self.stack(), self.wal, self.redo_lsn, target)
        output = EpochReplay(work_dir, self.server, part_bytes=1 << 20).run(given)
        self.layers.append(Layer([open_part(path) for path in output.parts]))
        self.frame, self.redo_lsn = output.frame, target.redo_lsn
        return output

    def stack(self) -> PageStack:
        return PageStack(self.base, self.layers)

    def virtual_full(self, name: str) -> Path:
        data_dir = self.root / name
        data_dir.mkdir(mode=0o700)
        self.server.give(data_dir)
        forks, tablespaces = self.frame.forks, self.frame.tablespaces
        files = CutFiles(self.catalog, self.backup, forks, tablespaces, LayerStack(self.layers))
        write_virtual_full(
            data_dir, self.frame, files, pg_major=self.facts.pg_major, give=self.server.give
        )
        return data_dir

    def unpacked(self, name: str) -> Path:
        """A full copy of the base backup with in-place tablespaces."""
        data_dir = self.root / name
        spaces = {
            each.path: self.root / f"{Path(each.path).name}-of-{name}"
            for each in self.backup.archives
            if each.path
        }
        account = self.server.account
        Unpacking(data_dir=data_dir, tablespaces=spaces, owner=account, is_synced=False).run(
            self.catalog, self.backup
        )
        for where in spaces.values():
            into_place(data_dir, where)
        (data_dir / "postgresql.auto.conf").unlink(missing_ok=True)
        (data_dir / "tablespace_map").unlink(missing_ok=True)
        return data_dir

    def oracle(self, name: str, target: Checkpoint) -> Path:
        """A standby on a full copy of the base backup, stopped at the cut."""
        data_dir, start_lsn = self.unpacked(name), self.backup.start_lsn
        whole = EpochInput(self.frame, self.base, self.wal, start_lsn, target)
        link_wal(
            self.wal.segments(start_lsn, target.end_lsn, target.tli),
            start_lsn - start_lsn % self.facts.wal_seg_size,
            self.facts.wal_seg_size,
            survey_epoch(whole).tablespaces_created,
            data_dir / "pg_wal",
            self.server.give,
        )
        for path in self.wal.histories():
            (data_dir / "pg_wal" / path.name).symlink_to(path)
        self.server.replay(data_dir, target, 100)
        return data_dir


def into_place(data_dir: Path, where: Path) -> None:
    """Converts a tablespace to a folder in pg_tblspc, which no other server uses."""
    for link in (data_dir / "pg_tblspc").iterdir():
        if link.is_symlink() and link.readlink() == where:
            link.unlink()
            where.rename(link)


def open_part(path: Path) -> LayerPart:
    content = path.read_bytes()
    return LayerPart(path.name, len(content), lambda at, length: content[at : at + length])


@dataclass(frozen=True)
class Difference:
    path: str
    what: str


def differences(ours: Path, theirs: Path) -> list[Difference]:
    """Ignores free space maps and files that servers create again, and nothing else."""
    mine, other = _files(ours), _files(theirs)
    found = [Difference(name, "only ours") for name in sorted(set(mine) - set(other))]
    found += [Difference(name, "only theirs") for name in sorted(set(other) - set(mine))]
    for name in sorted(set(mine) & set(other)):
        one, two = mine[name].read_bytes(), other[name].read_bytes()
        if one != two:
            pages = [
                at // 8192
                for at in range(0, max(len(one), len(two)), 8192)
                if one[at : at + 8192] != two[at : at + 8192]
            ]
            found.append(Difference(name, f"{len(one)} and {len(two)} bytes, pages {pages[:9]}"))
    return found


def _files(data_dir: Path) -> dict[str, Path]:
    return dict(_walk(data_dir, ""))


def _walk(data_dir: Path, name: str) -> Iterator[tuple[str, Path]]:
    for entry in os.scandir(data_dir / name):
        path = f"{name}/{entry.name}" if name else entry.name
        if entry.name in LEFT_OUT or entry.name.startswith(".") or path in EMPTIED:
            continue
        if entry.is_dir():
            yield from _walk(data_dir, path)
            continue
        found = parse_file(path)
        is_map = found is not None and found[0].kind is ForkKind.FSM
        if not is_map and path != CONTROL_FILE:
            yield path, Path(entry.path)
