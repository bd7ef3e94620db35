"""`sk branch`: servers of two moments beside the running primary; kills; refusals.

Commands that change something run as processes. Commands that only read or are refused run in this
process, which has already imported the modules.
"""

from __future__ import annotations

import json
import random
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner
from pg_versions import oldest_and_newest
from restored import SEGMENT_BYTES, TIMEOUT, archiving, new_folder
from sk_command import Done, assert_refused, sk
from test_pageserver import Pages, archived

from quorum_wal.cli.main import cli
from quorum_wal.pg_fixtures.cluster import QuorumCluster
from quorum_wal.pg_fixtures.crash import crash_postmaster
from quorum_wal.pg_fixtures.data_directory import DataDirectory
from quorum_wal.pg_fixtures.ports import free_port
from quorum_wal.pg_fixtures.processes import SK
from quorum_wal.pg_fixtures.small_disk import SmallDisk
from quorum_wal.pg_fixtures.waiting import wait_until
from quorum_wal.pg_server.binaries import PostgresBinaries, find_postgres
from quorum_wal.pgwal.lsn import Lsn

ROWS = "SELECT count(*), md5(string_agg(m, '' ORDER BY g, m)) FROM t"
PASSWORD = "secret"
SETTINGS = {"max_prepared_transactions": 5, "timezone": "Asia/Tokyo"}
KILLS = 4


class Past:
    """A cluster whose archive has a cut, and two moments after it; branches in one folder."""

    def __init__(self, cluster: QuorumCluster, root: Path) -> None:
        self.cluster = cluster
        self.archive = root / "archive"
        self.root = root / "branches"
        self.primary = cluster.postgres
        self.primary.execute(f"ALTER ROLE postgres PASSWORD '{PASSWORD}'")
        self.primary.execute("CREATE SUBSCRIPTION s CONNECTION 'host=127.0.0.1 port=1' "
                             "PUBLICATION p WITH (connect = false)")  # fmt: skip
        pages = Pages(cluster, self.archive, root)
        with pages.pageserver() as pageserver:
            pages.cut(pageserver)
        self.primary.execute("INSERT INTO t VALUES (1, 'behind the cut')")
        where = new_folder(root / "tablespace")
        self.primary.execute(f"CREATE TABLESPACE elsewhere LOCATION '{where}'")
        self.primary.execute("CREATE TABLE u TABLESPACE elsewhere AS SELECT 1 AS a")
        self.primary.execute("BEGIN; INSERT INTO u VALUES (2); PREPARE TRANSACTION 'p'")
        self.first = self.rows()
        ((self.lsn,),) = self.primary.execute("SELECT pg_current_wal_insert_lsn()::text")
        self.primary.execute("UPDATE t SET m = 'x' || m WHERE g < 100")
        self.second = self.rows()
        ((self.at,),) = self.primary.execute("SELECT clock_timestamp()")
        self.primary.execute("DELETE FROM t WHERE g < 200")
        self.primary.execute("ROLLBACK PREPARED 'p'")
        self.last = self.rows()
        self.primary.execute("SELECT pg_switch_wal()")
        ((end,),) = self.primary.execute("SELECT pg_current_wal_lsn()::text")
        wait_until(lambda: Lsn.parse(archived(pages)) >= Lsn.parse(end), TIMEOUT, "the archive")

    def rows(self) -> list[Any]:
        return self.primary.execute(ROWS)

    def creation(self, name: str, *arguments: object) -> list[str]:
        words: list[object] = [
            *("branch", "create", name, "--branches-dir", self.root, "--no-sync"),
            *("--archive", self.archive, "--pg-bin", self.primary.binaries.bin_dir),
            *("--port", free_port(), *arguments),
        ]
        return list(map(str, words))

    def created(self, name: str, *arguments: object) -> Branch:
        done = sk(*self.creation(name, *arguments))
        assert done.returncode == 0, done.stderr
        branch = Branch(self, name, self.row(name))
        assert done.stdout.strip() == branch.first_row["dsn"]
        return branch

    def refused(self, sentence: str, hint: str, *arguments: object, name: str = "x") -> None:
        assert_refused(in_process(*self.creation(name, *arguments)), 1, sentence, hint)

    def list(self) -> list[dict[str, Any]]:
        done = in_process("branch", "list", "--branches-dir", self.root, "--json")
        assert done.returncode == 0, done.stderr
        found: list[dict[str, Any]] = json.loads(done.stdout)
        return found

    def row(self, name: str) -> dict[str, Any]:
        (row,) = [row for row in self.list() if row["name"] == name]
        return row

    def start(self, name: str) -> Done:
        return sk("branch", "start", name, "--branches-dir", self.root)

    def stop(self, name: str) -> None:
        done = in_process("branch", "stop", name, "--branches-dir", self.root)
        assert done.returncode == 0, done.stderr

    def drop(self, name: str) -> None:
        done = in_process("branch", "drop", name, "--branches-dir", self.root, "--yes")
        assert done.returncode == 0, done.stderr

    def end(self) -> None:
        for row in self.list():
            self.drop(row["name"])


