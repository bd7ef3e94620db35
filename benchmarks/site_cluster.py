"""`SiteCluster`: members, a primary with its proposer, and a standby, each at a site.

The proposer runs on its primary's host. The standby follows the safekeepers, and prefers those at
its own site.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from benchmarks.primary import NetworkedPostgres
from benchmarks.sites import Sites
from quorum_wal.pg_fixtures.data_directory import DataDirectory, Setting
from quorum_wal.pg_fixtures.errors import FixtureError
from quorum_wal.pg_fixtures.processes import SK
from quorum_wal.pg_fixtures.proposer import ProposerProcess
from quorum_wal.pg_fixtures.safekeeper import SafekeeperProcess
from quorum_wal.pg_fixtures.standby import SIGNAL_FILE, replica_conninfo
from quorum_wal.pg_fixtures.waiting import wait_until
from quorum_wal.pg_server.binaries import PostgresBinaries
from quorum_wal.pg_server.program import run_program

POSTGRES_PORT = 5432  # free, because each namespace is our own
SAFEKEEPER_PORT, SAFEKEEPER_HTTP_PORT = 5400, 7600  # plus the member's id
PROPOSER_HTTP_PORT = 7677
SEGMENT_BYTES = 1 << 20
# A standby retries soon when it finds no WAL.
SETTINGS: dict[str, Setting] = {"wal_retrieve_retry_interval": "100ms"}
TIMEOUT = 60.0  # seconds


@dataclass(frozen=True, slots=True)
class Placement:
    """The site of each member, by id from 1; and those of primary and standby."""

    members: tuple[str, ...]
    primary: str
    standby: str


class SitePostgres(NetworkedPostgres):
    """Started at a site, and reached at the address of that site."""

    def __init__(
        self, binaries: PostgresBinaries, data_dir: Path, sites: Sites, site: str, **options: Any
    ) -> None:
        super().__init__(binaries, data_dir, sites.subnet, port=POSTGRES_PORT, **options)
        self.site = site
        self._sites = sites

    def start(self, timeout: float = TIMEOUT) -> None:
        with self._sites.at(self.site):
            super().start(timeout)

    def dsn(self, **extra: Any) -> str:
        return super().dsn(**{"host": self._sites.address(self.site), **extra})

    def new_standby(self, data_dir: Path, site: str, conninfo: str) -> SitePostgres:
        """A base backup of this server, not started."""
        with self._sites.at(self.site):
            self.base_backup(data_dir)
        DataDirectory(data_dir, self.binaries).write(SIGNAL_FILE, "")
        standby = SitePostgres(self.binaries, data_dir, self._sites, site)
        standby.configure(primary_conninfo=conninfo)
        return standby


class SiteCluster:
    """A context manager: streams with all members inside the block; its end kills all processes.

    `template` is for Postgres. The primary may be started and filled before.
    """

    def __init__(
        self,
        sites: Sites,
        placement: Placement,
        root: Path,
        binaries: PostgresBinaries,
        template: Path | None = None,
    ) -> None:
        self.sites = sites
        self.placement = placement
        self.root = root
        self.primary = SitePostgres(
            binaries,
            root / "primary",
            sites,
            placement.primary,
            settings=SETTINGS,
            wal_seg_size=SEGMENT_BYTES,
            template=template,
        )
        self.members = [self._member(id, site) for id, site in enumerate(placement.members, 1)]
        self.proposer = self._proposer(self.primary, "--configure")
        self._open = ExitStack()

    def _member(self, id: int, site: str) -> SafekeeperProcess:
        member = SafekeeperProcess(
            id,
            self.root / f"safekeeper-{id}",
            port=SAFEKEEPER_PORT + id,
            http_port=SAFEKEEPER_HTTP_PORT + id,
            arguments=[*self.sites.service_options, "--site", site],
        )
        self.sites.place(member, site)
        return member

    def _proposer(self, server: SitePostgres, *arguments: str) -> ProposerProcess:
        """Runs on the server's host; not started."""
        proposer = ProposerProcess(
            server.dsn(),
            self.addresses_from(server.site),
            log_path=self.root / f"proposer-{server.data_dir.name}.log",
            promotes=server is not self.primary,
            http_port=PROPOSER_HTTP_PORT,
            arguments=[*self.sites.service_options, *arguments],
        )
        self.sites.place(proposer, server.site)
        return proposer

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            for member in self.members:
                stack.callback(member.kill)
                member.start()
            stack.callback(self.primary.crash)
            if not self.primary.is_running:
                self.primary.start()
            for member in self.members:
                member.wait_ready()
            stack.enter_context(self.proposer)
            self.proposer.wait_streaming(TIMEOUT)
            self.proposer.wait_until(self._is_synchronous, TIMEOUT, "the primary to wait for it")
            self.wait_all_follow(self.proposer)
            self._open = stack.pop_all()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._open.close()

    @contextmanager
    def with_standby(self) -> Iterator[SitePostgres]:
        """Inside the block a standby follows and streams."""
        site = self.placement.standby
        conninfo = replica_conninfo(self.addresses_from(site))
        with self.primary.new_standby(self.root / "standby", site, conninfo) as standby:
            receiving = "SELECT 1 FROM pg_stat_wal_receiver WHERE status = 'streaming'"
            wait_until(lambda: standby.execute(receiving), TIMEOUT, "the standby to stream")
            yield standby

    @contextmanager
    def chained(self, *ids: int) -> Iterator[None]:
        """Inside the block these members get their WAL from the first member of their site."""
        options = ["--site", self.placement.primary, "--via-sites"]
        self.proposer.kill()
        self.proposer.program += options
        self.proposer.start()
        self._wait_states(ids, "chained")
        yield
        self.proposer.kill()
        del self.proposer.program[-len(options) :]
        self.proposer.start()
        self._wait_states(ids, "streaming")

    def _wait_states(self, ids: Sequence[int], state: str) -> None:
        def are_so() -> bool:
            peers = self.proposer.status()["safekeepers"]
            return all(peer["state"] == state for peer in peers if peer["id"] in ids)

        self.proposer.wait_streaming(TIMEOUT)
        self.proposer.wait_until(are_so, TIMEOUT, f"members {ids} to be {state}")

    def promotion(self, standby: SitePostgres) -> ProposerProcess:
        """`sk promote` at the standby's site, not started."""
        return self._proposer(standby)

    def promote_refused(self, standby: SitePostgres) -> str:
        """The message of `sk promote` after it has given up. Raises FixtureError if it succeeds."""
        words = ["--standby", standby.dsn(), "--safekeepers", ",".join(self.addresses)]
        with self.sites.at(standby.site):
            done = run_program([*SK, "promote", *words, "--timeout", "5"], check=False)
        if done.returncode == 0:
            raise FixtureError("sk promote succeeded without a quorum")
        return done.stderr.strip()

    # ---- places

    def members_at(self, *sites: str) -> list[SafekeeperProcess]:
        places = zip(self.members, self.placement.members, strict=True)
        return [member for member, site in places if site in sites]

    @property
    def addresses(self) -> list[str]:
        return [member.address for member in self.members]

    def addresses_from(self, site: str) -> list[str]:
        """The addresses of all members, the site's own first."""
        own = self.members_at(site)
        return [member.address for member in (*own, *(m for m in self.members if m not in own))]

    # ---- state

    def survived_sites(self) -> set[str]:
        """The sites whose loss is survived, as reported by `sk status`."""
        words = ["status", "--json", "--safekeepers", ",".join(self.addresses)]
        (timeline,) = json.loads(run_program([*SK, *words]).stdout)["timelines"]
        return {*timeline["site_losses"]["survived"]}

    def _is_synchronous(self) -> bool:
        statement = "SELECT 1 FROM pg_stat_replication WHERE sync_state = 'sync'"
        return bool(self.primary.execute(statement))

    def lose(self, *sites: str) -> None:
        """Cuts off these sites without notice, and kills all members, the primary and the proposer
        there."""
        self.sites.cut_off(*sites)
        for member in self.members_at(*sites):
            member.kill()
        if self.primary.site in sites:
            self.proposer.kill()
            self.primary.crash()

    def start_members(self) -> None:
        """Starts all members that do not run, and waits for them."""
        stopped = [member for member in self.members if not member.alive]
        for member in stopped:
            member.start()
        for member in stopped:
            member.wait_ready()

    def wait_all_follow(self, proposer: ProposerProcess) -> None:
        """Returns when every member has answered that proposer, and lags only a little."""

        def all_follow() -> bool:
            peers = proposer.status()["safekeepers"]
            return all(p["connected"] and p["lag_bytes"] < SEGMENT_BYTES for p in peers)

        proposer.wait_until(all_follow, TIMEOUT, "all members to follow")
