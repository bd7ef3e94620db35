"""Short soaks, and proofs that they detect defects; `make soak MINUTES=30` is the long one."""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from quorum_wal.pg_fixtures.plugin import TemplateOf
from quorum_wal.pg_fixtures.postgres import Postgres
from quorum_wal.pg_fixtures.processes import ServiceProcess
from quorum_wal.pg_fixtures.waiting import wait_until
from quorum_wal.pg_server.binaries import PostgresBinaries
from quorum_wal.pg_server.errors import DeadlineExceeded
from tests.soak import run, told
from tests.soak.books import Books
from tests.soak.chronicle import Chronicle, SilenceWatch
from tests.soak.world import WAL_SEG_SIZE

ROOT = Path(__file__).parents[2]
SEED = 20261121
MINUTES = 10  # at most
QSYNC_MINUTES = 0.2
#: Ctrl-C ends a run then, so that it proves as much on a busy machine.
FAULT_LINES = 9  # the first failover has three, and a fault one or two
CHANGES = 10  # of the members: each kind, and then a reckoning
TIMEOUT = 240.0


@pytest.fixture
def soak(
    pg_binaries: PostgresBinaries, initdb_template: TemplateOf, tmp_path: Path
) -> Iterator[ServiceProcess]:
    """Not started."""
    print(f"seed {SEED}")
    template = initdb_template(pg_binaries, WAL_SEG_SIZE)
    soak = ServiceProcess(
        [
            *(sys.executable, "-m", "tests.soak"),
            *("--minutes", str(MINUTES), "--seed", str(SEED)),
            *("--pg-major", str(pg_binaries.major), "--dir", tmp_path, "--template", template),
        ],
        name="the soak",
        log_path=tmp_path / "soak.log",
        cwd=ROOT,
    )
    yield soak
    if soak.alive:
        soak.terminate(TIMEOUT)  # so that it unmounts its file systems


def figures(report: str) -> dict[str, int]:
    """The lines `     12  rows lost` of the outcome."""
    return {what: int(count) for count, what in re.findall(r"^ +(\d+)  (.+)$", report, re.M)}


def run_until(soak: ServiceProcess, what: str, count: int) -> dict[str, int]:
    """The figures when Ctrl-C has ended it after so many lines with `what`, with the verdict."""
    soak.start()
    soak.wait_until(lambda: soak.log_text().count(what) >= count, TIMEOUT, f"{count} of {what}")
    soak.send_signal(signal.SIGINT)
    assert soak.wait(TIMEOUT) == 0, soak.log_text()
    assert "PASSED: nothing acknowledged was lost" in soak.log_text()
    return figures(soak.log_text())


def test_nothing_is_lost_in_a_run_of_faults(soak: ServiceProcess) -> None:
    found = run_until(soak, " s  ", FAULT_LINES)
    assert found["rows lost"] == found["rows twice"] == 0
    assert found["rows acknowledged"] > 1000
    assert found["faults survived"] >= FAULT_LINES // 2
    assert found["failovers"] >= 1
    assert found["reckonings"] == found["failovers"] + 1
    assert "the longest time without a commit" in soak.log_text()


def test_nothing_is_lost_while_the_members_change(soak: ServiceProcess) -> None:
    soak.program.append("--members")
    found = run_until(soak, ": sk member ", CHANGES)
    assert found["rows lost"] == found["rows twice"] == 0
    assert found["rows acknowledged"] > 100
    assert found["changes of the members"] >= CHANGES
    assert "the longest wait of a commit for a change itself" in soak.log_text()


def test_visible_rows_remain_while_processes_are_killed_in_their_transactions(
    soak: ServiceProcess,
) -> None:
    """Of more faults than this run has time for, which is its only failure."""
    soak.program += ["--qsync", "--minutes", str(QSYNC_MINUTES), "--faults", "300"]
    soak.start()
    assert soak.wait(TIMEOUT) == 1, soak.log_text()
    assert "FAILED: the run has not come to " in soak.log_text()
    found = figures(soak.log_text())
    assert found["violations"] == 0
    assert found["faults"] >= 1
    assert found["rests, in which all that was pending ended"] >= 1
    assert found["committed"] > 10
    assert found["rows seen"] >= found["committed"]
    assert found["comparisons"] > 1
    assert found["looks at a standby"] > 1