@dataclass
class Branch:
    """A complete branch; `first_row` is its row in the list."""

    past: Past
    name: str
    first_row: dict[str, Any] = field(repr=False)

    @property
    def state(self) -> str:
        return str(self.past.row(self.name)["state"])

    @property
    def data(self) -> DataDirectory:
        return DataDirectory(self.past.root / self.name / "data", self.past.primary.binaries)

    def execute(self, statement: str, dsn: str = "socket_dsn", **extra: Any) -> list[Any]:
        with psycopg.connect(self.first_row[dsn], autocommit=True, **extra) as connection:
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description is not None else []

    def crash(self) -> None:
        state = self.data.postmaster_file()
        assert state is not None
        crash_postmaster(state.pid, self.data)
        process = Path(
            f"/proc/{state.pid}"
        )  # Postgres takes a process that init has not reaped yet for alive
        wait_until(lambda: not process.exists(), TIMEOUT, "the postmaster to be reaped")


def in_process(*arguments: object) -> Done:
    words = list(map(str, arguments))
    result = CliRunner().invoke(cli, words, prog_name="sk")
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return Done(words, result.exit_code, result.stdout, result.stderr)


def listing(archive: Path) -> dict[Path, tuple[int, int]]:
    """The objects that remain: a partial segment is removed when the whole one exists."""
    files = [path for path in archive.rglob("*") if path.is_file()]
    kept = {path: path.stat() for path in files if ".partial" not in str(path)}
    return {path: (stat.st_size, stat.st_mtime_ns) for path, stat in kept.items()}


def assert_archive_kept(past: Past, before: dict[Path, tuple[int, int]]) -> None:
    """The primary continues on its timeline 1; those of branches are 2."""
    after = listing(past.archive)
    assert {path: after[path] for path in before} == before
    assert not [path for path in after if path.name.startswith("00000002")]


@pytest.fixture
def past(quorum_cluster: Callable[..., QuorumCluster], tmp_path: Path) -> Iterator[Past]:
    arguments = archiving(tmp_path / "archive")
    found = Past(
        quorum_cluster(
            wal_seg_size=SEGMENT_BYTES, safekeeper_arguments=arguments, settings=SETTINGS
        ),
        tmp_path,
    )
    yield found
    found.end()


