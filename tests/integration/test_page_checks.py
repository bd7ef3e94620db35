"""`sk page history`, `check` and `repair`, and scheduled checks, on a real cluster with damage."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from restored import SEGMENT_BYTES, TIMEOUT, archiving
from sk_command import assert_refused, sk, sk_json
from test_pageserver import Pages, archived

from quorum_wal.pg_fixtures.cluster import QuorumCluster
from quorum_wal.pg_fixtures.http_status import http_get_status
from quorum_wal.pg_fixtures.postgres import Postgres
from quorum_wal.pg_fixtures.waiting import wait_until
from quorum_wal.pgwal.lsn import Lsn

PAGE_BYTES = 8192


@pytest.fixture
def pages(quorum_cluster: Callable[..., QuorumCluster], tmp_path: Path) -> Pages:
    archive = tmp_path / "archive"
    cluster = quorum_cluster(wal_seg_size=SEGMENT_BYTES, safekeeper_arguments=archiving(archive))
    known = cluster.postgres.execute(
        "SELECT 1 FROM pg_available_extensions WHERE name = 'pageinspect'"
    )
    if not known:
        pytest.skip("this Postgres has no pageinspect")
    cluster.postgres.execute("CREATE EXTENSION pageinspect")
    cluster.postgres.execute("CREATE EXTENSION pg_buffercache")
    return Pages(cluster, archive, tmp_path)


class Damage:
    """A table of a cluster, with an index and a visibility map, and bits flipped in its files."""

    def __init__(self, pages: Pages) -> None:
        self.pages = pages
        self.primary = pages.primary
        self.primary.execute("CREATE INDEX ti ON t (g)")
        self.primary.execute("ALTER TABLE t SET (autovacuum_enabled = off)")
        self.primary.execute("VACUUM t")

    def where(self) -> list[str]:
        """Arguments of the commands."""
        safekeepers = [each.address for each in self.pages.cluster.safekeepers]
        return ["--archive", str(self.pages.archive), "--safekeepers", ",".join(safekeepers)]

    def path(self, name: str) -> str:
        ((path,),) = self.primary.execute("SELECT pg_relation_filepath(%s)", (name,))
        return str(path)

    def block(self) -> int:
        """A block of the table that contains rows."""
        ((block,),) = self.primary.execute(
            "SELECT split_part(trim('()' FROM max(ctid)::text), ',', 1)::int FROM t"
        )
        return int(block)

    def archive_wal(self) -> None:
        self.primary.execute("SELECT pg_switch_wal()")
        ((end,),) = self.primary.execute("SELECT pg_current_wal_lsn()::text")
        wait_until(
            lambda: Lsn.parse(archived(self.pages)) >= Lsn.parse(end), TIMEOUT, "the archive"
        )

    def flip(self, path: str, block: int, at: int, bits: int = 0xFF) -> tuple[int, int]:
        """Returns the offset of the byte, and its old value."""
        file = self.primary.data_dir / path
        content = bytearray(file.read_bytes())
        there = content[block * PAGE_BYTES + at]
        content[block * PAGE_BYTES + at] ^= bits
        file.write_bytes(content)
        return at, there


def in_tuple(server: Postgres, path: str, block: int) -> int:
    """The offset of a byte inside the first tuple of a heap page or an index page."""
    page = (server.data_dir / path).read_bytes()[block * PAGE_BYTES : (block + 1) * PAGE_BYTES]
    for (pointer,) in struct.iter_unpack("<I", page[24 : int.from_bytes(page[12:14], "little")]):
        if pointer >> 15 & 3 == 1:
            return (pointer & 0x7FFF) + (pointer >> 17) - 1
    raise AssertionError(f"no tuple in block {block} of {path}")


def test_damage_is_found_named_and_repaired(pages: Pages, tmp_path: Path) -> None:
    """In the files of a stopped server: heap, index, visibility map."""
    damage = Damage(pages)
    primary = pages.primary
    with pages.pageserver() as pageserver:
        pages.cut(pageserver)
    damage.archive_wal()
    table, index, block = damage.path("t"), damage.path("ti"), damage.block()
    where = damage.where()
    sound = sk("page", "check", primary.dsn(), *where, "--relation", "public.t")
    assert sound.returncode == 0, sound.stdout + sound.stderr
    assert " 0 damaged" in sound.stdout
    early = sk("page", "check", primary.data_dir, *where)
    assert_refused(early, 1, "before the first cut", "comparable after a later checkpoint")
    running = sk("page", "repair", primary.data_dir, table, block, *where, "--yes")
    assert_refused(running, 1, "a server is running in", "pg_ctl stop")
    primary.stop()

    before = {
        (table, block): damage.flip(table, block, in_tuple(primary, table, block)),
        (index, 1): damage.flip(index, 1, in_tuple(primary, index, 1)),
        (f"{table}_vm", 0): damage.flip(f"{table}_vm", 0, 24 + 4000, 0x01),
    }
    found = sk("page", "check", primary.data_dir, *where, "--json")
    assert found.returncode == 3, found.stderr
    report = json.loads(found.stdout)
    named = {(each["path"], each["block"]): each for each in report["damaged"]}
    assert set(named) == set(before), report
    assert report["checked"] > 500
    only = sk("page", "check", primary.data_dir, *where, "--relation", index)
    assert (only.returncode, f"block 1 of {index}: " in only.stdout) == (3, True)
    assert f"sk page repair {primary.data_dir} {index} 1" in only.stdout

    repair = ("page", "repair", primary.data_dir)
    first = (*repair, table, block, *where)
    dry = sk(*first, "--dry-run")
    assert (dry.returncode, "bytes differ, the first at" in dry.stdout) == (0, True), dry.stderr
    refused = sk(*first, stdin="no\n")
    assert (refused.returncode, "not confirmed" in refused.stderr) == (1, True), refused.stderr
    for (path, number), (at, there) in before.items():
        done = sk(*repair, path, number, *where, "--yes")
        assert done.returncode == 0, done.stderr
        file = (primary.data_dir / path).read_bytes()
        assert file[number * PAGE_BYTES + at] == there
        kept = Path(done.stdout.split("the old page is in ")[1].strip())
        assert kept.read_bytes()[at] != there
    again = sk(*first, "--yes")
    assert (again.returncode, "matches the WAL" in again.stdout) == (0, True)
    mended = sk("page", "check", primary.data_dir, *where)
    assert mended.returncode == 0, mended.stdout
    primary.start()
    assert primary.execute("SELECT count(*) FROM t") == [(4999,)]


def test_the_history_of_a_page(pages: Pages) -> None:
    damage = Damage(pages)
    primary = pages.primary
    with pages.pageserver() as pageserver:
        pages.cut(pageserver)
    primary.execute("INSERT INTO t VALUES (-1, 'last')")
    ((block, xid),) = primary.execute(
        "SELECT split_part(trim('()' FROM ctid::text), ',', 1)::int, xmin::text::bigint"
        " FROM t WHERE g = -1"
    )
    ((begin,),) = primary.execute("SELECT pg_current_wal_insert_lsn()::text")
    primary.execute("BEGIN; DELETE FROM t WHERE g = -1; ROLLBACK")
    damage.archive_wal()
    path, where = damage.path("t"), damage.where()
    found = sk_json("page", "history", path, block, *where)
    insert, delete = found["records"][-2:]
    assert (insert["xid"], insert["rmgr"], insert["outcome"]) == (xid, "Heap", "committed")
    assert insert["operation"] in ("INSERT", "INSERT+INIT")
    assert insert["time"] is not None
    assert (delete["operation"], delete["outcome"]) == ("DELETE", "aborted")
    assert found["missing"] == []
    assert set(found["cuts"]) <= {pageserver_cut(pages, where)}
    later = sk_json("page", "history", path, block, *where, "--from", begin)
    assert later["records"] == [delete]
    earlier = sk_json("page", "history", path, block, *where, "--to", begin)
    assert earlier["records"] == found["records"][:-1]
    shown = sk("page", "history", path, block, *where, "--from", "1 minute ago")
    assert "DELETE" in shown.stdout
    assert "aborted" in shown.stdout


def pageserver_cut(pages: Pages, where: list[str]) -> str:
    """The only cut."""
    ((path, block),) = pages.primary.execute("SELECT pg_relation_filepath('t'), 0")
    return str(sk_json("page", "get", path, block, *where)["cut"])


def test_checks_that_are_not_possible(pages: Pages, tmp_path: Path) -> None:
    damage = Damage(pages)
    where = damage.where()
    none = sk("page", "check", pages.primary.dsn(), *where)
    assert_refused(none, 1, "the archive has no cuts", "sk pageserver run")
    with pages.pageserver() as pageserver:
        pages.cut(pageserver)
    pages.primary.execute("CREATE UNLOGGED TABLE u AS SELECT 1 AS a")
    unlogged = sk("page", "check", pages.primary.dsn(), *where, "--relation", "u")
    assert_refused(unlogged, 1, "no page was checked", "Check another relation")
    odd = sk("page", "check", pages.primary.dsn(), *where, "--relation", "nothing.here")
    assert_refused(odd, 1, "relation nothing.here does not exist", "schema.table")
    gone = sk("page", "check", "host=127.0.0.1 port=1", *where)
    assert gone.returncode == 4, gone.stderr
    strange = sk("page", "check", tmp_path, *where)
    assert_refused(strange, 1, "could not read", "data directory")
    word = sk("page", "check", "nowhere", *where)
    assert (word.returncode, "is neither a directory" in word.stderr) == (2, True)


def test_checks_on_a_schedule(pages: Pages) -> None:
    """A page that is damaged under a running server is found, reported everywhere, and no longer
    reported when it is repaired."""
    damage = Damage(pages)
    primary = pages.primary
    checking = ("--check", primary.dsn(), "--check-seconds", "0.5", "--check-pages", "5000")
    with pages.pageserver(1, *checking) as pageserver:
        pages.cut(pageserver)
        wait_until(lambda: checks(pageserver).get("pages", 0) > 500, TIMEOUT, "pages to be checked")
        assert checks(pageserver)["damaged"] == []
        damage.archive_wal()
        path, block = damage.path("t"), damage.block()
        primary.execute("CHECKPOINT")
        primary.stop()
        at, _ = damage.flip(path, block, in_tuple(primary, path, block))
        primary.start()
        found = wait_until(lambda: checks(pageserver)["damaged"], TIMEOUT, "the damage")
        assert [(each["path"], each["block"]) for each in found] == [(path, block)]
        assert found[0]["relation"] == "public.t"
        assert f"block {block} of" in pageserver.timeline()["problem"]
        primary.stop()
        damage.flip(path, block, at)
        primary.start()
        wait_until(lambda: not checks(pageserver)["damaged"], TIMEOUT, "the end of the damage")
    assert pageserver.log_text().count("a page of the server is damaged") == 1


def checks(pageserver: Any) -> dict[str, Any]:
    return dict(http_get_status(pageserver.http_address).get("checks") or {})
