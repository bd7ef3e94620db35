"""`sk branch`: servers of two moments beside the primary that lives; kills; refusals."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from restored import SEGMENT_BYTES, TIMEOUT, archiving
from sk_command import Done, sk, sk_json
from test_pageserver import Pages, archived

from pg_fixtures.cluster import QuorumCluster
from pg_fixtures.crash import crash_postmaster
from pg_fixtures.data_directory import DataDirectory
from pg_fixtures.ports import free_port
from pg_fixtures.waiting import wait_until
from pg_server.binaries import PostgresBinaries, all_postgres
from pgwal.lsn import Lsn

ROWS = "SELECT count(*), md5(string_agg(m, '' ORDER BY g, m)) FROM t"
KILLS = 5


class Branches:
    """In one folder, from one archive; all are dropped at the end."""

    def __init__(self, pages: Pages, root: Path) -> None:
        self.pages = pages
        self.root = root

    def create(self, name: str, *arguments: object) -> Done:
        return sk(*self.creation(name), *arguments)

    def creation(self, name: str) -> list[object]:
        binaries = self.pages.primary.binaries
        return [
            *("branch", "create", name, "--branches-dir", self.root, "--no-sync"),
            *("--archive", self.pages.archive, "--pg-bin", binaries.bin_dir),
            *("--port", free_port()),
        ]

    def made(self, name: str, *arguments: object) -> Branch:
        done = self.create(name, *arguments)
        assert done.returncode == 0, done.stderr
        (row,) = [row for row in self.rows() if row["name"] == name]
        assert done.stdout.strip() == row["dsn"]
        return Branch(self, name)

    def rows(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = sk_json("branch", "list", "--branches-dir", self.root)
        return found

    def sk(self, verb: str, name: str, *arguments: object) -> Done:
        return sk("branch", verb, name, "--branches-dir", self.root, *arguments)

    def end(self) -> None:
        for row in self.rows():
            self.sk("drop", row["name"], "--yes")


class Branch:
    """One that is whole."""

    def __init__(self, branches: Branches, name: str) -> None:
        self._branches = branches
        self.name = name

    @property
    def row(self) -> dict[str, Any]:
        (row,) = [row for row in self._branches.rows() if row["name"] == self.name]
        return row

    @property
    def data_dir(self) -> Path:
        return self._branches.root / self.name / "data"

    def execute(self, statement: str, dsn: str = "socket_dsn") -> list[Any]:
        with psycopg.connect(self.row[dsn], autocommit=True) as connection:
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description is not None else []


@pytest.fixture
def branches(quorum_cluster: Callable[..., QuorumCluster], tmp_path: Path) -> Iterator[Branches]:
    archive = tmp_path / "archive"
    cluster = quorum_cluster(wal_seg_size=SEGMENT_BYTES, safekeeper_arguments=archiving(archive))
    made = Branches(Pages(cluster, archive, tmp_path), tmp_path / "branches")
    yield made
    made.end()


def wait_archived(pages: Pages) -> None:
    pages.primary.execute("SELECT pg_switch_wal()")
    ((end,),) = pages.primary.execute("SELECT pg_current_wal_lsn()::text")
    wait_until(lambda: Lsn.parse(archived(pages)) >= Lsn.parse(end), TIMEOUT, "the archive")


def listing(archive: Path) -> dict[Path, tuple[int, int]]:
    found = {path: path.stat() for path in archive.rglob("*") if path.is_file()}
    return {path: (stat.st_size, stat.st_mtime_ns) for path, stat in found.items()}


@pytest.mark.parametrize("pg_binaries", all_postgres(), ids=str, indirect=True)
def test_two_moments_beside_the_primary(
    branches: Branches, pg_binaries: PostgresBinaries, tmp_path: Path
) -> None:
    pages, primary = branches.pages, branches.pages.primary
    primary.execute("ALTER ROLE postgres PASSWORD 'secret'")
    primary.execute("CREATE SUBSCRIPTION s CONNECTION 'host=127.0.0.1 port=1' PUBLICATION p"
                    " WITH (connect = false)")  # fmt: skip
    with pages.pageserver() as pageserver:
        pages.cut(pageserver)
    primary.execute("INSERT INTO t VALUES (1, 'behind the cut')")
    first = pages.rows()
    ((lsn,),) = primary.execute("SELECT pg_current_wal_insert_lsn()::text")
    pages.write()
    second = pages.rows()
    ((at,),) = primary.execute("SELECT clock_timestamp()")
    pages.write()
    last = pages.rows()
    wait_archived(pages)
    before = listing(pages.archive)
    one = branches.made("one", "--at-lsn", lsn, "--set", "work_mem=7MB")
    two = branches.made("two", "--at", at.isoformat())
    assert (one.execute(ROWS), two.execute(ROWS), pages.rows()) == (first, second, last)
    assert one.row["lsn"] == lsn
    assert_apart(one)
    for branch in (one, two):
        branch.execute("DELETE FROM t WHERE g > 5")
        branch.execute("CREATE TABLE only_here AS SELECT 1 AS a")
        branch.execute("CHECKPOINT; SELECT pg_switch_wal()")
    state = DataDirectory(one.data_dir, pg_binaries).postmaster_file()
    assert state is not None
    crash_postmaster(state.pid, DataDirectory(one.data_dir, pg_binaries))
    assert (one.row["state"], two.row["state"]) == ("stopped", "running")
    assert branches.sk("start", "one").stdout.strip() == one.row["dsn"]
    assert one.execute("SELECT a FROM only_here") == [(1,)]
    assert branches.sk("stop", "two").returncode == 0
    assert two.row["state"] == "stopped"
    assert pages.rows() == last
    after = listing(pages.archive)
    assert {path: after[path] for path in before} == before
    assert not [path for path in after if path.name.startswith("00000002")]
    for name in ("one", "two"):
        assert branches.sk("drop", name, "--yes").returncode == 0
    assert (branches.rows(), list(branches.root.iterdir())) == ([], [])


def assert_apart(branch: Branch) -> None:
    """It is writable, itself, and reaches nobody; a password is asked for."""
    settings = ("cluster_name", "archive_mode", "synchronous_standby_names", "primary_conninfo",
                "max_wal_senders", "max_logical_replication_workers", "work_mem")  # fmt: skip
    names = ", ".join(f"current_setting('{name}')" for name in settings)
    assert branch.execute(f"SELECT pg_is_in_recovery(), {names}") == [
        (False, "branch one", "off", "", "", "0", "0", "7MB")
    ]
    assert branch.execute("SELECT count(*) FROM pg_replication_slots") == [(0,)]
    assert branch.execute("SELECT subenabled, subslotname FROM pg_subscription") == [(False, None)]
    with pytest.raises(psycopg.OperationalError, match="password"):
        branch.execute("SELECT 1", "dsn")
    with psycopg.connect(branch.row["dsn"], password="secret") as connection:
        assert connection.execute("SELECT inet_server_addr()::text").fetchone() == ("127.0.0.1/32",)
    ((timeline, line),) = branch.execute("SELECT timeline_id, 1 FROM pg_control_checkpoint()")
    assert (timeline, line) == (branch.row["tli"], 1)
