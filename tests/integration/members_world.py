"""A cluster whose members change: real processes, and `sk member` as an operator runs it."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import count
from typing import Any

from sk_command import Done, sk, sk_json

from quorum_wal.pg_fixtures.cluster import PRIMARY, QuorumCluster, flush_lsn
from quorum_wal.pg_fixtures.ledger import Ledger
from quorum_wal.pg_fixtures.postgres import Postgres
from quorum_wal.pg_fixtures.processes import SK, ServiceProcess
from quorum_wal.pg_fixtures.proposer import ProposerProcess
from quorum_wal.pg_fixtures.safekeeper import SafekeeperProcess
from quorum_wal.pg_fixtures.waiting import wait_until
from quorum_wal.pg_fixtures.wal_comparison import WalComparison, compare_wal
from quorum_wal.pgwal.lsn import Lsn

TIMEOUT = 120.0
#: A change itself must not delay any commit longer than this.
WAIT_SECONDS_MAX = 2.0


class MembersWorld:
    """`cluster.safekeepers` are the first members; `keepers` are all safekeepers that were ever
    started, by id."""

    def __init__(self, cluster: QuorumCluster, stack: ExitStack) -> None:
        self.cluster = cluster
        self._stack = stack
        self._commands = count(1)
        self.keepers = {keeper.id: keeper for keeper in cluster.safekeepers}
        #: --timeline, if safekeepers have several.
        self.timeline: tuple[str, ...] = ()

    def new_keeper(self, id: int, *arguments: str, port: int | None = None) -> SafekeeperProcess:
        """A new, empty safekeeper."""
        folder = self.cluster.root / f"safekeeper-{id}"
        keeper = SafekeeperProcess(id, folder, port=port, arguments=arguments)
        self.keepers[id] = self._stack.enter_context(keeper)
        return keeper

    def address(self, id: int) -> str:
        return self.keepers[id].address

    # ---- sk member

    def options(self, *known: int) -> tuple[str, str]:
        """--safekeepers with these ids, or with the first members."""
        ids = known or tuple(keeper.id for keeper in self.cluster.safekeepers)
        return ("--safekeepers", ",".join(self.address(id) for id in ids))

    def member(self, command: str, *arguments: object, known: Sequence[int] = ()) -> Done:
        """Run `sk member` to its end, whatever the result."""
        return sk("member", command, *self.options(*known), *self.timeline, *arguments)

    def change(self, command: str, *arguments: object, known: Sequence[int] = ()) -> str:
        """Make a change that must succeed; returns the output."""
        done = self.member(command, *arguments, known=known)
        assert done.returncode == 0, done.stdout + done.stderr + self.cluster.proposer.log_tail()
        return done.stdout

    def begin(self, command: str, *arguments: object, known: Sequence[int] = ()) -> ServiceProcess:
        """The same, as a process that can be killed."""
        number = next(self._commands)
        process = ServiceProcess(
            [
                *(*SK, "member", command, *self.options(*known), *self.timeline),
                *map(str, arguments),
            ],
            name=f"sk member {command}",
            log_path=self.cluster.root / f"member-{number}.log",
        )
        self._stack.enter_context(process)
        return process

    def listed(self, *known: int) -> dict[str, Any]:
        """`sk member list --json`."""
        page: dict[str, Any] = sk_json("member", "list", *self.options(*known), *self.timeline)
        return page

    def members(self, *known: int) -> list[int]:
        """The ids of the present members; neither joining nor leaving ones."""
        return list(self.listed(*known)["membership"]["members"])

    def wait_members(self, *ids: int, known: Sequence[int] = ()) -> None:
        """Wait until these are the members, and a quorum has the membership on disk."""

        def is_complete() -> bool:
            page = self.listed(*known)
            return bool(page["is_complete"]) and page["membership"]["members"] == list(ids)

        wait_until(is_complete, TIMEOUT, f"the members to be {ids}")

    def state_on(self, id: int) -> str:
        """The state of the timeline on that safekeeper; "" if there is no timeline."""
        timeline = self.keepers[id].timeline()
        return str(timeline["state"]) if timeline is not None else ""

    def wait_left(self, *ids: int) -> None:
        wait_until(
            lambda: all(self.state_on(id) == "left" for id in ids), TIMEOUT, f"{ids} to have left"
        )

    def wipe(self, id: int) -> None:
        """The machine dies, and its disk is lost."""
        self.keepers[id].kill()
        shutil.rmtree(self.keepers[id].data_dir)

    # ---- the check at the end

    def reckon(self, ledger: Ledger, *ids: int, postgres: Postgres | None = None) -> None:
        """Check that commits proceed, that no acknowledged row is lost, and that the WAL of these
        safekeepers equals that of the primary. Leaves the ledger paused."""
        postgres = postgres or self.cluster.postgres
        ledger.wait_for_progress(10, TIMEOUT)
        ledger.pause()
        ledger.wait_idle(TIMEOUT)
        report = ledger.verify(postgres.dsn())
        assert report.ok, report
        end_lsn = postgres.flush_lsn()
        wait_until(
            lambda: all(flush_lsn(self.keepers[id]) >= end_lsn for id in ids),
            TIMEOUT,
            f"safekeepers {ids} to flush {end_lsn}",
        )
        comparison = wait_until(
            lambda: self._compare(postgres, ids, end_lsn), TIMEOUT, "the WAL to be read in peace"
        )
        for id in ids:
            assert comparison.range_of(self.keepers[id].name)[1] == end_lsn
        ledger.resume()

    def _compare(
        self, postgres: Postgres, ids: Sequence[int], end_lsn: Lsn
    ) -> WalComparison | None:
        """Returns None if a segment was removed during the comparison."""
        copies = {self.keepers[id].name: self.keepers[id].data_dir for id in ids}
        size = int(postgres.control_data()["Bytes per WAL segment"])
        try:
            return compare_wal({**copies, PRIMARY: postgres.pg_wal}, end_lsn, size)
        except FileNotFoundError:
            return None

    def change_state(self) -> str:
        """The step of the proposer's member change; "" if there is no change or no proposer."""
        return change_state(self.cluster.proposer)


def change_state(proposer: ProposerProcess) -> str:
    try:
        change = (proposer.status().get("membership") or {}).get("change")
    except OSError:
        return ""
    return str(change["state"]) if change else ""


@contextmanager
def longest_wait(ledger: Ledger) -> Iterator[list[float]]:
    """Measures the longest wait of a commit inside the block; it is in the list at the end."""
    since, longest = time.monotonic(), [0.0]
    yield longest
    longest[0] = ledger.longest_wait(since)
