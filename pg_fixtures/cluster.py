"""`QuorumCluster`: a Postgres, its safekeepers and its proposer, each as a process.

    with QuorumCluster(tmp_path) as cluster:
        cluster.postgres.execute("CREATE TABLE t (a int)")      # returns when a quorum has it
        cluster.safekeepers[0].kill()

With `proxied`, each proposer-to-safekeeper connection goes through a TcpProxy of its own.
"""

from __future__ import annotations

import itertools
import signal
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from quorum_wal.pg_fixtures.data_directory import WAL_SEG_SIZE, Setting
from quorum_wal.pg_fixtures.errors import WalDiffers
from quorum_wal.pg_fixtures.postgres import Postgres
from quorum_wal.pg_fixtures.proposer import STREAMING_TIMEOUT, ProposerProcess
from quorum_wal.pg_fixtures.proxy import TcpProxy
from quorum_wal.pg_fixtures.safekeeper import SafekeeperProcess
from quorum_wal.pg_fixtures.standby import replica_conninfo
from quorum_wal.pg_fixtures.waiting import wait_until
from quorum_wal.pg_fixtures.wal_comparison import WalComparison, compare_wal
from quorum_wal.pg_server.binaries import PostgresBinaries, find_postgres
from quorum_wal.pgwal.lsn import Lsn

FLUSH_TIMEOUT = 30.0  # seconds
PRIMARY = "primary"


class QuorumCluster:
    """A context manager: commits wait for the quorum inside the block; its end kills all processes.

    All files are below `root`. `settings`, `wal_seg_size` and `template` are for Postgres;
    `safekeeper_arguments`, `proposer_arguments` and `env` are for our own programs.
    """

    def __init__(
        self,
        root: Path,
        *,
        binaries: PostgresBinaries | None = None,
        pg_major: int | None = None,
        safekeepers: int = 3,
        proxied: bool = False,
        settings: Mapping[str, Setting] | None = None,
        wal_seg_size: int = WAL_SEG_SIZE,
        template: Path | None = None,
        safekeeper_arguments: Sequence[str] = (),
        proposer_arguments: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.root = root
        self.postgres = Postgres(
            binaries or find_postgres(pg_major),
            root / "postgres",
            settings=settings,
            wal_seg_size=wal_seg_size,
            template=template,
        )
        self.safekeepers = [
            SafekeeperProcess(
                id, root / f"safekeeper-{id}", arguments=safekeeper_arguments, env=env
            )
            for id in range(1, safekeepers + 1)
        ]
        self.proxies = [_proxy_to(s.address) for s in self.safekeepers] if proxied else []
        self._proposer_arguments = proposer_arguments
        self._env = env
        self._proposer_numbers = itertools.count(1)
        self.proposer = self.new_proposer(configure=True)
        self._proxies_open = ExitStack()

    def __enter__(self) -> Self:
        try:
            for proxy in self.proxies:
                self._proxies_open.enter_context(proxy)
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def start(self, timeout: float = STREAMING_TIMEOUT) -> None:
        """Starts what does not run, in order. Returns when commits wait for the quorum.

        Raises ProcessEnded, DeadlineExceeded.
        """
        stopped = [safekeeper for safekeeper in self.safekeepers if not safekeeper.alive]
        for safekeeper in stopped:
            safekeeper.start()
        if not self.postgres.is_running:
            self.postgres.start()
        for safekeeper in stopped:
            safekeeper.wait_ready()
        if not self.proposer.alive:
            self.proposer.start()
        self.proposer.wait_streaming(timeout)
        self.proposer.wait_until(self.is_synchronous, timeout, "the primary to wait for it")

    def is_synchronous(self) -> bool:
        """The primary's commits wait until the proposer has confirmed them."""
        statement = "SELECT 1 FROM pg_stat_replication WHERE sync_state = 'sync'"
        return bool(self.postgres.execute(statement))

    def kill_all(self) -> None:
        """Kills all processes with SIGKILL, but keeps the proxies. start() starts them again."""
        services = [self.proposer, *self.safekeepers]
        for service in services:
            if service.alive:
                service.send_signal(signal.SIGKILL)
        self.postgres.crash()
        for service in services:
            service.kill()

    def close(self) -> None:
        """kill_all(), and end the proxies."""
        with self._proxies_open:
            self.kill_all()

    @contextmanager
    def led_by(self, proposer: ProposerProcess) -> Iterator[None]:
        """Inside the block `proposer`, which has taken over the term, is the cluster's proposer."""
        before, self.proposer = self.proposer, proposer
        try:
            yield
        finally:
            self.proposer = before

    def new_proposer(
        self, *, configure: bool = False, arguments: Sequence[str] = ()
    ) -> ProposerProcess:
        """Another proposer for this primary and these safekeepers, not started.

        It competes with `cluster.proposer` and is not stopped by the cluster: use it as a context
        manager.
        """
        return ProposerProcess(
            self.postgres.dsn(),
            [target.address for target in (self.proxies or self.safekeepers)],
            log_path=self.root / f"proposer-{next(self._proposer_numbers)}.log",
            configure=configure,
            arguments=[*self._proposer_arguments, *arguments],
            env=self._env,
        )

    def replica_conninfo(self, **extra: str) -> str:
        """The connection string with which a stock replica follows any of the safekeepers."""
        return replica_conninfo([s.address for s in self.safekeepers], **extra)

    # ---- positions

    def commit_lsn(self) -> Lsn:
        """The commit LSN that the proposer reports."""
        return Lsn.parse(self.proposer.status()["commit_lsn"])

    def wait_flushed(
        self,
        lsn: int,
        timeout: float = FLUSH_TIMEOUT,
        safekeepers: Iterable[SafekeeperProcess] | None = None,
    ) -> None:
        """Returns when these safekeepers (default: all) have flushed up to `lsn`."""
        waiting = list(self.safekeepers if safekeepers is None else safekeepers)
        wait_until(
            lambda: all(flush_lsn(safekeeper) >= lsn for safekeeper in waiting),
            timeout,
            f"safekeepers {', '.join(str(s.id) for s in waiting)} to flush {Lsn(lsn)}",
        )

    def compare_wal(self, up_to: Lsn | None = None) -> WalComparison:
        """Compares the WAL files of the safekeepers with each other and with the primary's pg_wal.

        The default of `up_to` is the position up to which every safekeeper reports flushed WAL.
        Raises WalDiffers, also if a safekeeper's copy ends before.
        """
        if up_to is None:
            up_to = min(map(flush_lsn, self.safekeepers))
        copies = {s.name: s.data_dir for s in self.safekeepers}
        wal_seg_size = int(self.postgres.control_data()["Bytes per WAL segment"])
        copies[PRIMARY] = self.postgres.pg_wal
        comparison = compare_wal(copies, up_to, wal_seg_size)
        for safekeeper in self.safekeepers:
            begin_lsn, end_lsn = comparison.range_of(safekeeper.name)
            if begin_lsn == end_lsn or end_lsn != up_to:
                raise WalDiffers(end_lsn, f"{safekeeper.name} has no segment that ends at {up_to}")
        return comparison


def flush_lsn(safekeeper: SafekeeperProcess) -> Lsn:
    """The position up to which a safekeeper reports flushed WAL; 0/0 if it does not answer or has
    no timeline."""
    try:
        timeline = safekeeper.timeline()
    except OSError:
        return Lsn(0)
    return Lsn.parse(timeline["flush_lsn"]) if timeline else Lsn(0)


def _proxy_to(address: str) -> TcpProxy:
    host, _, port = address.rpartition(":")
    return TcpProxy(host, int(port))
