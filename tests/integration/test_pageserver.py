"""`sk pageserver run` beside a real cluster: cuts, a kill, a successor, a restore from a cut."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
from restored import SEGMENT_BYTES, TIMEOUT, archiving, new_folder, restored_at, take_backup
from sk_command import assert_refused, sk, sk_json

from quorum_wal.objectstore.archive import find_timelines
from quorum_wal.objectstore.local import LocalStore
from quorum_wal.pageserver.attachments.garbage import without_garbage
from quorum_wal.pageserver.cuts.page_objects import PageObjects
from quorum_wal.pageserver.objects.page_keys import IndexName
from quorum_wal.pg_fixtures.cluster import QuorumCluster
from quorum_wal.pg_fixtures.generations import GenerationProcess
from quorum_wal.pg_fixtures.http_status import http_get
from quorum_wal.pg_fixtures.pageserver import PageserverProcess
from quorum_wal.pg_fixtures.postgres import Postgres
from quorum_wal.pg_fixtures.proposer import ProposerProcess
from quorum_wal.pg_fixtures.small_disk import SmallDisk
from quorum_wal.pg_fixtures.standby import wait_replayed
from quorum_wal.pg_fixtures.waiting import wait_until
from quorum_wal.pg_server.program import run_program
from quorum_wal.pgwal.history import history_file_name
from quorum_wal.pgwal.lsn import Lsn


class Pages:
    """A cluster with an archive, a base backup in it, and pageservers."""

    def __init__(self, cluster: QuorumCluster, archive: Path, root: Path) -> None:
        self.cluster = cluster
        self.archive = archive
        self.root = root
        self.primary = cluster.postgres
        self.primary.execute("CREATE TABLE t AS SELECT g, md5(g::text) AS m"
                             " FROM generate_series(1, 4000) g")  # fmt: skip
        self.backup_id = take_backup(archive, self.primary)

    def pageserver(self, node_id: int = 1, *arguments: str) -> PageserverProcess:
        addresses = [safekeeper.address for safekeeper in self.cluster.safekeepers]
        return PageserverProcess(
            self.archive,
            addresses,
            self.root / f"pageserver-{node_id}",
            node_id=node_id,
            arguments=["--cut-bytes", "1MB", *arguments],
        )

    def write(self) -> None:
        self.primary.execute("UPDATE t SET m = m || 'x'")
        self.primary.execute("INSERT INTO t SELECT g, md5(g::text) FROM generate_series(1, 999) g")

    def objects(self) -> PageObjects:
        """The objects of the one timeline in the archive."""
        store = LocalStore(str(self.archive))
        (timeline,) = find_timelines(store)
        return PageObjects(store, timeline)

    def checkpoint(self) -> int:
        """Make a checkpoint, which ends a cut at its position or later."""
        self.primary.execute("CHECKPOINT")
        ((lsn,),) = self.primary.execute("SELECT redo_lsn::text FROM pg_control_checkpoint()")
        return int(Lsn.parse(lsn))

    def cut(self, pageserver: PageserverProcess) -> dict[str, Any]:
        self.write()
        self.primary.execute("SELECT pg_switch_wal()")  # at least --cut-bytes
        return pageserver.wait_cut(self.checkpoint(), TIMEOUT)

    def rows(self) -> list[Any]:
        return self.primary.execute("SELECT count(*), md5(string_agg(m, '' ORDER BY g, m)) FROM t")


@pytest.fixture
def pages(quorum_cluster: Callable[..., QuorumCluster], tmp_path: Path) -> Pages:
    archive = tmp_path / "archive"
    cluster = quorum_cluster(wal_seg_size=SEGMENT_BYTES, safekeeper_arguments=archiving(archive))
    return Pages(cluster, archive, tmp_path)


def a_disk_that_fails(pages: Pages, pageserver: PageserverProcess) -> None:
    """WAL cannot be written: the status says so, and it continues when the reason is gone."""
    ((name,),) = pages.primary.execute(
        "SELECT pg_walfile_name(pg_current_wal_insert_lsn() + %s)", (SEGMENT_BYTES,)
    )
    (folder,) = pageserver.data_dir.glob("*/*/wal")
    (folder / name).mkdir()
    pages.write()
    pages.write()
    problem = f'could not write WAL into "{folder}": Is a directory'
    pageserver.wait_until(
        lambda: pageserver.timeline()["problem"] == problem, TIMEOUT, "the problem"
    )
    (folder / name).rmdir()
    pageserver.wait_until(lambda: not pageserver.timeline()["problem"], TIMEOUT, "WAL again")


def test_cuts_go_on_after_a_kill_and_a_restore_begins_with_one(
    pages: Pages, tmp_path: Path
) -> None:
    with pages.pageserver() as pageserver:
        first = pages.cut(pageserver)
        pageserver.kill()
        pages.write()
        pageserver.start()
        second = pages.cut(pageserver)
        assert second["suffix"] > first["suffix"]
        assert (second["cuts"], second["problem"]) == (2, "")
        a_disk_that_fails(pages, pageserver)
        code, page = http_get(pageserver.http_address, "/")
        assert code == HTTPStatus.OK
        assert "1 timeline: pages are made" in page
        rows = pages.rows()
        ((target,),) = pages.primary.execute("SELECT pg_current_wal_insert_lsn()::text")
        pages.write()
        ((end,),) = pages.primary.execute("SELECT pg_current_wal_insert_lsn()::text")
        pages.primary.execute("SELECT pg_switch_wal()")
        wait_until(lambda: pageserver.timeline()["visible_lsn"] == second["projected_lsn"],
                   TIMEOUT, "WAL below the cut to be given up")  # fmt: skip
        wait_until(lambda: Lsn.parse(archived(pages)) >= Lsn.parse(end), TIMEOUT, "the archive")
    where = ("--archive", pages.archive)
    refused = sk("backup", "delete", *where, pages.backup_id, "--yes")
    assert_refused(refused, 1, "is the base of a pageserver's cuts", "Keep this backup")
    take_backup(pages.archive, pages.primary)
    assert sk("backup", "prune", *where, "--keep", 1).stdout == ""
    with restored_at(pages.primary.binaries, tmp_path / "restored") as restored:
        done = restored.restore(
            pages.archive, "--target-lsn", target, "--start", *restored.starting
        )
        assert done.returncode == 0, done.stderr
        assert f"backup cut-{Lsn.parse(second['cut_lsn']):016X}" in done.stdout
        query = "SELECT count(*), md5(string_agg(m, '' ORDER BY g, m)) FROM t"
        assert restored.execute(query) == rows


def archived(pages: Pages) -> str:
    (timeline,) = sk_json("archive", "status", "--archive", pages.archive)
    return str(timeline["archived_lsn"])


@contextmanager
def generation_service(root: Path) -> Iterator[GenerationProcess]:
    with GenerationProcess(str(root / "numbers.sqlite"), log_path=root / "numbers.log") as service:
        yield service


def test_a_replaced_pageserver_reports_it_and_deletes_nothing(pages: Pages, tmp_path: Path) -> None:
    tenant = next(pages.archive.glob("*/*/timeline.json")).parts[-3]
    with generation_service(tmp_path) as service:
        asked = ("--service", service.url)
        assert sk("generations", "attach", tenant, "--node", 1, *asked).returncode == 0
        served = ("--generations", service.url)
        with pages.pageserver(1, *served) as old, pages.pageserver(2, *served) as new:
            pages.cut(old)
            assert new.timeline() == {}
            assert sk("generations", "move", tenant, "--node", 2, *asked).returncode == 0
            pages.cut(new)
            stale = wait_until(
                lambda: is_stale(old), TIMEOUT, "the old one to say that it is stale"
            )
            assert "another pageserver has the timeline" in stale["problem"]
            pages.cut(new)
            assert new.timeline()["cuts"] == 3
            assert old.timeline()["cuts"] == stale["cuts"]  # it has stopped, wherever it was


def is_stale(pageserver: PageserverProcess) -> dict[str, Any] | None:
    page = pageserver.timeline()
    return page if page.get("mode") == "stale" else None


def test_errors_at_the_start_of_a_pageserver(pages: Pages, tmp_path: Path) -> None:
    with pages.pageserver() as pageserver:
        pages.cut(pageserver)
        again = sk("pageserver", "run", "--archive", pages.archive, "--safekeepers", "127.0.0.1:1",
                   "--data-dir", pageserver.data_dir, "--http", "127.0.0.1:0")  # fmt: skip
        assert_refused(again, 1, "is in use by another pageserver", "of its own")
    nowhere = tmp_path / "not mounted"
    lost = sk("pageserver", "run", "--archive", nowhere, "--safekeepers", "127.0.0.1:1",
              "--data-dir", tmp_path / "x", "--http", "127.0.0.1:0")  # fmt: skip
    assert_refused(lost, 1, f'folder of the archive does not exist: "{nowhere}"', "mount")
    assert not nowhere.exists()
    none = sk("pageserver", "run", "--archive", pages.archive, "--data-dir", tmp_path / "x")
    assert (
        none.returncode,
        "give --safekeepers, the safekeepers to read WAL from" in none.stderr,
    ) == (2, True)


def test_after_a_lost_data_directory_the_error_says_what_to_do(
    pages: Pages, tmp_path: Path
) -> None:
    """Its numbers begin again: they are refused, and `sk generations advance` repairs that."""
    pageserver = pages.pageserver()
    with pageserver:
        pages.cut(pageserver)
    shutil.rmtree(pageserver.data_dir)
    pageserver.start()
    assert pageserver.wait(TIMEOUT) == 1
    assert "already claimed by" in pageserver.log_tail()
    assert "sk generations advance" in pageserver.log_tail()
    (claim,) = pages.archive.glob("*/*/pages/attachments/*")
    database = pageserver.data_dir / "generations.sqlite"
    advance = ("generations", "advance", claim.parts[-5], claim.name, "--database", database)
    assert sk(*advance).returncode == 0
    with pageserver:
        assert pages.cut(pageserver)["cuts"] == 2


def test_one_table_at_a_moment(pages: Pages, tmp_path: Path) -> None:
    """Into a file, as rows, into a server; by a position and by a time."""
    primary = pages.primary
    with pages.pageserver() as pageserver:
        pages.cut(pageserver)
    rows = pages.rows()
    ((target, at),) = primary.execute("SELECT pg_current_wal_insert_lsn()::text, clock_timestamp()")
    primary.execute("DROP TABLE t")
    primary.execute("SELECT pg_switch_wal()")
    ((end,),) = primary.execute("SELECT pg_current_wal_lsn()::text")
    wait_until(lambda: Lsn.parse(archived(pages)) >= Lsn.parse(end), TIMEOUT, "the archive")
    name, where = "postgres.public.t", ("--archive", pages.archive)
    copied = sk("table", "restore", name, *where, "--at-lsn", target, "--copy", tmp_path / "t.csv")
    assert copied.stdout == f"{rows[0][0]} rows of {name} are in {tmp_path / 't.csv'}\n"
    assert len((tmp_path / "t.csv").read_text().splitlines()) == rows[0][0] + 1
    restored = sk("table", "restore", name, *where, "--at", at.isoformat(), "--to", primary.dsn())
    assert restored.returncode == 0, restored.stderr
    assert pages.rows() == rows
    again = sk("table", "restore", name, *where, "--at", at.isoformat(), "--to", primary.dsn())
    assert_refused(again, 1, "already exists", "The database was not changed")
    gone = sk("table", "restore", name, *where, "--at-lsn", end, "--dump", tmp_path / "t.sql")
    assert_refused(
        gone, 1, 'table "public"."t" does not exist in database "postgres"', "Check the table name"
    )
    early = sk("table", "restore", name, *where, "--at-lsn", "0/1", "--dump", tmp_path / "t.sql")
    assert_refused(early, 1, "before the first cut", "The first cut is at")
    late = sk("table", "restore", name, *where, "--at-lsn", "F/0", "--dump", tmp_path / "t.sql")
    assert_refused(late, 1, "the WAL ends at", "earlier target")


def test_one_page_at_a_moment(
    pages: Pages, tmp_path: Path, small_disk: Callable[[int], SmallDisk]
) -> None:
    primary, where = pages.primary, ("--archive", pages.archive)
    with pages.pageserver() as pageserver:
        pages.cut(pageserver)
    ((path,),) = primary.execute("SELECT pg_relation_filepath('t')")
    primary.execute("UPDATE t SET m = 'changed' WHERE g = 1")
    ((block,), *_) = primary.execute(
        "SELECT split_part(trim('()' FROM ctid::text), ',', 1) FROM t WHERE m = 'changed'"
    )
    primary.execute("CREATE TABLE shorter AS SELECT g FROM generate_series(1, 5000) g")
    ((shorter,),) = primary.execute("SELECT pg_relation_filepath('shorter')")
    primary.execute("DELETE FROM shorter WHERE g > 100")
    primary.execute("VACUUM shorter")
    assert primary.execute("SELECT pg_relation_size('shorter')") == [(8192,)]
    primary.execute("SELECT pg_switch_wal()")
    ((end,),) = primary.execute("SELECT pg_current_wal_lsn()::text")
    wait_until(lambda: Lsn.parse(archived(pages)) >= Lsn.parse(end), TIMEOUT, "the archive")
    out = tmp_path / "page"
    got = sk_json("page", "get", path, block, *where, "--at-lsn", end, "--out", out)
    assert (got["found_in"], got["page_size"], got["checksum"]) == ("replayed", 8192, "none")
    assert (out.stat().st_size, b"changed" in out.read_bytes()) == (8192, True)
    before = sk("page", "get", path, 0, *where, "--at-lsn", got["cut"])
    assert before.returncode == 0, before.stderr
    assert "found in        layers" in before.stdout
    # A file that the WAL truncates: all of it is replayed.
    assert sk_json("page", "get", shorter, 0, *where, "--at-lsn", end)["found_in"] == "replayed"
    gone = sk("page", "get", shorter, 7, *where, "--at-lsn", end)
    assert_refused(gone, 1, "block 7 of", "the fork has no file")
    disk = small_disk(1 << 16).path
    full = sk("page", "get", path, block, *where, "--at-lsn", end, "--work-dir", disk)
    assert_refused(full, 1, "No space left on device", "another disk")
    assert not list(disk.iterdir())
    none = sk("page", "get", path, 999_999, *where, "--at-lsn", end)
    assert_refused(none, 1, "block 999999 of", "the fork has")
    check_before_the_horizon(pages, path, tmp_path)
    odd = sk("page", "get", "t", 0, *where)
    assert (odd.returncode, "not a file of a relation" in odd.stderr) == (2, True)


def check_before_the_horizon(pages: Pages, path: str, tmp_path: Path) -> None:
    """Every command gives the same error for a moment whose cuts were deleted."""
    objects, where = pages.objects(), ("--archive", pages.archive)
    newest = max(objects.indices())
    index = objects.newest_index()
    moved, _ = without_garbage(index, index.newest_end_lsn)
    objects.create_index(IndexName(newest.suffix, newest.seq + 100), moved)
    says = ("before the horizon", "The oldest cut is at")
    page = sk("page", "get", path, 0, *where, "--at-lsn", "0/1")
    assert_refused(page, 1, *says)
    csv = ("--copy", tmp_path / "early.csv")
    table = sk("table", "restore", "postgres.public.t", *where, "--at-lsn", "0/1", *csv)
    assert_refused(table, 1, *says)
    data_dir = ("--data-dir", tmp_path / "early")
    restored = sk("restore", *where, *data_dir, "--target-lsn", "0/1")
    assert_refused(restored, 1, *says)
    assert "no backup leads to" in restored.stderr


def test_after_its_pages_were_deleted_all_commands_report_it(pages: Pages, tmp_path: Path) -> None:
    """And the base backup is an ordinary one again."""
    where = ("--archive", pages.archive)
    with pages.pageserver() as pageserver:
        pages.cut(pageserver)
        shown = sk("pageserver", "status", pageserver.http_address)
        assert (shown.returncode, "OK" in shown.stdout, "single" in shown.stdout) == (0, True, True)
        numbers = pageserver.data_dir / "generations.sqlite"
        (page,) = pageserver.status()["timelines"]
        done = sk("pageserver", "delete-timeline", *where, page, "--generations", numbers, "--yes")
        assert done.returncode == 0, done.stderr
        pageserver.wait_until(lambda: pageserver.status()["deleted_timelines"], TIMEOUT, "its end")
    said = "were deleted"
    table = sk("table", "restore", "postgres.public.t", *where, "--dump", tmp_path / "t.sql")
    assert_refused(table, 1, said, "Base backups and WAL are kept")
    assert_refused(sk("page", "get", "base/5/16384", 0, *where), 1, said, "Base backups")
    restore = ("restore", *where, "--data-dir", tmp_path / "restored", "--dry-run",
               "--pg-bin", pages.primary.binaries.bin_dir)  # fmt: skip
    from_base = sk(*restore)
    assert from_base.returncode == 0, from_base.stderr
    assert (f"backup {pages.backup_id}" in from_base.stdout, said in from_base.stderr) == (
        True,
        True,
    )
    assert sk("backup", "delete", *where, pages.backup_id, "--yes").returncode == 0
    assert_refused(sk(*restore), 1, said, "if a base backup still exists")


def test_it_follows_a_promotion(pages: Pages, tmp_path: Path) -> None:
    standby = pages.primary.base_backup(tmp_path / "standby", "--write-recovery-conf")
    with pages.pageserver() as pageserver, standby:
        pages.cut(pageserver)
        pages.write()
        wait_replayed(standby, pages.primary.flush_lsn(), TIMEOUT)
        pages.cluster.proposer.kill()
        pages.primary.crash()
        standby.execute("SELECT pg_promote()")
        addresses = [safekeeper.address for safekeeper in pages.cluster.safekeepers]
        second = ProposerProcess(
            standby.dsn(), addresses, log_path=tmp_path / "second.log", configure=True
        )
        with second:
            pages.primary = standby
            after = pages.cut(pageserver)
            assert (after["problem"], after["alarms"]) == ("", [])
            switch_lsn = int(Lsn.parse(switch_of(standby)))
            assert Lsn.parse(after["cut_lsn"]) > switch_lsn


def switch_of(promoted: Postgres) -> str:
    """Where it left the timeline before."""
    return (promoted.pg_wal / history_file_name(2)).read_text().split()[1]


def test_a_base_backup_out_of_a_cut(pages: Pages, tmp_path: Path) -> None:
    """The backup, and the cut itself, are restored with a tablespace at another place; then it is
    deleted."""
    primary, archive = pages.primary, ("--archive", pages.archive)
    from_cut = ("backup", "create", *archive, "--from", "pageserver")
    assert_refused(sk(*from_cut), 1, "the archive has no cuts", "sk pageserver run")
    old = new_folder(tmp_path / "old space")
    primary.execute(f"CREATE TABLESPACE space LOCATION '{old}'")
    primary.execute("CREATE TABLE s TABLESPACE space AS SELECT g FROM generate_series(1, 99) g")
    with pages.pageserver() as pageserver:
        cut = pages.cut(pageserver)["cut_lsn"]
        rows = pages.rows()
    made = sk(*from_cut, "--at-lsn", cut, "--label", "nightly")
    assert made.returncode == 0, made.stderr
    backup_id = made.stdout.strip()
    assert "the archive alone can restore it" in made.stderr
    listed = sk_json("backup", "list", *archive)
    assert [each["label"] for each in listed] == ["sk", "nightly"]
    assert (listed[1]["backup_id"], listed[1]["stop_lsn"]) == (backup_id, cut)
    assert_refused(sk(*from_cut), 1, f"backup {backup_id} of the cut", "next cut")
    assert_refused(sk(*from_cut, "--at-lsn", "0/1"), 1, "no cut is before", "later moment")
    for number, named in enumerate((("--backup", backup_id), ())):
        moved = f"{old}={new_folder(tmp_path / f'space {number}')}"
        if not named:  # a backup of that cut is restored faster than the cut
            assert sk("backup", "delete", *archive, backup_id).returncode == 0
        with restored_at(primary.binaries, tmp_path / f"restored-{number}") as restored:
            done = restored.restore(pages.archive, *named, "--tablespace", moved)
            assert done.returncode == 0, done.stderr
            assert ("backup cut-" in done.stdout) == (not named)
            if named:
                verify = primary.binaries.program("pg_verifybackup")
                run_program([verify, "--no-parse-wal", restored.data_dir], timeout=TIMEOUT)
            restored.start(TIMEOUT)
            wait_until(lambda: restored.execute("SELECT pg_is_in_recovery()") == [(False,)],
                       TIMEOUT, "its recovery to end")  # fmt: skip
            query = "SELECT count(*), md5(string_agg(m, '' ORDER BY g, m)) FROM t"
            assert restored.execute(query) == rows
            assert restored.execute("SELECT sum(g) FROM s") == [(4950,)]
