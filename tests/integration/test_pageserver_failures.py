"""The failures of docs/pageserver.md and docs/generations.md, with processes: the store, the port,
the numbers and the signals are real; cuts are made by hand (stepped_sk.py).

All requests one after the other: `python tests/integration/stepped_pages.py`.
"""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from s3_server import S3Server
from sk_command import Done, assert_refused, assert_wrong_usage, sk, sk_json
from stepped_pages import (
    STEPPED_SK,
    TENANT,
    TIMELINE,
    TIMEOUT,
    PagesWorld,
    SteppedPageserver,
    pages_world,
    run_step,
)

from quorum_wal.generations.client import GenerationClient
from quorum_wal.generations.messages import TenantAttachment
from quorum_wal.generations.suffix import Suffix
from quorum_wal.pageserver.objects.page_keys import TombstoneName
from quorum_wal.pg_fixtures.http_status import http_get, is_healthy
from quorum_wal.pg_fixtures.processes import ServiceProcess
from quorum_wal.pg_fixtures.proxy import TcpProxy
from quorum_wal.pg_fixtures.waiting import wait_until

NOWHERE = "0/0"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[PagesWorld]:
    with pages_world(tmp_path, str(tmp_path / "archive"), {}) as found:
        yield found


@pytest.fixture
def proxy(world: PagesWorld) -> Iterator[TcpProxy]:
    """A proxy to the generation service."""
    host, _, port = world.service.address.rpartition(":")
    with TcpProxy(host, int(port)) as found:
        yield found


def through(world: PagesWorld, proxy: TcpProxy, node_id: int, *arguments: str) -> SteppedPageserver:
    return SteppedPageserver(
        world, f"by-proxy-{node_id}", node_id,
        ["--generations", f"http://{proxy.address}", *arguments],
    )  # fmt: skip


def current(world: PagesWorld) -> TenantAttachment | None:
    (tenant,) = GenerationClient(world.service.url).status().tenants
    return tenant.current


# ---- two pageservers on one timeline


def test_a_pageserver_that_stopped_at_a_request_loses_nothing(world: PagesWorld) -> None:
    """For example with its claim made, an index being uploaded, or a list to delete."""
    world.place(2)
    with world.pageserver("newer", 2) as newer:
        newer.wait_cuts()
        for step, is_done in ((9, True), (23, False), (34, True)):
            run_step(world, newer, step, is_done=is_done, is_same_node=False)
        run_step(world, newer, 27, is_done=True, is_same_node=True)


def test_the_same_on_s3(tmp_path: Path) -> None:
    with S3Server(tmp_path / "s3.log") as server:
        url, options = server.new_bucket(), server.options()
        with pages_world(tmp_path, url, options) as world, world.pageserver("newer", 2) as newer:
            world.place(2)
            newer.wait_cuts()
            run_step(world, newer, 29, is_done=True, is_same_node=False)


# ---- the generation service


def test_while_the_service_is_down_cuts_continue_and_no_wal_is_released(world: PagesWorld) -> None:
    world.place(1)
    with world.pageserver("one", 1) as one:
        one.wait_cuts()
        one.wait_visible()
        world.service.kill()
        one.wait_until(lambda: one.status()["generation_service"] != "ok", TIMEOUT, "it to be seen")
        visible_lsn = one.timeline()["visible_lsn"]
        one.wait_cuts(5)
        assert (one.timeline()["visible_lsn"], one.timeline()["problem"]) == (visible_lsn, "")
        assert is_healthy(one.http_address)
        done = sk("pageserver", "status", one.http_address)
        assert (done.returncode, done.stderr) == (0, "")
        assert "OK\nthe generation service does not answer" in done.stdout
        one.kill()
        one.start()
        one.wait_until(lambda: is_waiting(one), TIMEOUT, "it to wait for a number")
        waiting = sk("pageserver", "status", one.http_address)
        assert (waiting.returncode, "UNWELL: not registered" in waiting.stdout) == (3, True)
        world.service.start()
        one.wait_attached()
        one.wait_visible()
        world.check()


def is_waiting(pageserver: SteppedPageserver) -> bool:
    try:
        page = pageserver.status()
    except OSError:
        return False
    return "is unavailable" in page["generation_service"] and not page["node_generation"]


