"""A pageserver from its start to the first table: its role, its first cut, owner and privileges."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from restored import SEGMENT_BYTES, TIMEOUT, archiving
from sk_command import Done, assert_refused, assert_wrong_usage, sk
from test_pageserver import Pages, archived
from test_who_may_connect import PASSWORD, VERIFIER

from quorum_wal.pg_fixtures.cluster import QuorumCluster
from quorum_wal.pg_fixtures.pageserver import PageserverProcess
from quorum_wal.pg_fixtures.waiting import wait_until
from quorum_wal.pgwal.lsn import Lsn

USERS = {"primary1": "proposer", "pages1": "replica"}
#: So far that no lag on a small database can be an absolute position by accident.
SEGMENTS_BEFORE = 24
NAME = "postgres.public.t"


def login(user: str, password: str = PASSWORD) -> tuple[str, str]:
    return "--safekeeper-conninfo", f"user={user} password='{password}'"


@pytest.fixture
def pages(quorum_cluster: Callable[..., QuorumCluster], tmp_path: Path) -> Pages:
    """Safekeepers with users."""
    users, archive = tmp_path / "users", tmp_path / "archive"
    users.touch(0o600)
    users.write_text("".join(f"{user}:{role}:{VERIFIER}\n" for user, role in USERS.items()))
    cluster = quorum_cluster(
        wal_seg_size=SEGMENT_BYTES,
        safekeeper_arguments=[*archiving(archive), "--user-file", str(users)],
        proposer_arguments=login("primary1"),
    )
    for _ in range(SEGMENTS_BEFORE):
        cluster.postgres.execute("SELECT pg_logical_emit_message(false, 'x', 'x'), pg_switch_wal()")
    return Pages(cluster, archive, tmp_path)


def restore(pages: Pages, at_lsn: str, *arguments: object) -> Done:
    where = ("--archive", pages.archive, "--at-lsn", at_lsn)
    return sk("table", "restore", NAME, *where, *arguments)


def test_from_its_start_to_the_first_table(pages: Pages) -> None:
    check_refused_users(pages)
    with pages.pageserver(1, *login("pages1")) as pageserver:
        check_before_the_first_cut(pages, pageserver)
        check_status_addresses(pageserver)
        pages.primary.execute("CREATE ROLE app; CREATE ROLE reporting; CREATE ROLE plain LOGIN")
        pages.primary.execute("ALTER TABLE t OWNER TO app; GRANT SELECT ON t TO reporting")
        pages.checkpoint()
        waited = sk("pageserver", "status", pageserver.http_address, "--wait", TIMEOUT)
        assert waited.returncode == 0, waited.stderr
        assert "no table can be restored yet" not in waited.stdout
        pages.cut(pageserver)
    check_owner_and_privileges(pages)


def check_refused_users(pages: Pages) -> None:
    """A wrong role, a wrong password: it does not start, and says what to change."""
    for user, says, remedy in (
        (login("primary1"), 'permission denied for user "primary1": IDENTIFY_SYSTEM needs the role'
         " replica or admin", "sk user add"),
        (login("pages1", "wrong"), "password authentication failed", "Correct the user or its p"),
    ):  # fmt: skip
        with pages.pageserver(1, *user) as pageserver:
            assert pageserver.wait(TIMEOUT) == 1
            log = pageserver.log_text()
            assert "sk: error: the safekeepers refuse this pageserver: " in log
            assert says in log
            assert remedy in log
            assert "could not receive WAL" not in log


def check_before_the_first_cut(pages: Pages, pageserver: PageserverProcess) -> None:
    ((begin,),) = pages.primary.execute("SELECT pg_current_wal_flush_lsn()::text")
    assert Lsn.parse(begin) > SEGMENTS_BEFORE * SEGMENT_BYTES
    waiting = pageserver.wait_until(
        lambda: (
            "CHECKPOINT" in pageserver.timeline().get("first_cut", "") and pageserver.timeline()
        ),
        TIMEOUT,
        "the first cut to wait for a checkpoint",
    )
    assert waiting["lag_bytes"] < 8 * SEGMENT_BYTES
    status = sk("pageserver", "status", pageserver.http_address)
    assert status.returncode == 0, status.stderr
    assert "no table can be restored yet: the first cut waits for a checkpoint" in status.stdout
    waited = sk("pageserver", "status", pageserver.http_address, "--wait", 1)
    assert (waited.returncode, "the first cut waits for" in waited.stdout) == (3, True)
    assert waited.stderr.startswith("waiting: timeline ")
    early = restore(pages, begin, "--dump", pages.root / "early.sql")
    assert_refused(early, 1, "the archive has no cuts", "its first cut is not finished")


def check_status_addresses(pageserver: PageserverProcess) -> None:
    address = pageserver.http_address
    assert sk("pageserver", "status", f"http://{address}/").returncode == 0
    encrypted = sk("pageserver", "status", f"https://{address}")
    assert_refused(encrypted, 4, f"status page https://{address} does not answer", "Start it")
    for wrong in ("http://", f"ftp://{address}", "localhost"):
        assert_wrong_usage(sk("pageserver", "status", wrong), "is not HOST:PORT or a URL")


def check_owner_and_privileges(pages: Pages) -> None:
    primary = pages.primary
    ((target,),) = primary.execute("SELECT pg_current_wal_insert_lsn()::text")
    primary.execute("SELECT pg_switch_wal()")
    wait_until(lambda: Lsn.parse(archived(pages)) >= Lsn.parse(target), TIMEOUT, "the archive")
    for name in ("kept", "unowned", "plain", "later"):
        primary.execute(f"CREATE DATABASE {name}")
    primary.execute("ALTER DATABASE plain OWNER TO plain")

    def into(name: str, *arguments: object, user: str = "postgres") -> tuple[str, str, str]:
        """What it prints as a warning, the owner, whether reporting may read."""
        dsn = primary.dsn(dbname=name, user=user)
        done = restore(pages, target, "--to", dsn, *arguments)
        assert done.returncode == 0, done.stderr
        assert done.stdout == f"{NAME} is restored\n"
        warnings = [line for line in done.stderr.splitlines() if line.startswith("WARNING")]
        ((owner, acl),) = primary.execute(
            "SELECT pg_get_userbyid(relowner), coalesce(relacl::text, '') FROM pg_class"
            " WHERE oid = 't'::regclass", dbname=name)  # fmt: skip
        return "\n".join(warnings), owner, "reporting=r/" in acl

    assert into("kept") == ("", "app", True)
    assert into("unowned", "--no-owner", "--no-privileges") == ("", "postgres", False)
    said, owner, may_read = into("plain", user="plain")
    assert (owner, may_read) == ("plain", True)
    assert said == (
        'WARNING: the owner is not restored: "plain" may not set the owner "app"; '
        'the objects belong to "plain"'
    )
    primary.execute("ALTER ROLE app RENAME TO app2; ALTER ROLE reporting RENAME TO reporting2")
    said, owner, may_read = into("later")
    assert (owner, may_read) == ("postgres", False)
    assert said.splitlines() == [
        'WARNING: the owner is not restored: the target has no role "app"; '
        'the objects belong to "postgres"',
        'WARNING: privileges are not restored: the target has no role "reporting"',
    ]
    unowned, owned = pages.root / "unowned.sql", pages.root / "owned.sql"
    assert restore(pages, target, "--dump", owned).returncode == 0
    assert "ALTER TABLE public.t OWNER TO app;" in owned.read_text()
    assert restore(pages, target, "--dump", unowned, "--no-owner").returncode == 0
    assert "OWNER TO" not in unowned.read_text()
    assert "GRANT SELECT ON TABLE public.t TO reporting;" in unowned.read_text()
    rows = restore(pages, target, "--copy", pages.root / "t.csv", "--no-owner")
    assert_wrong_usage(rows, "--no-owner and --no-privileges need --to or --dump")
