"""The WAL that safekeepers keep for a pageserver: which pageserver they accept, how much, how
long."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from replication_client import ReplicationClient, ServerError
from restored import SEGMENT_BYTES, TIMEOUT, archiving
from sk_command import assert_refused, sk
from test_pageserver import Pages, generation_service

from quorum_wal.pg_fixtures.cluster import QuorumCluster
from quorum_wal.pg_fixtures.pageserver import PageserverProcess
from quorum_wal.pg_fixtures.safekeeper import SafekeeperProcess
from quorum_wal.pg_fixtures.standby import replica_conninfo
from quorum_wal.pg_fixtures.waiting import wait_until
from quorum_wal.pgwal.lsn import Lsn
from quorum_wal.pgwire.replication import StandbyStatus

MB = 1 << 20
FILL = "SELECT pg_logical_emit_message(true, 'fill', repeat('x', {} << 20))"
OLD, NEW = "0000070003000001", "0000080001000001"


def timeline_of(safekeeper: SafekeeperProcess) -> dict[str, Any]:
    timeline = safekeeper.timeline()
    assert timeline is not None
    return timeline


def name_of(timeline: dict[str, Any]) -> str:
    return f"{timeline['tenant_id']}/{timeline['timeline_id']}"


def wait_known(safekeeper: SafekeeperProcess, suffix: str, horizon_lsn: str | None) -> None:
    def is_so() -> bool:
        known = timeline_of(safekeeper)["pageserver"]
        return bool(known) and (known["suffix"], known["horizon_lsn"]) == (suffix, horizon_lsn)

    wait_until(is_so, TIMEOUT, f"pageserver {suffix} at {horizon_lsn}")


def wait_held(safekeeper: SafekeeperProcess, holder: str, *, below: str) -> str:
    """Return when it holds WAL and the rest is removed, at least `below` bytes; returns the start
    of the WAL."""

    def begins() -> str | None:
        timeline = timeline_of(safekeeper)
        retention, begin = timeline["retention"], str(timeline["local_start_lsn"])
        is_done = retention["held_by"] == holder and retention["keep_lsn"] == begin
        return begin if is_done and Lsn.parse(begin) >= Lsn.parse(below) else None

    return wait_until(begins, TIMEOUT, f"WAL to be held by {holder}")


def wait_begins(safekeeper: SafekeeperProcess, lsn: int) -> None:
    wait_until(
        lambda: Lsn.parse(timeline_of(safekeeper)["local_start_lsn"]) >= lsn, TIMEOUT, "WAL to go"
    )


def start(client: ReplicationClient, lsn: str, suffix: str) -> None:
    client.start(f"START_REPLICATION {lsn} (pageserver '{suffix}')")


def refused(client: ReplicationClient, lsn: str, suffix: str) -> ServerError:
    with pytest.raises(ServerError) as refusal:
        client.command(f"START_REPLICATION {lsn} (pageserver '{suffix}')")
    return refusal.value


def applied(client: ReplicationClient, lsn: int) -> None:
    """It has received much more."""
    client.send(StandbyStatus(1 << 40, 1 << 40, lsn, 0))


def test_the_newest_pageserver_holds_wal_and_an_older_one_is_refused(
    quorum_cluster: Callable[..., QuorumCluster],
) -> None:
    cluster = quorum_cluster(
        wal_seg_size=MB,
        safekeeper_arguments=["--wal-keep-size=2MB", "--max-slot-wal-keep-size=24MB"],
    )
    primary, keeper = cluster.postgres, cluster.safekeepers[0]
    conninfo = replica_conninfo([keeper.address])
    begin = timeline_of(keeper)["local_start_lsn"]
    with ReplicationClient(conninfo) as old, ReplicationClient(conninfo) as new:
        for text in ("7", "zz", OLD.replace("7", "g")):
            assert "22023: option" in str(refused(old, begin, text))
        start(old, begin, OLD)
        wait_known(keeper, OLD, None)  # before it has reported anything
        primary.execute(FILL.format(10))
        end = primary.flush_lsn()
        old.receive_wal(Lsn.parse(begin), end)
        wait_held(cluster.safekeepers[1], "wal_keep", below=str(Lsn(end - 5 * MB)))
        wait_held(keeper, "pageserver", below=begin)
        assert timeline_of(keeper)["local_start_lsn"] == begin
        applied(old, end - 8 * MB)
        held = wait_held(keeper, "pageserver", below=str(Lsn(end - 9 * MB)))
        assert Lsn.parse(held) <= end - 8 * MB
        applied(old, end - 9 * MB)  # it never goes back
        forgetting = ("timeline", "forget-pageserver", "--safekeepers", keeper.address,
                      name_of(timeline_of(keeper)))  # fmt: skip
        assert_refused(sk(*forgetting), 1, "have not forgotten", "Stop it first")

        start(new, held, NEW)
        while old.receive() is not None:
            applied(old, end)
        with pytest.raises(ServerError, match=f"55006: pageserver {OLD} is stale: {NEW} has"):
            old.results()
        refusal = refused(old, held, OLD)
        assert (refusal.sqlstate, "sk generations advance" in refusal.hint) == ("55006", True)
        wait_known(keeper, NEW, str(Lsn(end - 8 * MB)))  # until it reports its own
        old.command("IDENTIFY_SYSTEM")  # the session is still usable, and stock clients are served
        start(old, held, NEW)

    keeper.restart()
    wait_known(keeper, NEW, str(Lsn(end - 8 * MB)))
    with ReplicationClient(conninfo) as old:
        assert refused(old, held, OLD).sqlstate == "55006"
    for _ in range(3):
        primary.execute(FILL.format(10))
    limited = wait_held(keeper, "pageserver", below=str(Lsn(end + 4 * MB)))
    assert Lsn.parse(limited) <= primary.flush_lsn() - 20 * MB
    done = sk(*forgetting)
    assert f"{keeper.address}: forgotten" in done.stdout.splitlines(), done.stderr
    assert done.stdout.count(": knew none") == 2  # of the members that were not named
    wait_held(keeper, "wal_keep", below=str(Lsn(primary.flush_lsn() - 5 * MB)))
    assert timeline_of(keeper)["pageserver"] is None
    assert sk(*forgetting).stdout.count(": knew none") == 3


@pytest.fixture
def pages(quorum_cluster: Callable[..., QuorumCluster], tmp_path: Path) -> Pages:
    archive = tmp_path / "archive"
    arguments = [*archiving(archive), "--wal-keep-size=1MB"]
    cluster = quorum_cluster(wal_seg_size=SEGMENT_BYTES, safekeeper_arguments=arguments)
    return Pages(cluster, archive, tmp_path)


def horizons(pages: Pages) -> set[str | None]:
    known = [timeline_of(keeper)["pageserver"] for keeper in pages.cluster.safekeepers]
    return {each["horizon_lsn"] if each else "nobody" for each in known}


def wait_told(pages: Pages, pageserver: PageserverProcess) -> dict[str, Any]:
    """Return when every safekeeper knows from where its newest cut needs WAL; returns the
    pageserver's page."""

    def is_told() -> dict[str, Any] | None:
        page = pageserver.timeline()
        return page if horizons(pages) == {page.get("projected_lsn", "-")} else None

    return wait_until(is_told, TIMEOUT, "all safekeepers to be told what may go")


