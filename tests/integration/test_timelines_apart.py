"""Two timelines on the same three safekeepers: a fault of one does not stop the commits of the
other.

In tests of a damaged member the third safekeeper is down. The commits of the healthy timeline then
need the two members that have the fault.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from hand_written_proposer import command, named
from pending_commit import PendingCommit
from sk_command import sk

from quorum_wal.consensus.ids import TimelineId
from quorum_wal.pg_fixtures.failing_disk import FailingDisk
from quorum_wal.pg_fixtures.ledger import Ledger
from quorum_wal.pg_fixtures.plugin import skip_if_unavailable
from quorum_wal.pg_fixtures.postgres import Postgres
from quorum_wal.pg_fixtures.proposer import ProposerProcess
from quorum_wal.pg_fixtures.safekeeper import SafekeeperProcess
from quorum_wal.pg_fixtures.waiting import wait_until
from quorum_wal.pg_server.binaries import PostgresBinaries
from quorum_wal.safekeeper.control_file import CONTROL_FILE_NAME
from quorum_wal.safekeeper.data_directory import folder_name
from quorum_wal.walproposer.errors import WalProposerError

MIB = 1 << 20
TIMEOUT = 120.0
ROWS = 100
FLOOD_BYTES = 64 * MIB
#: Without any commit of the healthy timeline; on a busy machine this takes seconds.
SILENCE_SECONDS_MAX = 5.0
STEADY = TimelineId(b"steady".ljust(16, b"\0"), b"1" * 16)
#: The files of this timeline fail; the process gets their names at its start.
FAILING = TimelineId(b"failing".ljust(16, b"\0"), b"2" * 16)

_names = count(3)


@dataclass
class Attached:
    """A primary with its own timeline."""

    name: TimelineId
    postgres: Postgres
    proposer: ProposerProcess


@dataclass
class World:
    root: Path
    binaries: PostgresBinaries
    template: Path
    safekeepers: list[SafekeeperProcess]
    disks: list[FailingDisk]
    stack: ExitStack
    steady: Attached = field(init=False)

    def __post_init__(self) -> None:
        self.steady = self.attach(STEADY, self.stack)

    @property
    def addresses(self) -> list[str]:
        return [safekeeper.address for safekeeper in self.safekeepers]

    def attach(self, name: TimelineId, stack: ExitStack, *, fresh: bool = False) -> Attached:
        """A new primary that streams; it ends with the stack. Primaries share a system identifier,
        except a fresh one."""
        folder = self.root / f"{name.timeline_id.hex()}-{name.tenant_id.hex()}"
        template = None if fresh else self.template
        server = Postgres(self.binaries, folder, wal_seg_size=MIB, template=template)
        postgres = stack.enter_context(server)
        members = ("--safekeepers", ",".join(self.addresses))
        dsn = postgres.dsn()
        created = sk("timeline", "create", "--primary", dsn, "--timeline", name, *members)
        assert created.returncode == 0, created.stderr
        proposer = ProposerProcess(
            dsn,
            self.addresses,
            log_path=folder.with_name(f"{folder.name}-proposer.log"),
            configure=True,
            arguments=["--timeline", str(name)],
        )
        stack.enter_context(proposer)
        proposer.wait_streaming()
        postgres.execute("CREATE TABLE first (a int)")
        return Attached(name, postgres, proposer)

    @contextmanager
    def troubled(
        self, name: TimelineId | None = None, *, fresh: bool = False
    ) -> Iterator[Attached]:
        """Inside the block there is a second primary; afterwards its timeline is deleted."""
        name = name or TimelineId(b"troubled".ljust(16, b"\0"), next(_names).to_bytes(16, "big"))
        with ExitStack() as stack:
            yield self.attach(name, stack, fresh=fresh)
        gone = sk("timeline", "delete", name, "--yes", "--safekeepers", ",".join(self.addresses))
        assert gone.returncode == 0, gone.stderr

    def status(self, number: int, name: TimelineId) -> dict[str, Any]:
        """The status of a timeline on one of the safekeepers; {} if it cannot be opened, or not
        yet."""
        try:
            status = self.safekeepers[number].timeline(name.timeline_id.hex())
        except OSError:
            return {}
        return status or {}

    def stopped(self, number: int, name: TimelineId) -> dict[str, Any]:
        """Its status, if it has stopped there."""
        status = self.status(number, name)
        return status if status["state"] == "stopped" else {}

    @contextmanager
    def without_the_third(self) -> Iterator[None]:
        """Inside the block commits need both the first and the second safekeeper."""
        third = self.safekeepers[2]
        third.kill()
        try:
            yield
        finally:
            third.start()
            third.wait_ready()

    def restart_damaged(self, number: int, damage: Callable[[], None]) -> None:
        """Restart it with damage. It is not healthy afterwards, and reports the healthy timeline.
        It stops in good order, because a crash may leave a torn tail of the last second."""
        self.safekeepers[number].terminate()
        damage()
        self.safekeepers[number].start()
        wait_until(lambda: self.status(number, STEADY), TIMEOUT, "the status to answer")


@pytest.fixture(scope="module")
def world(
    pg_binaries: PostgresBinaries,
    initdb_template: Callable[[PostgresBinaries, int], Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[World]:
    root = tmp_path_factory.mktemp("apart")
    with ExitStack() as stack:
        safekeepers, disks = [], []
        for id in (1, 2, 3):
            data_dir = root / f"safekeeper-{id}"
            below = data_dir / "timelines" / folder_name(FAILING)
            with skip_if_unavailable():
                disks.append(FailingDisk(root / f"disk-{id}", only_below=below))
            safekeepers.append(SafekeeperProcess(id, data_dir, env=disks[-1].env))
            stack.enter_context(safekeepers[-1])
        template = initdb_template(pg_binaries, MIB)
        yield World(root, pg_binaries, template, safekeepers, disks, stack)


@pytest.fixture
def ledger(world: World) -> Iterator[Ledger]:
    """A ledger on the healthy timeline; at the end nothing is lost."""
    table = f"ledger_{next(_names)}"
    with Ledger(world.steady.postgres.dsn(), clients=3, table=table) as ledger:
        ledger.wait_for_progress(ROWS, TIMEOUT)
        yield ledger
        ledger.wait_for_progress(ROWS, TIMEOUT)
        ledger.stop()
        report = ledger.verify()
        assert report.ok, report
    for number in range(3):
        assert world.status(number, STEADY)["state"] == "active"
        assert not world.status(number, STEADY)["damage"]


def test_a_stopped_timeline(world: World, ledger: Ledger) -> None:
    """Its disk fails on two members: it stops there, and its commits wait."""
    with world.troubled(FAILING) as troubled, world.without_the_third():
        for disk in world.disks[:2]:
            disk.fail_sync()
        pending = PendingCommit(troubled.postgres)
        for number in (0, 1):
            status = wait_until(partial(world.stopped, number, FAILING), TIMEOUT, "it to stop")
            assert "Input/output error" in status["stopped_reason"]
        pending.wait_blocked(TIMEOUT)
        ledger.wait_for_progress(ROWS, TIMEOUT)
        assert not pending.has_returned
        for disk in world.disks[:2]:
            disk.restore()
    assert ledger.longest_silence() < SILENCE_SECONDS_MAX


def test_a_timeline_with_a_damaged_log(world: World, ledger: Ledger) -> None:
    """Its member does not vote for it; the member's votes for the healthy timeline count. Its
    proposer is stopped, because it would repair the damage at once."""
    with world.troubled() as troubled:
        troubled.proposer.kill()
        world.restart_damaged(0, lambda: rot_newest(world.safekeepers[0], troubled.name))
        with world.without_the_third():
            assert world.status(0, troubled.name)["damage"]
            assert not world.status(0, STEADY)["damage"]
            ledger.wait_for_progress(ROWS, TIMEOUT)


def test_a_timeline_with_a_damaged_control_file(world: World, ledger: Ledger) -> None:
    """It is not opened, not created again, and named; the others are served."""
    safekeeper = world.safekeepers[0]
    with world.troubled() as troubled:
        path = timeline_folder(safekeeper, troubled.name) / CONTROL_FILE_NAME
        world.restart_damaged(0, lambda: flip_bit(path, 100))
        with world.without_the_third():
            with pytest.raises(WalProposerError, match="has checksum"):
                command(safekeeper.address, "TIMELINE_STATUS", **named(troubled.name))
            ledger.wait_for_progress(ROWS, TIMEOUT)
        with world.troubled(fresh=True) as another:
            assert another.postgres.execute("SELECT count(*) FROM first") == [(0,)]


def test_a_timeline_whose_folder_was_removed(world: World, ledger: Ledger) -> None:
    """It is removed while the safekeeper runs. The status of all timelines is still available."""
    with world.troubled() as troubled:
        for safekeeper in world.safekeepers[:2]:
            shutil.rmtree(timeline_folder(safekeeper, troubled.name) / "wal")
        assert world.status(0, STEADY)["state"] == "active"
        listed = sk("timeline", "list", "--safekeepers", ",".join(world.addresses))
        assert listed.returncode == 0, listed.stderr
        assert STEADY.timeline_id.hex() in listed.stdout
        ledger.wait_for_progress(ROWS, TIMEOUT)


def test_a_flooded_timeline(world: World, ledger: Ledger) -> None:
    """It writes as much as it can; the commits of the healthy timeline are not delayed for long."""
    with world.troubled() as troubled:
        begin_lsn, ended = troubled.postgres.flush_lsn(), Event()
        flooding = Thread(target=flood, args=(troubled.postgres, ended), daemon=True)
        flooding.start()
        wait_until(
            lambda: troubled.postgres.flush_lsn() - begin_lsn > FLOOD_BYTES, TIMEOUT, "the flood"
        )
        ledger.wait_for_progress(ROWS, TIMEOUT)
        ended.set()
        flooding.join(TIMEOUT)
        assert not flooding.is_alive()
    assert ledger.longest_silence() < SILENCE_SECONDS_MAX


def flood(postgres: Postgres, ended: Event) -> None:
    with postgres.connect() as connection:
        connection.execute("CREATE TABLE flood (t text)")
        while not ended.is_set():
            connection.execute(
                "INSERT INTO flood SELECT repeat('x', 1000) FROM generate_series(1, 5000)"
            )


def timeline_folder(safekeeper: SafekeeperProcess, name: TimelineId) -> Path:
    return safekeeper.data_dir / "timelines" / folder_name(name)


def rot_newest(safekeeper: SafekeeperProcess, name: TimelineId) -> None:
    """Flip a bit of its newest record with content."""
    folder = timeline_folder(safekeeper, name) / "wal"
    path = max(path for path in folder.iterdir() if len(path.name) == len("0" * 24))
    flip_bit(path, len(path.read_bytes().rstrip(b"\0")) - 20)


def flip_bit(path: Path, offset: int) -> None:
    content = bytearray(path.read_bytes())
    content[offset] ^= 0x10
    path.write_bytes(content)