def test_the_service_is_slow_and_then_silent_for_the_older_one(
    world: PagesWorld, proxy: TcpProxy
) -> None:
    world.place(1)
    with through(world, proxy, 1) as older, world.pageserver("newer", 2) as newer:
        older.wait_cuts()
        proxy.delay(0.4)
        older.wait_visible()
        proxy.stall()
        world.place(2)
        newer.wait_attached()
        newer.wait_visible()
        visible_lsn = older.timeline()["visible_lsn"]
        newer.wait_cuts(5)
        world.check()
        assert older.timeline()["visible_lsn"] == visible_lsn
        proxy.restore()
        world.check_until(lambda: older.timeline()["mode"] == "stale", "the older one to hear")
        newer.wait_visible()
        world.check()


def test_the_service_was_restored_from_an_old_copy(world: PagesWorld) -> None:
    """A pageserver that the old copy does not know exits, and finds its number used when it starts
    again; the former pageserver of the tenant is stale. An advance repairs all of this."""
    database = world.root / "numbers.sqlite"
    world.place(2)
    with world.pageserver("two", 2) as two:
        two.wait_cuts()
        with closing(sqlite3.connect(database)) as live:
            live.execute("VACUUM INTO ?", [str(world.root / "copy.sqlite")])
        world.place(1)
        with world.pageserver("one", 1) as one:
            one.wait_attached()
            one.wait_visible()
            world.service.kill()
            shutil.copy(world.root / "copy.sqlite", database)
            world.service.start()
            world.check_until(lambda: not one.alive and is_stale(two), "both to stop")
            assert "was restored from an old copy" in one.log_tail()
            one.start()
            assert one.wait(TIMEOUT) == 1
            assert "sk generations advance" in one.log_tail()
        client, newest = GenerationClient(world.service.url), max(world.claims())
        client.advance(TENANT, Suffix.parse(newest))
        two.wait_attached(above=newest)
        two.wait_visible()
        world.check()


def is_stale(pageserver: SteppedPageserver) -> bool:
    return bool(pageserver.timeline().get("mode") == "stale")


# ---- an emergency


def test_a_start_without_the_service_is_reported_to_it_later(world: PagesWorld) -> None:
    world.place(1)
    with world.pageserver("one", 1) as one:
        one.wait_cuts()
        one.wait_visible()
    given_up = world.given_up.read_text()
    lone = world.pageserver("one", 1, "--emergency")
    with lone:
        assert lone.wait(TIMEOUT) == 1
        assert "the generation service answers, so an emergency start is refused" in lone.log_tail()
        world.service.kill()
        lone.start()
        lone.wait_until(lambda: lone.timeline().get("mode") == "emergency", TIMEOUT, "its start")
        lone.wait_cuts(5)
        page = lone.status()
        assert (lone.timeline()["visible_lsn"], page["deleted_objects"]) == (NOWHERE, 0)
        assert world.given_up.read_text() == given_up
        done = sk("pageserver", "status", lone.http_address)
        assert (done.returncode, "nothing is deleted, no WAL is released" in done.stdout) == (
            0,
            True,
        )
        suffix = lone.suffix()
        world.service.start()
        lone.wait_attached()
        lone.wait_visible()
        assert (lone.suffix(), lone.status()["emergency"]) == (suffix, "")
        world.check()
    at = current(world)
    assert at is not None
    assert (at.node_id, at.attachment_generation) == (1, Suffix.parse(suffix).attachment_generation)


def test_an_emergency_of_one_that_cannot_reach_the_service(
    world: PagesWorld, proxy: TcpProxy
) -> None:
    """The other one continues with the service, until it sees the claim."""
    world.place(1)
    proxy.cut()
    with world.pageserver("one", 1) as one:
        one.wait_cuts()
        nothing = through(world, proxy, 2, "--emergency")
        with nothing:
            assert nothing.wait(TIMEOUT) == 1
            assert "was last attached to node 2" in nothing.log_tail()
            assert "--emergency-tenant" in nothing.log_tail()
        with through(world, proxy, 2, "--emergency", "--emergency-tenant", TENANT) as lone:
            world.check_until(lambda: is_stale(one), "the one before to see the claim")
            assert "is stale" in http_get(one.http_address, "/healthz")[1]
            lone.wait_cuts()
            world.check()
            proxy.restore()
            lone.wait_attached()
            lone.wait_visible()
            world.check()