@pytest.fixture(scope="module")
def shared(
    initdb_template: Callable[[PostgresBinaries, int], Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Past]:
    """Of the preferred version, for all tests that leave no branch."""
    root, pg_binaries = tmp_path_factory.mktemp("past"), find_postgres()
    with QuorumCluster(
        root / "cluster",
        binaries=pg_binaries,
        wal_seg_size=SEGMENT_BYTES,
        template=initdb_template(pg_binaries, SEGMENT_BYTES),
        safekeeper_arguments=archiving(root / "archive"),
        settings=SETTINGS,
    ) as cluster:
        found = Past(cluster, root)
        yield found
        found.end()


def test_two_moments_beside_the_primary(shared: Past) -> None:
    before = listing(shared.archive)
    one = shared.created("one", "--at-lsn", shared.lsn, "--set", "work_mem=7MB")
    two = shared.created("two", "--at", shared.at.isoformat(), "--cluster-hba")
    found = one.execute(ROWS), two.execute(ROWS), shared.rows()
    assert found == (shared.first, shared.second, shared.last)
    assert one.first_row["lsn"] == shared.lsn
    assert_apart(one)
    assert two.execute("SELECT 1", "dsn") == [(1,)]  # as the cluster trusts every client here
    assert two.first_row["prepared"] == 1
    two.execute("COMMIT PREPARED 'p'")
    assert two.execute("SELECT sum(a) FROM u") == [(3,)]
    assert shared.primary.execute("SELECT sum(a) FROM u") == [(1,)]
    for branch in (one, two):
        branch.execute("DELETE FROM t WHERE g > 5")
        branch.execute("CREATE TABLE only_here AS SELECT 1 AS a")
        branch.execute("CHECKPOINT")
        branch.execute("SELECT pg_switch_wal()")
    one.crash()
    assert (one.state, two.state) == ("stopped", "running")
    assert shared.start("one").stdout.strip() == one.first_row["dsn"]
    assert one.execute("SELECT a FROM only_here") == [(1,)]
    shared.stop("two")
    assert two.state == "stopped"
    assert shared.rows() == shared.last
    assert_not_the_primary(shared, one)
    for name in ("one", "two"):
        shared.drop(name)
    assert (shared.list(), list(shared.root.iterdir())) == ([], [])
    assert_archive_kept(shared, before)


def assert_apart(branch: Branch) -> None:
    """It is writable and independent, connects to no other server, and asks for a password."""
    settings = ("cluster_name", "archive_mode", "synchronous_standby_names", "primary_conninfo",
                "max_wal_senders", "max_logical_replication_workers", "timezone",
                "work_mem")  # fmt: skip
    names = ", ".join(f"current_setting('{name}')" for name in settings)
    assert branch.execute(f"SELECT pg_is_in_recovery(), {names}") == [
        (False, "branch one", "off", "", "", "0", "0", "Asia/Tokyo", "7MB")
    ]
    assert branch.execute("SELECT count(*) FROM pg_replication_slots") == [(0,)]
    assert branch.execute("SELECT subenabled, subslotname FROM pg_subscription") == [(False, None)]
    with pytest.raises(psycopg.OperationalError, match="password"):
        branch.execute("SELECT 1", "dsn")
    address = branch.execute("SELECT host(inet_server_addr())", "dsn", password=PASSWORD)
    assert address == [("127.0.0.1",)]
    ((tli,),) = branch.execute("SELECT timeline_id FROM pg_control_checkpoint()")
    assert (tli, branch.first_row["tli"]) == (2, 2)


def assert_not_the_primary(past: Past, branch: Branch) -> None:
    """It has the primary's system identifier, but no proposer streams from it, so it is not taken
    for the primary."""
    keepers = ",".join(safekeeper.address for safekeeper in past.cluster.safekeepers)
    before = past.cluster.safekeepers[0].timeline()
    dsn = f"{branch.first_row['dsn']} password={PASSWORD}"
    attached = sk("attach", "--primary", dsn, "--safekeepers", keepers, "--configure",
                  "--http", f"127.0.0.1:{free_port()}")  # fmt: skip
    assert_refused(attached, 4, "max_wal_senders", "refuses")
    after = past.cluster.safekeepers[0].timeline()
    assert before is not None
    assert after is not None
    assert after["promised"] == before["promised"]
    past.primary.execute("CREATE TABLE commits_go_on ()")


# The path of a socket is limited, and has the name of the test in it.
@pytest.mark.parametrize(
    "pg_binaries", oldest_and_newest()[1:], ids=lambda found: str(found.major), indirect=True
)
def test_versions(past: Past, pg_binaries: PostgresBinaries) -> None:
    branch = past.created("one", "--at", past.at.isoformat())
    assert branch.execute(ROWS) == past.second
    branch.execute("CREATE TABLE only_here AS SELECT 1 AS a")
    branch.crash()
    assert past.start("one").returncode == 0
    assert branch.execute("SELECT a FROM only_here") == [(1,)]
    assert branch.execute("SELECT subenabled, subslotname FROM pg_subscription") == [(False, None)]
    past.drop("one")


def test_a_branch_that_is_killed_while_it_is_created(shared: Past) -> None:
    """Killed at a moment between its begin and its end. What is left is listed, and can be
    dropped."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    for number in range(KILLS):
        command = [*SK, *shared.creation("killed", "--at-lsn", shared.lsn)]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        folder = shared.root / "killed"
        wait_until(folder.exists, TIMEOUT, "its folder")
        wanted = (folder, folder / "data", folder / "data/pg_wal", folder / "socket")[number % 4]
        wait_until(wanted.exists, TIMEOUT, str(wanted))
        try:
            process.wait(chance.random())
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for row in shared.list():
            assert row["state"] in ("incomplete", "running", "stopped"), row
        shared.refused("branch killed", "sk branch drop killed", name="killed")
        shared.drop("killed")
        assert (shared.list(), folder.exists()) == ([], False)


def test_a_branch_that_cannot_be_created_says_why_and_leaves_nothing(
    shared: Past, small_disk: Callable[..., SmallDisk]
) -> None:
    shared.refused('"../x" is not a valid branch name', "", name="../x")
    shared.refused("port", "another --port", "--port", shared.primary.port)
    shared.refused("before the first cut", "The first cut is at", "--at-lsn", "0/1")
    shared.refused("the WAL ends at", "earlier target", "--at-lsn", "F/0")
    shared.refused("has 0 timelines", "Safekeepers", "--archive", shared.root)
    shared.refused(
        "archive_mode cannot be set for a branch", "isolates", "--set", "archive_mode=on"
    )
    shared.refused('"work_memory"', "--set", "--set", "work_memory=7MB")
    with small_disk(48 << 20, name="d") as disk:  # paths of sockets are short
        shared.refused("branch x needs", "larger disk", "--branches-dir", disk.path / "b")
        assert list((disk.path / "b").iterdir()) == []
    foreign = shared.root / "foreign"
    foreign.mkdir()
    (foreign / "letter").write_text("mine")
    shared.refused("is not the folder of a branch", "", name="foreign")
    dropped = in_process("branch", "drop", "foreign", "--branches-dir", shared.root, "--yes")
    assert_refused(dropped, 1, "is not the folder of a branch", "sk branch list")
    assert (shared.list(), list(shared.root.iterdir())) == ([], [foreign])
    (foreign / "letter").unlink()
    foreign.rmdir()
