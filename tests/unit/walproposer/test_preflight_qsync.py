"""The preflight of qsync: for each missing requirement, the finding and its remedy; and the
findings about prepared transactions in every preflight."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from healthy_primary import ADDRESS, HEALTHY, SETTINGS, unwell

from quorum_wal.walproposer.checks.finding import Finding, Level
from quorum_wal.walproposer.checks.preflight import check_primary
from quorum_wal.walproposer.checks.preflight_qsync import check_qsync, check_standbys
from quorum_wal.walproposer.primary.janitor_rights import JanitorRights
from quorum_wal.walproposer.primary.prepared_transactions import PreparedTransaction

OURS = f"skq1.d.0.1-5000-7-1.{'0' * 32}"
READY = replace(
    HEALTHY,
    settings={**SETTINGS, "wal_level": "logical", "max_prepared_transactions": "100"},
)
RIGHTS = JanitorRights("postgres", True, (), (), ("postgres",))


def with_settings(**settings: str) -> Any:
    return replace(READY, settings={**READY.settings, **settings})


def prepared(gid: str, age_seconds: float) -> PreparedTransaction:
    return PreparedTransaction(gid, "app", "alice", age_seconds)


def only(findings: Iterable[Finding]) -> Finding:
    (finding,) = unwell(list(findings))
    return finding


def test_all_is_ready() -> None:
    assert unwell(list(check_qsync(READY, RIGHTS))) == []
    assert unwell(check_primary(READY, ADDRESS)) == []


@pytest.mark.parametrize("room", ["0", "9"])
def test_there_must_be_room(room: str) -> None:
    finding = only(check_qsync(with_settings(max_prepared_transactions=room), RIGHTS))
    assert (finding.check, finding.level) == ("max_prepared_transactions", Level.FAIL)
    assert finding.text.startswith(f"{room}, expected at least 10")
    assert "standby first" in finding.remedy
    assert "restart the primary" in finding.remedy


@pytest.mark.parametrize(
    ("primary", "check", "text"),
    [
        (with_settings(wal_level="replica"), "wal_level", '"replica"'),
        (replace(READY, version=140012), "version", "Postgres 14.12"),
        (with_settings(max_replication_slots="2"), "max_replication_slots", "2 of 2 are in use"),
        (replace(READY, prepared=(prepared(OURS, 45.0),)), "limbo", "1 transaction of qsync"),
        (
            replace(READY, prepared=(prepared("a", 9999.0), prepared("b", 5.0))),
            "prepared",
            "1 transaction of others, prepared 9999 s ago",
        ),
    ],
)
def test_what_works_but_should_be_known(primary: Any, check: str, text: str) -> None:
    finding = only(check_qsync(primary, RIGHTS))
    assert (finding.check, finding.level) == (check, Level.WARN)
    assert text in finding.text


def test_an_old_postgres_needs_no_logical_wal() -> None:
    primary = replace(with_settings(wal_level="replica", max_replication_slots="2"), version=140012)
    assert only(check_qsync(primary, RIGHTS)).check == "version"


def test_rights_of_the_janitor() -> None:
    rights = replace(RIGHTS, is_superuser=False)
    assert unwell(list(check_qsync(READY, rights))) == []
    finding = only(check_qsync(READY, replace(rights, foreign_owners=("app", "Web"))))
    assert finding.level is Level.WARN
    assert "may not finish transactions of roles: app, Web" in finding.text
    assert "GRANT app TO postgres;" in finding.remedy
    finding = only(check_qsync(READY, replace(RIGHTS, closed=("Private",))))
    assert finding.level is Level.FAIL
    assert 'GRANT CONNECT ON DATABASE "Private" TO postgres;' in finding.remedy


@pytest.mark.parametrize(
    ("room", "level"), [("100", Level.OK), ("200", Level.OK), ("99", Level.FAIL), ("0", Level.FAIL)]
)
def test_a_standby_has_as_much_room(room: str, level: Level) -> None:
    standby = replace(with_settings(max_prepared_transactions=room), in_recovery=True)
    (finding,) = check_standbys(READY, [("host=b", standby)])
    assert (finding.check, finding.level) == ("max_prepared_transactions", level)
    assert "host=b" in finding.text
    assert level is Level.OK or "= 100; then restart it" in finding.remedy


def test_a_standby_of_another_primary() -> None:
    (finding,) = check_standbys(READY, [("host=b", replace(READY, system_id=8))])
    assert finding.level is Level.FAIL
    assert "system 8" in finding.text


def test_every_preflight_lists_prepared_transactions_and_a_closed_server() -> None:
    by_name = {finding.check: finding for finding in check_primary(HEALTHY, ADDRESS)}
    assert by_name["max_prepared_transactions"].level is Level.OK
    assert "qsync cannot be used" in by_name["max_prepared_transactions"].text
    busy = replace(READY, prepared=(prepared(OURS, 1.0), prepared("a", 2.0)))
    by_name = {finding.check: finding for finding in check_primary(busy, ADDRESS)}
    text = by_name["max_prepared_transactions"].text
    assert text == "100; 1 of qsync are prepared, 1 of others"
    finding = only(check_primary(with_settings(default_transaction_read_only="on"), ADDRESS))
    assert (finding.check, finding.level) == ("read_only", Level.WARN)
    assert "sk attach ends the read-only state" in finding.remedy
