"""What must not be attached is refused in one sentence, and nothing has changed afterwards."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from sk_command import Done, assert_refused, sk

from pg_fixtures.binaries import PostgresBinaries
from pg_fixtures.data_directory import WAL_SEG_SIZE
from pg_fixtures.postgres import Postgres
from pg_fixtures.processes import ServiceProcess
from pg_fixtures.safekeeper import SafekeeperProcess
from pg_fixtures.waiting import wait_until

TIMEOUT = 30.0
NOBODY = "127.0.0.1:1"  # refuses every connection


@dataclass
class Parts:
    """A primary and three empty safekeepers, not attached."""

    postgres: Postgres
    safekeepers: list[SafekeeperProcess]

    @property
    def addresses(self) -> str:
        return ",".join(safekeeper.address for safekeeper in self.safekeepers)

    def state(self) -> tuple[Any, ...]:
        """All that an attach would change."""
        return (
            self.postgres.execute("SELECT slot_name, active FROM pg_replication_slots"),
            self.postgres.execute("SHOW synchronous_standby_names"),
            [safekeeper.status()["timelines"] for safekeeper in self.safekeepers],
        )


@pytest.fixture(scope="module")
def running_parts(
    pg_binaries: PostgresBinaries,
    initdb_template: Callable[[PostgresBinaries, int], Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Parts]:
    root = tmp_path_factory.mktemp("refusals")
    template = initdb_template(pg_binaries, WAL_SEG_SIZE)
    with ExitStack() as stack:
        safekeepers = [SafekeeperProcess(i, root / f"safekeeper-{i}") for i in (1, 2, 3)]
        for safekeeper in safekeepers:
            stack.callback(safekeeper.kill)
            safekeeper.start()
        postgres = stack.enter_context(Postgres(pg_binaries, root / "postgres", template=template))
        for safekeeper in safekeepers:
            safekeeper.wait_ready()
        yield Parts(postgres, safekeepers)


@pytest.fixture
def parts(running_parts: Parts) -> Iterator[Parts]:
    """Without the slots that a test may have left."""
    yield running_parts
    running_parts.postgres.execute(
        "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE NOT active"
    )


def attach(primary: str, safekeepers: str, *more: object) -> Done:
    http = ("--http", "127.0.0.1:0")
    return sk("attach", "--primary", primary, "--safekeepers", safekeepers, *http, *more)


def failures(primary: str, safekeepers: str) -> dict[str, str]:
    """Of `sk check`: what FAILs, and why."""
    members = ("--primary", primary, "--safekeepers", safekeepers)
    done = sk("check", *members, "--json")
    report = json.loads(done.stdout)
    found = {f["check"]: f["text"] for f in report["findings"] if f["level"] == "FAIL"}
    assert done.returncode == (3 if found else 0)
    assert report["passed"] == (not found)
    assert all(f["remedy"] for f in report["findings"] if f["level"] != "ok")
    return found


def test_what_fits_passes_the_check_and_is_not_changed_by_it(parts: Parts) -> None:
    before = parts.state()
    assert failures(parts.postgres.dsn(), parts.addresses) == {}
    assert parts.state() == before


def test_a_dsn_that_leads_nowhere(parts: Parts) -> None:
    before = parts.state()
    wrong = parts.postgres.dsn(port=1)
    done = attach(wrong, parts.addresses)
    assert_refused(done, 4, "could not connect to the primary", "Start it, or correct its")
    assert list(failures(wrong, parts.addresses)) == ["connection"]
    assert (
        "could not connect" in failures(parts.postgres.dsn(user="x"), parts.addresses)["connection"]
    )
    assert parts.state() == before


def test_a_safekeeper_address_that_leads_nowhere(parts: Parts) -> None:
    before = parts.state()
    members = f"{parts.safekeepers[0].address},{parts.safekeepers[1].address},{NOBODY}"
    done = attach(parts.postgres.dsn(), members)
    assert_refused(done, 4, f"a new timeline needs all safekeepers: could not connect to safekeep"
                   f"er {NOBODY}", "Once created")  # fmt: skip
    found = failures(parts.postgres.dsn(), members)
    assert list(found) == [f"safekeeper {NOBODY}", "timeline"]
    assert parts.state() == before


def test_a_safekeeper_address_that_leads_to_postgres(parts: Parts) -> None:
    before = parts.state()
    members = f"{parts.safekeepers[0].address},127.0.0.1:{parts.postgres.port}"
    done = attach(parts.postgres.dsn(), members)
    assert_refused(done, 4, "a new timeline needs all safekeepers", "Once created")
    assert parts.state() == before


def test_a_status_page_that_cannot_be_served(parts: Parts, tmp_path: Path) -> None:
    """Found out before anything is created."""
    before = parts.state()
    http = parts.safekeepers[0].http_address
    done = attach(parts.postgres.dsn(), parts.addresses, "--http", http)
    assert_refused(done, 1, f"could not listen on http {http}", "Choose another --http")
    (tmp_path / "cert").write_text("none")
    tls = ("--tls-cert", tmp_path / "cert", "--tls-key", tmp_path / "cert")
    done = attach(parts.postgres.dsn(), parts.addresses, *tls)
    assert_refused(done, 1, "could not load the TLS certificate")
    assert parts.state() == before


def test_two_safekeepers_with_one_id(parts: Parts, tmp_path: Path) -> None:
    before = parts.state()
    with SafekeeperProcess(1, tmp_path / "twin") as twin:
        members = f"{parts.addresses},{twin.address}"
        done = attach(parts.postgres.dsn(), members)
        assert_refused(done, 1, "have the same id 1", "its own --id")
        assert list(failures(parts.postgres.dsn(), members)) == ["safekeeper ids"]
        assert_refused(sk("status", "--safekeepers", members), 1, "have the same id 1", "--id")
        assert twin.status()["timelines"] == []
    assert parts.state() == before


def test_a_slot_held_by_somebody_else(parts: Parts, tmp_path: Path) -> None:
    postgres = parts.postgres
    postgres.execute("SELECT pg_create_physical_replication_slot('walproposer')")
    receiver = ServiceProcess(
        [postgres.binaries.program("pg_receivewal"), "-D", tmp_path, "-S", "walproposer"],
        log_path=tmp_path / "receiver.log",
        env=postgres.client_env,
    )
    active = "SELECT active_pid FROM pg_replication_slots WHERE active"
    with receiver:
        wait_until(lambda: postgres.execute(active), TIMEOUT, "pg_receivewal to take the slot")
        before = parts.state()
        done = attach(postgres.dsn(), parts.addresses)
        sentence = 'replication slot "walproposer" is used by "pg_receivewal"'
        assert_refused(done, 1, sentence, "Choose another slot")
        assert list(failures(postgres.dsn(), parts.addresses)) == ["slot"]
        assert parts.state() == before
    wait_until(lambda: not postgres.execute(active), TIMEOUT, "the slot to be free")


def test_a_slot_that_was_there_before_stays_after_a_refusal(parts: Parts) -> None:
    """And one that was not there is gone: `parts.state()` says so in all the tests above."""
    postgres = parts.postgres
    postgres.execute("SELECT pg_create_physical_replication_slot('walproposer', true)")
    before = parts.state()
    assert attach(postgres.dsn(), NOBODY).returncode == 4
    assert parts.state() == before


def test_a_standby_is_not_a_primary(parts: Parts, tmp_path: Path) -> None:
    before = parts.state()
    standby = parts.postgres.base_backup(tmp_path / "standby", "--write-recovery-conf")
    with standby:
        done = attach(standby.dsn(), parts.addresses)
        assert_refused(done, 1, "the server is a standby, not a primary", "Give the DSN of the")
        assert list(failures(standby.dsn(), parts.addresses)) == ["primary"]
        assert standby.execute("SELECT slot_name FROM pg_replication_slots") == []
    wait_until(
        lambda: not parts.postgres.execute("SELECT FROM pg_stat_replication"),
        TIMEOUT,
        "the standby to leave",
    )
    assert parts.state() == before


def test_wal_level_minimal(parts: Parts, postgres_factory: Callable[..., Postgres]) -> None:
    before = parts.state()
    minimal = postgres_factory(settings={"wal_level": "minimal", "max_wal_senders": 0})
    done = attach(minimal.dsn(), parts.addresses)
    assert_refused(done, 1, 'the primary has wal_level "minimal"', "ALTER SYSTEM SET wal_level")
    # No replication connection can be made without senders.
    found = failures(minimal.dsn(), parts.addresses)
    assert list(found) == ["role", "wal_level", "max_wal_senders"]
    assert minimal.execute("SELECT slot_name FROM pg_replication_slots") == []
    assert parts.state() == before


def test_settings_of_roles_and_databases_that_defeat_us(
    parts: Parts, postgres_factory: Callable[..., Postgres]
) -> None:
    before = parts.state()
    postgres = postgres_factory()
    postgres.execute("CREATE ROLE app LOGIN")
    postgres.execute("ALTER ROLE app SET synchronous_commit = off")
    postgres.execute("ALTER DATABASE template1 SET synchronous_commit = remote_apply")
    done = attach(postgres.dsn(user="app"), parts.addresses)
    assert_refused(done, 1, "could not create the replication slot", "REPLICATION; sk check")
    by_role = '"off" by ALTER ROLE app: such commits return before the quorum has them'
    assert failures(postgres.dsn(), parts.addresses) == {"synchronous_commit": by_role}
    found = failures(postgres.dsn(user="app"), parts.addresses)
    assert found["role"] == "role app may not replicate"
    assert postgres.execute("SELECT slot_name FROM pg_replication_slots") == []
    assert parts.state() == before


def test_a_timeline_of_another_primary(parts: Parts) -> None:
    """Named with --timeline, it is refused; the stranger keeps no slot."""
    facts = ("--system-id", 7, "--pg-version", 150000, "--start-lsn", "0/1000000")
    members = ("--safekeepers", parts.addresses)
    timeline = sk("timeline", "create", *members, *facts).stdout.strip()
    before = parts.state()
    done = attach(parts.postgres.dsn(), parts.addresses, "--timeline", timeline)
    assert_refused(done, 1, "the timeline belongs to 7", "Attach the primary this timeline was")
    assert parts.state() == before
    assert sk("timeline", "delete", timeline, *members, "--yes").returncode == 0
