"""`sk attach --configure`: it reports that commits wait only when they do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Thread

import pytest

from quorum_wal.pg_fixtures.data_directory import WAL_SEG_SIZE
from quorum_wal.pg_fixtures.failing_disk import FailingDisk
from quorum_wal.pg_fixtures.plugin import skip_if_unavailable
from quorum_wal.pg_fixtures.postgres import Postgres
from quorum_wal.pg_fixtures.proposer import ProposerProcess
from quorum_wal.pg_fixtures.safekeeper import SafekeeperProcess
from quorum_wal.pg_fixtures.waiting import wait_until
from quorum_wal.pg_server.binaries import PostgresBinaries

TIMEOUT = 120.0
SYNC_MILLISECONDS = 4000
NOW_WAIT = "commits now wait for the quorum"
CHECKPOINTER_WAIT = "SELECT wait_event FROM pg_stat_activity WHERE backend_type = 'checkpointer'"
NAMES = "SHOW synchronous_standby_names"
IN_A_FLUSH = ([("DataFileFlush",)], [("DataFileSync",)])
#: The proposer asks ten times in this time.
LOADED_BEFORE = "SELECT clock_timestamp() - pg_conf_load_time() > interval '1 s'"
COMMIT = "SELECT pg_logical_emit_message(true, 'a', 'b')"


@pytest.fixture(scope="module")
def safekeepers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """The addresses; every test has its own primary, and so its own timeline."""
    root = tmp_path_factory.mktemp("safekeepers")
    with ExitStack() as stack:
        members = [SafekeeperProcess(id, root / f"safekeeper-{id}") for id in (1, 2, 3)]
        for member in members:
            stack.enter_context(member)
        yield [member.address for member in members]


def log_text(proposer: ProposerProcess) -> str:
    return proposer.log_path.read_text()


@contextmanager
def slow_checkpoint(postgres: Postgres, disk: FailingDisk) -> Iterator[None]:
    """Inside the block the checkpointer waits for the disk, and applies no reload."""
    postgres.execute("CREATE TABLE t AS SELECT 1 AS a")
    disk.slow_sync(SYNC_MILLISECONDS)
    checkpoint = Thread(target=postgres.execute, args=("CHECKPOINT",))
    checkpoint.start()
    wait_until(lambda: postgres.execute(CHECKPOINTER_WAIT) in IN_A_FLUSH, TIMEOUT, "a checkpoint")
    yield
    checkpoint.join()


def test_a_busy_checkpointer(
    pg_binaries: PostgresBinaries,
    initdb_template: Callable[[PostgresBinaries, int], Path],
    tmp_path: Path,
    safekeepers: list[str],
) -> None:
    """Sessions read the setting at once, but no commit waits before the checkpointer has it."""
    data_dir = tmp_path / "primary"
    template = initdb_template(pg_binaries, WAL_SEG_SIZE)
    with skip_if_unavailable():
        disk = FailingDisk(tmp_path / "disk", only_below=data_dir / "base")
    with (
        Postgres(pg_binaries, data_dir, template=template, env=disk.env) as postgres,
        slow_checkpoint(postgres, disk),
        ProposerProcess(
            postgres.dsn(), safekeepers, log_path=tmp_path / "proposer.log", configure=True
        ) as proposer,
    ):
        proposer.wait_until(
            lambda: postgres.execute(NAMES) == [('"walproposer"',)], TIMEOUT, "the setting"
        )
        proposer.wait_until(lambda: proposer.state == "streaming", TIMEOUT, "it to stream")
        proposer.wait_until(
            lambda: postgres.execute(LOADED_BEFORE) == [(True,)], TIMEOUT, "it to ask again"
        )
        assert postgres.execute(CHECKPOINTER_WAIT) in IN_A_FLUSH
        assert proposer.status()["configured"] is False
        assert NOW_WAIT not in log_text(proposer)
        disk.restore()
        proposer.wait_streaming(TIMEOUT)
        assert NOW_WAIT in log_text(proposer)


def test_a_setting_that_is_overridden(
    pg_binaries: PostgresBinaries, tmp_path: Path, safekeepers: list[str]
) -> None:
    """ALTER SYSTEM does not change an option of the command line."""
    options = ("--synchronous_standby_names=",)
    with (
        Postgres(pg_binaries, tmp_path / "primary", options=options) as postgres,
        ProposerProcess(
            postgres.dsn(), safekeepers, log_path=tmp_path / "proposer.log", configure=True
        ) as proposer,
    ):
        proposer.wait_state("streaming", TIMEOUT)
        warning = "commits do not wait for the quorum: synchronous_standby_names keeps its value"
        proposer.wait_until(lambda: warning in log_text(proposer), TIMEOUT, "the warning")
        assert proposer.status()["configured"] is False
        assert NOW_WAIT not in log_text(proposer)
        assert log_text(proposer).count(warning) == 1
        assert postgres.execute(COMMIT)  # returns