def test_only_validated_cuts_release_wal_on_all_safekeepers(pages: Pages, tmp_path: Path) -> None:
    """While the generation service is down; after a restart; with a pageserver that does not know
    that it was replaced."""
    tenant = next(pages.archive.glob("*/*/timeline.json")).parts[-3]
    keepers = pages.cluster.safekeepers
    with generation_service(tmp_path) as service:
        asked = ("--service", service.url)
        served = ("--generations", service.url)
        assert sk("generations", "attach", tenant, "--node", 1, *asked).returncode == 0
        with pages.pageserver(1, *served) as first:
            pages.cut(first)
            told = wait_told(pages, first)
            service.kill()
            for _ in range(2):
                pages.primary.execute(FILL.format(3))
                down = pages.cut(first)
            assert down["visible_lsn"] == told["visible_lsn"] != down["projected_lsn"]
            keepers[0].restart()
            pages.cut(first)
            for keeper in keepers:
                begin = wait_held(keeper, "pageserver", below="0/0")
                assert Lsn.parse(begin) <= Lsn.parse(told["visible_lsn"])
                # One that was killed may have forgotten it: the report is repeated.
                wait_known(keeper, told["suffix"], told["visible_lsn"])
            service.restart()
            again = wait_told(pages, first)
            for keeper in keepers:
                wait_begins(keeper, Lsn.parse(told["visible_lsn"]) + SEGMENT_BYTES)

            first.pause()
            assert sk("generations", "move", tenant, "--node", 2, *asked).returncode == 0
            with pages.pageserver(2, *served) as second:
                pages.cut(second)
                told = wait_told(pages, second)
                assert told["suffix"] > again["suffix"]
                for keeper in keepers:
                    wait_known(keeper, told["suffix"], told["visible_lsn"])
                service.kill()
                first.resume()  # the service cannot inform it, but the safekeepers do
                stale = first.wait_until(
                    lambda: says_stale(first), TIMEOUT, "the first to be refused"
                )
                assert f"{told['suffix']} has the timeline" in stale["problem"]
                assert stale["mode"] == "single"
                assert horizons(pages) == {told["visible_lsn"]}


def says_stale(pageserver: PageserverProcess) -> dict[str, Any] | None:
    page = pageserver.timeline()
    return page if "is stale" in page.get("problem", "") else None
