"""`sk timeline create` and `delete`: all or nothing, never twice, never by accident."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sk_command import assert_refused, assert_wrong_usage, sk, sk_json

from quorum_wal.pg_fixtures.postgres import Postgres
from quorum_wal.pg_fixtures.proposer import ProposerProcess
from quorum_wal.pg_fixtures.safekeeper import SafekeeperProcess

TIMEOUT = 120.0
NAME = "00000000000000000000000000000000/000000000000000000000000000000ab"
FACTS = ("--system-id", "7", "--pg-version", "150018", "--start-lsn", "0/1000000")

Keepers = list[SafekeeperProcess]


@pytest.fixture(scope="module")
def running_keepers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Keepers]:
    root = tmp_path_factory.mktemp("timelines")
    keepers = [SafekeeperProcess(i, root / f"safekeeper-{i}") for i in (1, 2, 3)]
    yield keepers
    for keeper in keepers:
        keeper.kill()


@pytest.fixture
def keepers(running_keepers: Keepers) -> Keepers:
    """Three running safekeepers, with no timelines except deleted ones."""
    for keeper in running_keepers:
        if not keeper.alive:
            keeper.start()
    for keeper in running_keepers:
        keeper.wait_ready(TIMEOUT)
    members = members_of(running_keepers)
    for timeline in sk_json("timeline", "list", *members):
        assert sk("timeline", "delete", timeline["timeline_id"], *members, "--yes").returncode == 0
    return running_keepers


def members_of(keepers: Keepers) -> tuple[str, str]:
    return ("--safekeepers", ",".join(keeper.address for keeper in keepers))


def states(keepers: Keepers) -> list[list[str]]:
    """The states of all timelines on each."""
    return [[t["state"] for t in keeper.status()["timelines"]] for keeper in keepers]


def create(keepers: Keepers, *more: str) -> str:
    done = sk("timeline", "create", *members_of(keepers), *FACTS, *more)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_timeline_from_facts(keepers: Keepers) -> None:
    name = create(keepers)
    assert states(keepers) == [["active"]] * 3
    (listed,) = sk_json("timeline", "list", *members_of(keepers))
    assert f"{listed['tenant_id']}/{listed['timeline_id']}" == name
    assert listed["system_id"] == "7"
    assert {m["status"]["start_lsn"] for m in listed["members"]} == {"0/1000000"}
    assert listed["condition"] == "NO PROPOSER"

    again = sk("timeline", "create", *members_of(keepers), *FACTS)
    assert_refused(again, 1, f"already has timeline {name} of this primary", "with --timeline")
    same = sk("timeline", "create", *members_of(keepers), *FACTS, "--timeline", name)
    assert_refused(same, 1, f"already has timeline {name} of this primary", "with --timeline")
    assert states(keepers) == [["active"]] * 3


def test_a_member_that_lost_its_data_is_not_given_the_timeline_again(
    keepers: Keepers, tmp_path: Path
) -> None:
    name = create(keepers)
    data_dir = keepers[2].data_dir
    keepers[2].kill()
    data_dir.rename(tmp_path / "data")
    keepers[2].start()
    keepers[2].wait_ready()
    (listed,) = sk_json("timeline", "list", *members_of(keepers))
    assert [m["state"] for m in listed["members"]] == ["active", "active", "lost its data"]
    again = sk("timeline", "create", *members_of(keepers), *FACTS, "--timeline", name)
    assert_refused(again, 1, f"has timeline {name}", "with --timeline")
    assert states(keepers) == [["active"], ["active"], []]


def test_a_timeline_needs_all_its_members(keepers: Keepers) -> None:
    keepers[1].kill()
    done = sk("timeline", "create", *members_of(keepers), *FACTS)
    assert_refused(done, 4, "a new timeline needs all safekeepers", "Start it")
    assert states([keepers[0], keepers[2]]) == [[], []]


@pytest.mark.parametrize(
    ("facts", "sentence"),
    [
        (FACTS[:4], "give --primary, or all of"),
        ((*FACTS[:4], "--start-lsn", "x"), "invalid LSN"),
        ((*FACTS[:4], "--start-lsn", "0/1000028"), "is not the start of a segment"),
        ((*FACTS, "--pg-version", "120022"), "is not one of Postgres 13 to 18"),
        ((*FACTS, "--primary", "host=x"), "--primary excludes"),
    ],
)
def test_invalid_facts(keepers: Keepers, facts: tuple[str, ...], sentence: str) -> None:
    done = sk("timeline", "create", *members_of(keepers), *facts)
    assert_wrong_usage(done, sentence)
    assert states(keepers) == [[], [], []]


def test_a_timeline_from_a_primary_is_what_attach_finds(
    keepers: Keepers, postgres_factory: Callable[..., Postgres], tmp_path: Path
) -> None:
    postgres = postgres_factory()
    members = members_of(keepers)
    done = sk("timeline", "create", *members, "--primary", postgres.dsn(), "--timeline", NAME)
    assert (done.returncode, done.stdout.strip()) == (0, NAME)
    slots = postgres.execute(
        "SELECT slot_name::text, restart_lsn IS NULL FROM pg_replication_slots ORDER BY 1"
    )
    assert slots == [(f"sk_log_{NAME.partition('/')[2]}", True), ("walproposer", False)]

    proposer = ProposerProcess(
        postgres.dsn(), [k.address for k in keepers], log_path=tmp_path / "proposer.log"
    )
    with proposer:
        proposer.wait_streaming(TIMEOUT)
        assert proposer.status()["timeline_id"] == NAME.partition("/")[2]
        live = sk("timeline", "delete", NAME, *members, "--yes")
        assert_refused(live, 1, "a proposer (127.0.0.1:", "stop the proposer first")
        assert states(keepers) == [["active"]] * 3


def test_a_deletion_is_confirmed_by_the_name(keepers: Keepers) -> None:
    name = create(keepers)
    timeline_id = name.partition("/")[2]
    delete = ("timeline", "delete", timeline_id, *members_of(keepers))
    for typed in ("", "y\n", f"{timeline_id[:-1]}\n"):
        done = sk(*delete, stdin=typed)
        assert done.returncode == 1
        assert "sk: error: not confirmed, nothing was deleted" in done.stderr
        assert states(keepers) == [["active"]] * 3
    done = sk(*delete, stdin=f"{timeline_id}\n")
    assert done.returncode == 0
    assert done.stdout.count(": deleted") == 3
    assert states(keepers) == [[], [], []]

    assert_refused(sk(*delete, "--yes"), 1, f"no safekeeper has timeline {name}", "timeline list")
    again = sk("timeline", "create", *members_of(keepers), *FACTS, "--timeline", name)
    assert_refused(again, 1, "was deleted; its name is never used again", "another id")
    assert states(keepers) == [[], [], []]


def test_a_deletion_names_the_members_where_it_failed(keepers: Keepers) -> None:
    name = create(keepers)
    keepers[0].kill()
    delete = ("timeline", "delete", name, *members_of(keepers), "--yes")
    done = sk(*delete)
    assert_refused(done, 4, "was not deleted on 1 of 3 safekeepers", "Run the command again")
    assert f"{keepers[0].address}: not deleted: could not connect" in done.stdout
    assert done.stdout.count(": deleted") == 2
    keepers[0].start()
    keepers[0].wait_ready()
    assert states(keepers) == [["active"], [], []]
    done = sk(*delete)
    assert done.returncode == 0
    assert done.stdout.count(": had none") == 2
    assert states(keepers) == [[], [], []]