@pytest.mark.parametrize(
    ("plant", "only", "seen"),
    [
        # Which law depends on whether a reader, the client or OUTCOME was first.
        ("confirm", ("--only-failovers", "cut_off"), "(SEEN_LOST|COMMITTED_LOST|TWO_ANSWERS): "),
        ("unknown", ("--only", "client"), " outcomes are unknown"),
        ("janitor", ("--only", "client"), "for the limbo to be empty"),
    ],
)
def test_a_bug_of_transactions_that_commit_on_quorum_is_found(
    soak: ServiceProcess, plant: str, only: tuple[str, ...], seen: str
) -> None:
    soak.program += ["--qsync", "--minutes", "2", "--plant", plant, *only]
    soak.start()
    assert soak.wait(TIMEOUT) == 1, soak.log_text()
    assert re.search(seen, soak.log_text()), soak.log_text()
    assert "FAILED: " in soak.log_text(), soak.log_text()


def test_the_check_detects_lost_wrong_and_duplicate_rows(postgres: Postgres) -> None:
    with Books(postgres.dsn(), seed=1) as books:
        books.wait_for_progress(TIMEOUT)
        books.turn_page()
        books.wait_for_progress(TIMEOUT)
        books.rest(TIMEOUT)
        books.reckon()
        assert books.reckoned.ok
        first = "(client, seq) = (SELECT client, min(seq) FROM ledger_1 GROUP BY 1 ORDER BY 1 {})"
        postgres.execute("ALTER TABLE ledger_1 DROP CONSTRAINT ledger_1_pkey")
        postgres.execute(f"DELETE FROM ledger_1 WHERE {first.format('LIMIT 1')}")
        postgres.execute(f"UPDATE ledger_1 SET payload = '' WHERE {first.format('LIMIT 1')}")
        postgres.execute(
            f"INSERT INTO ledger_1 SELECT * FROM ledger_1 WHERE {first.format('LIMIT 1 OFFSET 1')}"
        )
        books.reckon()
        reckoned = books.reckoned
        assert (reckoned.lost, reckoned.wrong, reckoned.twice) == (1, 1, 1)
        assert not reckoned.ok


def test_commits_that_do_not_return_are_noticed(
    postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "RECOVERY_SECONDS", 0.5)
    with Books(postgres.dsn(), seed=1) as books:
        books.wait_for_progress(TIMEOUT)
        chronicle, watch = Chronicle(), SilenceWatch(lambda: books.acknowledged)
        watch.start()
        soak = run.Soak(None, books, chronicle, watch, None, None)  # type: ignore[arg-type]
        spell = chronicle.begin("a fault that lasts")
        books.rest(TIMEOUT)
        with pytest.raises(DeadlineExceeded, match="without a fault"):
            wait_until(lambda: soak.check_progress(), TIMEOUT, "the end of patience")
        seen = watch.longest
        books.resume()
        wait_until(lambda: watch.longest is not seen, TIMEOUT, "the silence to end")
        watch.stop()
        assert watch.longest.seconds >= 0.5
        assert chronicle.at(watch.longest) == [spell.what]


def test_a_wrong_status_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has limited time to become true."""
    members = [{"safekeeper_id": id, "state": "active"} for id in (1, 2, 3)]
    timeline = {"condition": "OK", "verdict": "OK: commits proceed", "members": members}
    answers = [told.Told(3, {**timeline, "condition": "BLOCKED"}), told.Told(0, timeline)]
    monkeypatch.setattr(told, "ask", lambda world: answers.pop(0) if answers[1:] else answers[0])
    world: Any = None  # which only `ask` requests
    assert told.wait_for_truth(world, told.all_is_well, "all is well").exit_code == 0
    monkeypatch.setattr(told, "TELLING_SECONDS", 0.0)
    untrue = {
        told.commits_wait: "no commit returns",
        told.member_is(2, "unreachable"): "safekeeper 2 is unreachable",
        told.one_is_missed: "one member is missing",
    }
    for truth, problem in untrue.items():
        with pytest.raises(told.UntrueStatus, match=f"a fault, and sk status is wrong: {problem}"):
            told.wait_for_truth(world, truth, "a fault")
