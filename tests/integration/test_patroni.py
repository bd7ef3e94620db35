"""Two nodes under Patroni and etcd, as docs/integrations.md says: no failover loses a commit."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from etcd_server import EtcdServer
from patroni_node import PatroniNode
from psycopg.conninfo import make_conninfo
from sk_command import sk

from quorum_wal.pg_fixtures.ledger import Ledger
from quorum_wal.pg_fixtures.safekeeper import SafekeeperProcess
from quorum_wal.pg_fixtures.waiting import wait_until
from quorum_wal.pg_server.account import give, server_account
from quorum_wal.pg_server.binaries import PostgresBinaries

TIMEOUT = 180.0
CLIENTS = 4
MEMBERS = 3


class PatroniCluster:
    """etcd, three safekeepers, two nodes: the first one is the primary."""

    def __init__(self, folder: Path, binaries: PostgresBinaries, stack: ExitStack) -> None:
        etcd = stack.enter_context(EtcdServer(folder))
        self.safekeepers = [
            stack.enter_context(SafekeeperProcess(number, folder / f"safekeeper-{number}"))
            for number in range(1, MEMBERS + 1)
        ]
        addresses = [safekeeper.address for safekeeper in self.safekeepers]
        account = server_account()
        nodes_folder = folder / "nodes"
        nodes_folder.mkdir()
        give(nodes_folder, account)
        self.nodes = [
            PatroniNode(
                name,
                nodes_folder,
                etcd_address=etcd.address,
                safekeepers=addresses,
                binaries=binaries,
                account=account,
            )
            for name in ("n1", "n2")
        ]
        for node in self.nodes:
            stack.callback(node.close)
        first, second = self.nodes
        first.patroni.start()
        first.wait_role("primary")
        created = sk(
            "timeline", "create", "--primary", first.dsn, "--safekeepers", ",".join(addresses)
        )
        assert created.returncode == 0, created.stderr
        slots = [{"name": f"sk_log_{created.stdout.split()[-1]}", "type": "physical"}]
        first.request("PATCH", "/config", {"ignore_slots": slots})
        first.unit.start()
        second.start()
        second.wait_role("replica")

    @property
    def clients_dsn(self) -> str:
        ports = ",".join(str(node.port) for node in self.nodes)
        hosts = ",".join("127.0.0.1" for _ in self.nodes)
        return make_conninfo(
            self.nodes[0].dsn, host=hosts, port=ports, target_session_attrs="read-write"
        )

    def pair(self) -> tuple[PatroniNode, PatroniNode]:
        """The primary and the other node, when both are well."""

        def found() -> tuple[PatroniNode, PatroniNode] | None:
            for leader, other in (self.nodes, reversed(self.nodes)):
                if (leader.role, other.role) == ("primary", "replica"):
                    return leader, other
            return None

        return wait_until(found, TIMEOUT, "a primary and a replica")


@pytest.fixture
def patroni(tmp_path: Path, pg_binaries: PostgresBinaries) -> Iterator[PatroniCluster]:
    with ExitStack() as stack:
        yield PatroniCluster(tmp_path, pg_binaries, stack)


def switch(cluster: PatroniCluster, leader: PatroniNode, other: PatroniNode) -> None:
    leader.request("POST", "/switchover", {"leader": leader.name, "candidate": other.name})


def kill(cluster: PatroniCluster, leader: PatroniNode, other: PatroniNode) -> None:
    leader.kill()


def freeze(cluster: PatroniCluster, leader: PatroniNode, other: PatroniNode) -> None:
    leader.freeze()


def test_no_failover_loses_a_commit(
    patroni: PatroniCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    """A switchover, kill -9 of Patroni and Postgres, and a machine that is frozen and continues."""
    with Ledger(patroni.clients_dsn, clients=CLIENTS) as ledger:
        ledger.wait_for_progress(100, TIMEOUT)
        for event in (switch, kill, freeze):
            leader, other = patroni.pair()
            begun = time.monotonic()
            event(patroni, leader, other)
            other.wait_role("primary")
            ledger.redirect(patroni.clients_dsn)  # the connections of a frozen machine stay open
            ledger.wait_for_progress(50, TIMEOUT)
            with capsys.disabled():
                print(f"\n{event.__name__}: commits after {time.monotonic() - begun:.1f} s")
            leader.resume()
            leader.restart()
            assert patroni.pair() == (other, leader)
            ledger.wait_for_progress(50, TIMEOUT)
        ledger.pause()
        ledger.wait_idle(TIMEOUT)
        report = ledger.verify()
        assert report.ok, report
