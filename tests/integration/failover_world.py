"""A cluster for failovers: a standby, clients that know both servers, ways to lose the primary."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from enum import Enum

from psycopg.conninfo import make_conninfo

from quorum_wal.pg_fixtures.cluster import QuorumCluster
from quorum_wal.pg_fixtures.data_directory import Setting
from quorum_wal.pg_fixtures.postgres import Postgres
from quorum_wal.pg_fixtures.proposer import ProposerProcess
from quorum_wal.pg_fixtures.proxy import TcpProxy

TIMEOUT = 180.0
SEG_SIZE = 1 << 20
# A standby retries WAL at once. pg_rewind needs the hints.
SETTINGS: dict[str, Setting] = {"wal_log_hints": True, "wal_retrieve_retry_interval": "100ms"}


class Loss(Enum):
    """How the primary is lost."""

    KILLED = "kill -9 of Postgres; its proposer lives on"
    MACHINE = "kill -9 of Postgres and of its proposer"
    STOPPED = "a stop in good order, after which the proposer waits for it"
    CUT_OFF = "alive, with its proposer, and unreachable for clients and safekeepers"


@dataclass
class FailoverWorld:
    """`front` is between the clients and the primary."""

    cluster: QuorumCluster
    standby: Postgres
    front: TcpProxy

    @property
    def clients_dsn(self) -> str:
        return make_conninfo(
            self.cluster.postgres.dsn(),
            host="127.0.0.1,127.0.0.1",
            port=f"{self.front.port},{self.standby.port}",
            target_session_attrs="read-write",
        )

    def lose(self, loss: Loss) -> None:
        cluster = self.cluster
        match loss:
            case Loss.KILLED:
                cluster.postgres.crash()
            case Loss.MACHINE:
                cluster.proposer.kill()
                cluster.postgres.crash()
            case Loss.STOPPED:
                cluster.postgres.stop()
            case Loss.CUT_OFF:
                for proxy in cluster.proxies:
                    proxy.cut()
        self.front.cut()

    @property
    def addresses(self) -> list[str]:
        """The addresses of the safekeepers themselves; only the old primary's proposer uses the
        proxies."""
        return [safekeeper.address for safekeeper in self.cluster.safekeepers]

    def promotion(self, *arguments: str) -> ProposerProcess:
        """`sk promote` of the standby, not started."""
        return ProposerProcess(
            self.standby.dsn(),
            self.addresses,
            log_path=self.cluster.root / f"promote-{secrets.token_hex(4)}.log",
            promotes=True,
            arguments=arguments,
        )
