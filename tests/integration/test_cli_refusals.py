"""`sk attach` refuses unsuitable servers and safekeepers with one error, and changes nothing."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from sk_command import Done, assert_refused, sk

from quorum_wal.pg_fixtures.data_directory import WAL_SEG_SIZE
from quorum_wal.pg_fixtures.postgres import Postgres
from quorum_wal.pg_fixtures.processes import ServiceProcess
from quorum_wal.pg_fixtures.safekeeper import SafekeeperProcess
from quorum_wal.pg_fixtures.waiting import wait_until
from quorum_wal.pg_server.binaries import PostgresBinaries

TIMEOUT = 120.0
ROOT = Path(__file__).parents[2]
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
        """Everything that `sk attach` could change."""
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
    """The parts, without slots of earlier tests."""
    yield running_parts
    running_parts.postgres.execute(
        "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE NOT active"
    )


def attach(primary: str, safekeepers: str, *more: object) -> Done:
    http = ("--http", "127.0.0.1:0")
    return sk("attach", "--primary", primary, "--safekeepers", safekeepers, *http, *more)


def failures(primary: str, safekeepers: str) -> dict[str, str]:
    """The findings of `sk check` with FAIL, and their reasons."""
    members = ("--primary", primary, "--safekeepers", safekeepers)
    done = sk("check", *members, "--json")
    report = json.loads(done.stdout)
    found = {f["check"]: f["text"] for f in report["findings"] if f["level"] == "FAIL"}
    assert done.returncode == (3 if found else 0)
    assert report["passed"] == (not found)
    assert all(f["remedy"] for f in report["findings"] if f["level"] != "ok")
    return found


def test_a_suitable_primary_passes_the_check_unchanged(parts: Parts) -> None:
    before = parts.state()
    assert failures(parts.postgres.dsn(), parts.addresses) == {}
    assert parts.state() == before


def test_a_dsn_without_a_server(parts: Parts) -> None:
    before = parts.state()
    wrong = parts.postgres.dsn(port=1)
    done = attach(wrong, parts.addresses)
    assert_refused(done, 4, "could not connect to the primary", "Start it, or correct its")
    assert list(failures(wrong, parts.addresses)) == ["connection"]
    assert (
        "could not connect" in failures(parts.postgres.dsn(user="x"), parts.addresses)["connection"]
    )
    assert parts.state() == before


@pytest.mark.parametrize(
    ("line", "user", "remedy"),
    [
        ("host all {user} 127.0.0.1/32 reject", "postgres", "Add a line to the server's pg_hba"),
        ("host replication {user} 127.0.0.1/32 reject", "postgres", "host replication "),
        ("host all,replication {user} 127.0.0.1/32 scram-sha-256", "postgres", "passfile=..."),
        ("", "nobody_of_that_name", "Create it on the server, or correct user=... and dbname=..."),
    ],
    ids=["everything", "replication", "password", "no such role"],
)
def test_for_a_server_that_refuses_the_role_no_hint_says_to_start_it(
    parts: Parts, line: str, user: str, remedy: str
) -> None:
    postgres = parts.postgres
    before = (postgres.data_dir / "pg_hba.conf").read_text()
    postgres.execute("CREATE ROLE kept_out SUPERUSER LOGIN REPLICATION PASSWORD 'x'")
    user = "kept_out" if line else user
    try:
        change_rules(postgres, f"{line.format(user=user)}\n{before}")
        dsn = postgres.dsn(user=user)
        members = ("--primary", dsn, "--safekeepers", parts.addresses)
        for done in (attach(dsn, parts.addresses), sk("check", *members)):
            assert done.returncode in (3, 4), done.stderr
            assert remedy in done.stdout + done.stderr
            assert "Start it" not in done.stdout + done.stderr
    finally:
        change_rules(postgres, before)
        postgres.execute("DROP ROLE kept_out")


def test_postgres_accepts_the_pg_hba_lines_of_the_docs(parts: Parts) -> None:
    texts = [(ROOT / name).read_text() for name in ("README.md", "docs/integrations.md")]
    found = [re.findall(r"^ +(?:- )?(host +all,replication .*)$", text, re.M) for text in texts]
    lines = [line for of_text in found for line in of_text]
    assert all(found)
    before = (parts.postgres.data_dir / "pg_hba.conf").read_text()
    try:
        change_rules(parts.postgres, "\n".join(lines) + f"\n{before}")
        rules = parts.postgres.execute(
            "SELECT database, user_name, error FROM pg_hba_file_rules ORDER BY line_number"
        )
    finally:
        change_rules(parts.postgres, before)
    wanted = (["all", "replication"], ["walproposer"], None)
    assert rules[: len(lines)] == [wanted] * len(lines)


def change_rules(postgres: Postgres, rules: str) -> None:
    """Change the rules for connections; new connections use them afterwards."""
    (postgres.data_dir / "pg_hba.conf").write_text(rules)
    (before,) = postgres.execute("SELECT pg_conf_load_time()")
    postgres.execute("SELECT pg_reload_conf()")
    wait_until(
        lambda: postgres.execute("SELECT pg_conf_load_time()") != [before], TIMEOUT, "the new rules"
    )


def test_a_safekeeper_address_without_a_safekeeper(parts: Parts) -> None:
    before = parts.state()
    members = f"{parts.safekeepers[0].address},{parts.safekeepers[1].address},{NOBODY}"
    done = attach(parts.postgres.dsn(), members)
    assert_refused(done, 4, f"a new timeline needs all safekeepers: could not connect to safekeep"
                   f"er {NOBODY}", "Once created")  # fmt: skip
    found = failures(parts.postgres.dsn(), members)
    assert list(found) == [f"safekeeper {NOBODY}", "timeline"]
    assert parts.state() == before


def test_a_safekeeper_address_of_a_postgres(parts: Parts) -> None:
    before = parts.state()
    members = f"{parts.safekeepers[0].address},127.0.0.1:{parts.postgres.port}"
    done = attach(parts.postgres.dsn(), members)
    hint = "A Postgres server runs at this address"
    assert_refused(done, 4, "a new timeline needs all safekeepers", hint)
    assert parts.state() == before


def test_a_status_page_that_cannot_be_served(parts: Parts, tmp_path: Path) -> None:
    """Detected before anything is created."""
    before = parts.state()
    http = parts.safekeepers[0].http_address
    done = attach(parts.postgres.dsn(), parts.addresses, "--http", http)
    assert_refused(done, 1, f"could not listen on http {http}", "Choose another --http")
    (tmp_path / "cert").touch(mode=0o600)
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


def test_a_slot_in_use_by_another_client(parts: Parts, tmp_path: Path) -> None:
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


def test_an_existing_slot_remains_after_a_refusal(parts: Parts) -> None:
    """A slot that did not exist is dropped: `parts.state()` checks this in all tests above."""
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
    found = failures(minimal.dsn(), parts.addresses)
    assert list(found) == ["wal_level", "max_wal_senders"]
    assert minimal.execute("SELECT slot_name FROM pg_replication_slots") == []
    assert parts.state() == before


def test_settings_of_roles_and_databases_that_bypass_the_quorum(
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
    """It is refused when --timeline names it; the other primary keeps no slot."""
    facts = ("--system-id", 7, "--pg-version", 150000, "--start-lsn", "0/1000000")
    members = ("--safekeepers", parts.addresses)
    timeline = sk("timeline", "create", *members, *facts).stdout.strip()
    before = parts.state()
    done = attach(parts.postgres.dsn(), parts.addresses, "--timeline", timeline)
    assert_refused(
        done, 1, "the timeline belongs to 7", "Attach the primary that this timeline was"
    )
    assert parts.state() == before
    assert sk("timeline", "delete", timeline, *members, "--yes").returncode == 0


# ---- damaged folders


@pytest.fixture
def damaged(parts: Parts) -> Iterator[tuple[Parts, str]]:
    """Two members cannot open their timeline of this primary, and the third has lost it."""
    create = ("timeline", "create", "--primary", parts.postgres.dsn())
    name = sk(*create, "--safekeepers", parts.addresses).stdout.strip()
    folders = [s.data_dir / "timelines" / name.replace("/", ".") for s in parts.safekeepers]
    for safekeeper in parts.safekeepers:
        safekeeper.terminate()
    control = bytearray((folders[0] / "control").read_bytes())
    control[20] ^= 1
    (folders[0] / "control").write_bytes(control)
    (folders[1] / "control").unlink()
    shutil.rmtree(folders[2])
    for safekeeper in parts.safekeepers:
        safekeeper.start()
    for safekeeper in parts.safekeepers:
        safekeeper.wait_until(lambda s=safekeeper: answers(s), TIMEOUT, "the status page")
    parts.postgres.execute("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots")
    yield parts, name
    done = sk("timeline", "delete", name, "--safekeepers", parts.addresses, "--yes")
    assert done.returncode == 0, done.stderr
    for safekeeper in parts.safekeepers:
        safekeeper.wait_ready()


def answers(safekeeper: SafekeeperProcess) -> bool:
    """It is not healthy, but answers."""
    try:
        return bool(safekeeper.status())
    except OSError:
        return False


def test_a_damaged_folder_is_a_timeline_that_exists(damaged: tuple[Parts, str]) -> None:
    parts, name = damaged
    before, members = parts.state(), ("--safekeepers", parts.addresses)
    status = sk("status", *members)
    assert status.returncode == 3
    assert f"timeline {name}" in status.stdout
    assert "DAMAGED: no member can open it: safekeeper 1" in status.stdout
    assert "runbook: docs/runbook.md#sktimelineunreadable" in status.stdout
    assert "does not exist" in status.stdout
    assert "empty" not in status.stdout
    assert "1 damaged, 2 damaged" in sk("timeline", "list", *members).stdout
    assert_refused(sk("timeline", "show", name, *members), 1, "cannot be opened", "repair it")

    folder = name.replace("/", ".")
    problem = f"cannot open timeline {folder}"
    primary = ("--primary", parts.postgres.dsn())
    assert_refused(attach(parts.postgres.dsn(), parts.addresses), 1, problem, "repair it")
    assert_refused(sk("timeline", "create", *primary, *members), 1, problem, "repair it")
    again = sk("timeline", "create", *primary, *members, "--timeline", name)
    assert_refused(again, 1, problem, "repair it")
    assert_refused(sk("elect", *members), 1, problem, "repair it")
    assert problem in failures(parts.postgres.dsn(), parts.addresses)["timeline"]
    assert parts.state() == before


def test_a_renamed_folder_may_be_a_timeline(parts: Parts) -> None:
    """If it were moved away, a member would have forgotten its promises, and all members would
    report an empty directory."""
    before, keeper = parts.state(), parts.safekeepers[0]
    folder = keeper.data_dir / "timelines" / "moved.aside"
    folder.mkdir()
    keeper.terminate()
    keeper.start()
    keeper.wait_until(lambda: answers(keeper), TIMEOUT, "the status page")
    try:
        done = attach(parts.postgres.dsn(), parts.addresses)
        assert_refused(done, 1, "does not have the name of a timeline", "repair it")
        status = sk("status", "--safekeepers", parts.addresses)
        assert (status.returncode, "DAMAGED" in status.stdout) == (3, True)
    finally:
        folder.rmdir()
        keeper.restart()
    assert parts.state() == before