def test_wrong_usage_of_an_emergency(tmp_path: Path) -> None:
    run = ("pageserver", "run", "--archive", tmp_path, "--safekeepers", "127.0.0.1:1",
           "--data-dir", tmp_path / "data")  # fmt: skip
    assert_wrong_usage(sk(*run, "--emergency"), "use sk generations advance")
    assert_wrong_usage(sk(*run, "--emergency-tenant", TENANT), "needs --emergency")


# ---- deletion


def delete(world: PagesWorld, *arguments: object, stdin: str = "") -> Done:
    return sk("pageserver", "delete-timeline", "--archive", world.url, TIMELINE, "--generations",
              world.service.url, *arguments, stdin=stdin)  # fmt: skip


def test_deleted_under_its_pageserver_and_killed_meanwhile(world: PagesWorld) -> None:
    world.place(1)
    with world.pageserver("one", 1) as one:
        one.wait_cuts()
        declined = delete(world, stdin="yes\n")
        assert (declined.returncode, "not confirmed, nothing was deleted" in declined.stderr) == (
            1,
            True,
        )
        assert "is attached to node 1 (single)" in declined.stderr
        one.wait_cuts()
        for step in (3, 5):  # the tombstone, and the object that is deleted first
            killed_at(world, step)
        done = delete(world, "--yes")
        assert done.returncode == 0, done.stderr
        assert "deleted for good" in done.stdout
        one.wait_until(lambda: one.status()["deleted_timelines"], TIMEOUT, "it to see that")
        wait_until(lambda: [*world.objects.pages()] == [TombstoneName()], TIMEOUT, "all to go")
        assert one.status()["deleted_timelines"] == [str(TIMELINE)]
        assert is_healthy(one.http_address)
        status = sk("pageserver", "status", one.http_address)
        assert (status.returncode, "its pages were deleted for good" in status.stdout) == (0, True)
        one.kill()
        one.start()
        one.wait_until(lambda: is_told(one), TIMEOUT, "a second start to say so")
        assert f"{TIMELINE.timeline_id.hex()} of tenant {TENANT} was deleted" in one.log_text()
    assert [*world.objects.pages()] == [TombstoneName()]
    again = sk_delete_json(world)
    assert (again["objects"], again["node_id"]) == (0, 1)


def killed_at(world: PagesWorld, step: int) -> None:
    """Run the command, killed at that request."""
    command = ServiceProcess(
        [*STEPPED_SK, "pageserver", "delete-timeline", str(TIMELINE), "--yes",
         "--archive", world.url, "--generations", world.service.url],
        log_path=world.root / "delete.log",
        env={"STEP_AT": str(step), "STEP_SIGNAL": "KILL",
             "STEP_LOG": str(world.root / "delete.steps")},
    )  # fmt: skip
    with command:
        assert command.wait(TIMEOUT) == -9


def is_told(pageserver: SteppedPageserver) -> bool:
    try:
        return bool(pageserver.status()["deleted_timelines"])
    except OSError:
        return False


def sk_delete_json(world: PagesWorld) -> Any:
    return sk_json("pageserver", "delete-timeline", "--archive", world.url, TIMELINE,
                   "--generations", world.service.url, "--yes")  # fmt: skip


def test_a_service_that_knows_less_than_the_store_deletes_nothing(world: PagesWorld) -> None:
    world.place(1)
    unknown = delete(world, "--yes")
    assert_refused(unknown, 1, f"has no pages of timeline {TIMELINE}", "sk archive status")
    above = Suffix.pack(7, 1, 1)
    world.objects.create_claim(above, "someone")
    stale = delete(world, "--yes")
    assert_refused(stale, 1, f"found a claim {above}", f"advance {TENANT} {above}")
    assert not world.objects.is_deleted()
    world.service.kill()
    assert_refused(delete(world, "--yes"), 4, "is unavailable", "Start the service")


# ---- status


def test_status_of_another_port(world: PagesWorld) -> None:
    assert_refused(sk("pageserver", "status", world.service.address), 4,
                   "expected the status page of a pageserver", "Give the --http")  # fmt: skip
    world.service.kill()
    assert_refused(
        sk("pageserver", "status", world.service.address), 4, "does not answer", "Start it"
    )
