"""docs/runbook.md, followed by a test: real faults cause a state, `sk status` reports the verdict,
the commands of the page are run, and the test waits for the end that the page names."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from altered_setting import altered
from archive_folder import give_back, take_away
from hand_written_proposer import create_timeline
from members_world import MembersWorld
from qsync_world import SETTINGS, qsync_arguments
from runbook_page import read_entries
from runbook_shell import POSTGRES_UNIT, RunbookShell, postgres_unit, service_unit
from sk_command import sk
from test_cli_protection import come_first, receiver
from test_cli_states import (
    State,
    disk_full,
    healthy,
    no_standby_names,
    one_member_down,
    primary_down,
    primary_hung,
    proposer_down,
    proposer_hung,
    two_members_down,
)

from quorum_wal.consensus.ids import TimelineId
from quorum_wal.consensus.messages import ServerFacts
from quorum_wal.pg_fixtures.cluster import QuorumCluster
from quorum_wal.pg_fixtures.generations import GenerationProcess
from quorum_wal.pg_fixtures.ports import free_port
from quorum_wal.pg_fixtures.postgres import Postgres
from quorum_wal.pg_fixtures.proposer import ProposerProcess
from quorum_wal.pg_fixtures.standby import wait_replayed
from quorum_wal.pg_fixtures.waiting import wait_until

TIMEOUT = 120.0
SEGMENT_BYTES = 1 << 20
QSYNC_PORT = free_port()


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("store") / "archive"


@pytest.fixture(scope="module")
def cluster_options(archive: Path) -> dict[str, Any]:
    return {
        "proxied": True,
        "settings": SETTINGS,
        "safekeeper_arguments": [f"--archive={archive}", "--archive-partial-interval=1"],
        "proposer_arguments": qsync_arguments(QSYNC_PORT),
    }


def shell_of(cluster: QuorumCluster, folder: Path, **variables: str) -> RunbookShell:
    """The shell of an operator of this cluster."""
    if shutil.which("psql") is None:
        pytest.skip("psql is not installed: apt-get install postgresql-client")
    units = {
        "sk-safekeeper": [service_unit(safekeeper) for safekeeper in cluster.safekeepers],
        "sk-proposer": [service_unit(cluster.proposer)],
        POSTGRES_UNIT: [postgres_unit(cluster.postgres)],
    }
    addresses = ",".join(safekeeper.address for safekeeper in cluster.safekeepers)
    http = f"http://{cluster.safekeepers[1].http_address}"
    known = {"SAFEKEEPERS": addresses, "DSN": cluster.postgres.dsn(), "HTTP": http}
    return RunbookShell(folder / "bin", units, {**known, **variables})


# ---- states of this page only


@contextmanager
def members_hung(cluster: QuorumCluster, folder: Path) -> Iterator[None]:
    for safekeeper in cluster.safekeepers[1:]:
        safekeeper.pause()
    yield


@contextmanager
def no_quorum_to_elect(cluster: QuorumCluster, folder: Path) -> Iterator[None]:
    """The primary restarts while the quorum is lost: the proposer needs a new term."""
    for safekeeper in cluster.safekeepers[1:]:
        safekeeper.kill()
    cluster.postgres.crash()
    cluster.postgres.start()
    yield


@contextmanager
def no_quorum_to_start_with(cluster: QuorumCluster, folder: Path) -> Iterator[None]:
    """Too few safekeepers answer a proposer that starts: it exits, or it waits."""
    cluster.proposer.kill()
    for safekeeper in cluster.safekeepers[1:]:
        safekeeper.kill()
    cluster.proposer.start()
    yield


@contextmanager
def another_client_in_the_seat(cluster: QuorumCluster, folder: Path) -> Iterator[None]:
    come_first(cluster)
    with receiver(cluster, folder / "seat", "walproposer") as intruder:
        cluster.proposer.kill()
        yield
        intruder.wait(TIMEOUT)  # the page has ended its connection


@contextmanager
def promised_to_another(cluster: QuorumCluster, folder: Path) -> Iterator[None]:
    """The proposer keeps one safekeeper; the two others promise to an election that ends there."""
    first, *others = cluster.safekeepers
    for proxy in cluster.proxies[1:]:
        proxy.cut()
    first.pause()
    done = sk("elect", "--safekeepers", ",".join(safekeeper.address for safekeeper in others))
    first.resume()
    assert done.returncode == 0, done.stderr
    yield


#: The verdict, which is also the entry; the state; the blocks of commands that repair it.
WALK: list[tuple[str, State, tuple[int, ...]]] = [
    ("OK", healthy, (0,)),
    ("DEGRADED", one_member_down, (0,)),
    ("BLOCKED", two_members_down, (0,)),
    ("BLOCKED", members_hung, (1,)),
    ("HUNG", proposer_hung, (0,)),
    ("HUNG", primary_hung, (1,)),
    ("ELECTION", no_quorum_to_elect, (0,)),
    ("NO PRIMARY", primary_down, (0,)),
    ("NO PROPOSER", proposer_down, (0,)),
    ("NO PROPOSER", no_quorum_to_start_with, (1,)),
    ("UNPROTECTED", no_standby_names, (0,)),
    ("UNPROTECTED", another_client_in_the_seat, (1,)),
]  # fmt: skip


@pytest.mark.parametrize(
    ("entry", "state", "blocks"), WALK, ids=[state.__name__ for _, state, _ in WALK]
)
def test_the_commands_of_an_entry_end_its_state(
    cluster: QuorumCluster, tmp_path: Path, entry: str, state: State, blocks: tuple[int, ...]
) -> None:
    shell = shell_of(cluster, tmp_path)
    with state(cluster, tmp_path):
        shell.wait_verdict(entry)
        shell.do(entry, *blocks)
        shell.wait_over()


def test_a_fenced_proposer_is_restarted(cluster: QuorumCluster, tmp_path: Path) -> None:
    """No standby was promoted: the same primary continues."""
    shell = shell_of(cluster, tmp_path, STANDBY="host=127.0.0.1 port=1")
    with promised_to_another(cluster, tmp_path):
        shell.wait_verdict("FENCED")
        assert "primary" in shell.do("FENCED", 0)
        for proxy in cluster.proxies[1:]:
            proxy.restore()
        shell.do("FENCED", 1)
        shell.wait_over()


def test_a_synchronous_commit_that_does_not_wait(cluster: QuorumCluster, tmp_path: Path) -> None:
    shell = shell_of(cluster, tmp_path)
    with altered(cluster.postgres, "synchronous_commit", "local"):
        shell.wait_verdict("UNPROTECTED")
        shell.run(read_entries()["UNPROTECTED"].blocks[0][-1])
        shell.wait_over()


def test_an_unfinished_timeline_is_deleted(cluster: QuorumCluster, tmp_path: Path) -> None:
    timeline = TimelineId(secrets.token_bytes(16), secrets.token_bytes(16))
    server = ServerFacts(1_234_567, 150018, SEGMENT_BYTES)
    safekeeper = cluster.safekeepers[0]
    create_timeline(
        safekeeper.address,
        timeline,
        server,
        members=(1, 2, 3),
        start_lsn=SEGMENT_BYTES,
        activate=False,
    )
    shell = shell_of(cluster, tmp_path, TIMELINE=str(timeline))
    shell.wait_verdict("UNFINISHED")
    shell.do("UNFINISHED", 0, 1)
    shell.wait_over()
    assert str(timeline) not in shell.look()


def test_a_full_disk_is_named_and_what_holds_it(cluster: QuorumCluster, tmp_path: Path) -> None:
    """The last step, more space, ends the state here."""
    shell = shell_of(cluster, tmp_path)
    with disk_full(cluster, tmp_path):
        # The first DEGRADED may be about its connection.
        wait_until(
            lambda: "free some space" in " ".join(shell.look().split()), TIMEOUT, "the reason"
        )
        seen = shell.do("SkDiskFull", 0)
        assert "held by" in seen
        assert "Filesystem" in seen
        assert "free some space" in " ".join(shell.do("SkTimelineStopped", 0).split())
    cluster.safekeepers[1].wait_ready()
    shell.wait_over()


def test_a_slot_is_dropped(cluster: QuorumCluster, tmp_path: Path) -> None:
    keeper = cluster.safekeepers[1]
    host, _, port = keeper.address.rpartition(":")
    conninfo = f"host={host} port={port} user=postgres"
    shell = shell_of(cluster, tmp_path, SLOT="forgotten", SAFEKEEPER=conninfo)
    shell.run('pg_receivewal --create-slot --slot="$SLOT" --dbname="$SAFEKEEPER"')
    assert "forgotten" in shell.do("SkSlotLost")
    status = keeper.timeline()
    assert status is not None
    assert status["slots"] == []


def test_an_archive_that_fails_is_named(
    cluster: QuorumCluster, archive: Path, tmp_path: Path
) -> None:
    shell = shell_of(cluster, tmp_path, ARCHIVE=str(archive))
    aside = take_away(archive)
    cluster.postgres.execute("SELECT pg_logical_emit_message(true, 'a', repeat('x', 2 << 20))")
    look, status = read_entries()["SkArchiveFails"].commands
    wait_until(lambda: "archive" in shell.run(look), TIMEOUT, "sk status to name the archive")
    give_back(archive, aside)
    assert shell.run(status)
    shell.wait_over()


def test_the_generation_service_is_started(cluster: QuorumCluster, tmp_path: Path) -> None:
    with GenerationProcess(str(tmp_path / "numbers"), log_path=tmp_path / "log") as generations:
        generations.kill()
        shell = shell_of(cluster, tmp_path, SERVICE=generations.url)

        def start() -> None:
            generations.start()
            generations.wait_ready()

        shell.units["sk-generations"] = [replace(service_unit(generations), start=start)]
        for heading in ("SkGenerationsDown", "SkGenerationsRequestsFail"):
            assert "tenant" in shell.do(heading)


def test_a_proposer_whose_port_does_not_answer(cluster: QuorumCluster, tmp_path: Path) -> None:
    shell = shell_of(cluster, tmp_path, HTTP=f"http://{cluster.proposer.http_address}")
    cluster.proposer.kill()
    shell.do("SkProposerDown")
    shell.wait_over()


#: Their commands restart a part that may be healthy.
RESTARTS = ("SkSafekeeperNotFollowing", "SkMemberHoldsWal", "SkScrubStopped", "SkLogEndDamaged")


def test_commands_that_restart_a_part(cluster: QuorumCluster, tmp_path: Path) -> None:
    """Commits proceed after each of them."""
    shell = shell_of(cluster, tmp_path, COORDINATOR=f"127.0.0.1:{QSYNC_PORT}")
    cluster.safekeepers[1].kill()
    for heading in RESTARTS:
        shell.do(heading)
        shell.wait_over()
    shell.do("SkQsyncNotDeciding", 0, 1)
    shell.wait_over()


#: Commands that change nothing, and are valid in any state.
LOOKING = ("curl ", "psql ", "df ")
LOOKING_OURS = ("status", "check", "member list", "qsync")
#: Its commands need TLS: test_certificate_end.py.
WITH_TLS = "SkCertificateEnds"


def is_looking(line: str) -> bool:
    ours = tuple(f"sk {name}" for name in LOOKING_OURS)
    return line.startswith((*LOOKING, *ours)) and "ALTER" not in line


def test_the_commands_that_look(cluster: QuorumCluster, tmp_path: Path) -> None:
    """Each command of the page that only reads, once."""
    dsn = cluster.postgres.dsn()
    shell = shell_of(cluster, tmp_path, COORDINATOR=f"127.0.0.1:{QSYNC_PORT}", STANDBY=dsn)
    entries = [entry for name, entry in read_entries().items() if name != WITH_TLS]
    lines = {line for entry in entries for line in entry.commands}
    for line in sorted(filter(is_looking, lines)):
        shell.run(line)


# ---- clusters that change permanently


def test_a_safekeeper_that_lost_its_data_is_replaced(
    quorum_cluster: Callable[..., QuorumCluster], tmp_path: Path
) -> None:
    cluster = quorum_cluster(wal_seg_size=SEGMENT_BYTES)
    with ExitStack() as stack:
        world = MembersWorld(cluster, stack)
        world.wipe(2)
        cluster.safekeepers[1].start()
        new = world.new_keeper(7)
        new.wait_ready()
        shell = shell_of(cluster, tmp_path, ID="2", NEWADDR=new.address)
        shell.wait_verdict("DEGRADED")
        assert "lost its data" in shell.look()
        shell.do("Replace a safekeeper")
        shell.wait_verdict("OK")
        shell.do("SkMemberLeftBehind")  # the same command again
        shell.wait_over()


def test_a_standby_is_promoted(
    quorum_cluster: Callable[..., QuorumCluster],
    standby_factory: Callable[..., Postgres],
    tmp_path: Path,
) -> None:
    cluster = quorum_cluster(wal_seg_size=SEGMENT_BYTES)
    standby = standby_factory(cluster.postgres, "standby", cluster.replica_conninfo())
    wait_replayed(standby, cluster.postgres.flush_lsn(), TIMEOUT)
    with new_proposer(cluster, standby) as (proposer, shell):
        cluster.postgres.crash()
        shell.wait_verdict("NO PRIMARY")
        shell.do("Promote a standby")
        proposer.wait_streaming(TIMEOUT)
        shell.env["DSN"] = standby.dsn()
        shell.wait_over()


def test_one_of_two_promoted_servers_is_chosen(
    quorum_cluster: Callable[..., QuorumCluster],
    standby_factory: Callable[..., Postgres],
    tmp_path: Path,
) -> None:
    """The primary is lost; the two promoted servers are in its place."""
    cluster = quorum_cluster(wal_seg_size=SEGMENT_BYTES)
    old, conninfo = cluster.postgres, cluster.replica_conninfo()
    chosen, other = (standby_factory(old, name, conninfo) for name in ("chosen", "other"))
    for standby in (chosen, other):
        wait_replayed(standby, old.flush_lsn(), TIMEOUT)
    cluster.proposer.kill()
    old.crash()
    for standby in (chosen, other):
        assert standby.execute("SELECT pg_promote(true, 60)") == [(True,)]
    with new_proposer(cluster, chosen) as (_, shell):
        shell.units[POSTGRES_UNIT] = [postgres_unit(other)]
        shell.env.update(DSN=chosen.dsn(), STANDBY=other.dsn())
        assert "CONTESTED:" in shell.do("CONTESTED")
        shell.wait_over()


@contextmanager
def new_proposer(
    cluster: QuorumCluster, primary: Postgres
) -> Iterator[tuple[ProposerProcess, RunbookShell]]:
    """The proposer on the machine of another server, not started, and a shell that has its unit."""
    addresses = [safekeeper.address for safekeeper in cluster.safekeepers]
    log_path = cluster.root / "new-proposer.log"
    proposer = ProposerProcess(primary.dsn(), addresses, log_path=log_path, configure=True)
    shell = shell_of(cluster, cluster.root, STANDBY=primary.dsn())
    shell.units["sk-proposer"] = [service_unit(proposer)]
    try:
        yield proposer, shell
    finally:
        proposer.kill()
