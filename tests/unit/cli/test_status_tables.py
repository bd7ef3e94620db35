"""Lines of `sk status`: about the coordinator of a proposer, and where the runbook continues."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from cluster_pages import Answers, emptied, safekeeper

from quorum_wal.cli.status_tables import proposer_line, runbook_line, safekeepers_table
from quorum_wal.cluster.timeline_view import ProposerView
from quorum_wal.cluster.verdict import judge
from quorum_wal.consensus.ids import NodeId
from quorum_wal.walproposer.timelines.discovery import SafekeeperReport

AT = datetime(2026, 11, 24, 10, tzinfo=UTC)
AGE = {"len": 3, "len_max": 10, "age": 7.2}
LEADING = {"address": "db:5455", "owner": "ab", "refuses": None, **AGE}


def line_of(qsync: dict[str, Any]) -> str:
    page = {
        "state": "streaming",
        "primary": {"dsn": "host=db", "flush_lsn": "0/9"},
        "received_lsn": "0/9",
        "commit_lsn": "0/8",
        "commit_bytes_per_second": 0,
        "quorum": {"ok": True, "since": AT.isoformat()},
        "qsync": qsync,
    }
    return proposer_line(
        ProposerView(
            http="db:80", node_id=NodeId.ZERO, streams_to={}, page=page, error="", read_at=AT
        )
    )


@pytest.mark.parametrize(
    ("qsync", "said"),
    [
        (LEADING, "; qsync at db:5455: 3 of 10 prepared, the oldest for 7 s"),
        (LEADING | {"len": 0}, "; qsync at db:5455: 0 of 10 prepared"),
        (
            {"address": "db:5455", "refuses": "could not listen on db:5455: Address in use"},
            "; qsync at db:5455: could not listen on db:5455: Address in use",
        ),
        (
            LEADING | {"owner": None, "refuses": "qsync has failed: KeyError('a')"},
            "; qsync at db:5455: qsync has failed: KeyError('a')",
        ),
    ],
)
def test_its_limbo_or_why_there_is_none(qsync: dict[str, Any], said: str) -> None:
    assert line_of(qsync).endswith(said)


def test_a_problem_leads_to_the_entry_of_the_runbook() -> None:
    no_proposer = judge(Answers([safekeeper(i, proposer=None) for i in (1, 2, 3)], {}).view())
    (line,) = runbook_line(no_proposer.runbook)
    assert line.plain == "runbook: docs/runbook.md#no-proposer"
    assert runbook_line(judge(Answers().view()).runbook) == []


def test_damage_is_a_problem_of_its_safekeeper() -> None:
    reports = [
        safekeeper(1),
        safekeeper(2, damage=["the WAL at 0/5 is damaged"]),
        emptied(3, damaged={"folder": "its control file is damaged"}),
    ]
    problems = list(safekeepers_table(reports).columns[-1].cells)
    assert problems == ["", "timelines with damaged WAL: 1", "timelines cannot be read: 1"]


def test_files_that_are_not_in_force_and_certificates_that_end() -> None:
    now = datetime.now(UTC)

    def until(days: int, **more: Any) -> SafekeeperReport:
        return replace(
            safekeeper(1), certificate_until=(now + timedelta(days=days)).isoformat(), **more
        )

    ends, ended = (f"{now + timedelta(days=days):%Y-%m-%d %H:%M} UTC" for days in (3, -1))
    reports = [until(90), until(3), until(-1), until(-1, unusable_files={"tls.crt": "is empty"})]
    assert list(safekeepers_table(reports).columns[-1].cells) == [
        "",
        f"its certificate ends on {ends}",
        f"its certificate has ended on {ended}",
        f"not in force: tls.crt (is empty); its certificate has ended on {ended}",
    ]


def test_a_safekeeper_without_a_timeline_is_told_from_the_members() -> None:
    """It may be the wrong address, with the id of a member."""
    reports = [*map(safekeeper, (1, 2, 3)), emptied(3)]
    views = [Answers(reports[:3]).view()]
    problems = list(safekeepers_table(reports, views).columns[-1].cells)
    assert problems == ["", "", "", "stores no timeline"]
    assert list(safekeepers_table([emptied(3)]).columns[-1].cells) == [""]
