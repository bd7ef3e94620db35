"""The rules of `sk check`: each fault is found, with its remedy, and nothing else is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from cluster_pages import TIMELINE, departed, emptied, membership, safekeeper, silent
from healthy_primary import ADDRESS, HEALTHY, SETTINGS, unwell

from quorum_wal.consensus.ids import TimelineId
from quorum_wal.walproposer.checks.finding import Finding, Level
from quorum_wal.walproposer.checks.preflight import check_primary
from quorum_wal.walproposer.checks.preflight_members import check_safekeepers
from quorum_wal.walproposer.primary.primary_settings import Override, PrimarySettings, Slot
from quorum_wal.walproposer.primary.walsenders import WalSender
from quorum_wal.walproposer.timelines.discovery import SafekeeperReport

OTHER = WalSender(43, "other")

#: Changes that make it one that was never attached.
UNATTACHED: dict[str, Any] = {
    "settings": {**SETTINGS, "synchronous_standby_names": ""},
    "log_markers": (),
}
NEW = replace(HEALTHY, **UNATTACHED)


def only_finding(**changes: Any) -> Finding:
    """The one that is not ok, after changing fields of a healthy primary."""
    settings = {**SETTINGS, **changes.pop("settings", {})}
    primary = replace(HEALTHY, settings=settings, **changes)
    (finding,) = unwell(check_primary(primary, ADDRESS))
    return finding


def test_a_healthy_primary_has_nothing_to_mend() -> None:
    findings = check_primary(HEALTHY, ADDRESS)
    assert unwell(findings) == []
    assert not any(finding.remedy for finding in findings)
    assert len(findings) >= 13


@pytest.mark.parametrize("major", range(13, 19))
def test_supported_versions(major: int) -> None:
    assert unwell(check_primary(replace(HEALTHY, version=major * 10000 + 1), ADDRESS)) == []


@pytest.mark.parametrize("version", [120022, 190000])
def test_other_versions(version: int) -> None:
    finding = only_finding(version=version)
    assert finding.level is Level.FAIL
    assert "supported are 13 to 18" in finding.text


FAILURES: list[tuple[dict[str, Any], str, str]] = [
    ({"in_recovery": True}, "the server is a standby", "pg_promote()"),
    ({"may_replicate": False}, "may not replicate", "ALTER ROLE postgres REPLICATION;"),
    ({"replication_error": "no pg_hba.conf entry"}, "no pg_hba.conf entry", "host replication"),
    ({"settings": {"wal_level": "minimal"}}, "minimal", "wal_level = 'replica'; then restart"),
    ({"walsenders": 10}, "all 10 are in use", "max_wal_senders = '15'; then restart"),
    ({"slot": None, "slots": 10}, "all 10 are taken", "max_replication_slots = '15'"),
    ({"log_markers": (), "slots": 10}, "all 10 are taken", "max_replication_slots = '15'"),
    ({"slot": None, "log_markers": (), "slots": 9}, "2 are needed", "max_replication_slots = '15'"),
    ({"slot": Slot("logical", "reserved", None, "")}, "is logical", "another --slot"),
    (
        {"slot": Slot("physical", "reserved", 42, "pg_receivewal")},
        'is used by "pg_receivewal" (pid 42)',
        "stop that client",
    ),
    ({"slot": Slot("physical", "lost", None, "")}, "has lost WAL", "pg_drop_replication_slot("),
    ({"settings": {"synchronous_commit": "off"}}, '"off"', "synchronous_commit = 'on'"),
    ({"settings": {"synchronous_commit": "local"}}, '"local"', "synchronous_commit = 'on'"),
    (
        {"overrides": (Override("Sales", "", "off"),)},
        '"off" by ALTER DATABASE "Sales"',
        'ALTER DATABASE "Sales" RESET synchronous_commit;',
    ),
    ({"overrides": (Override("", "app", "local"),)}, "", "ALTER ROLE app RESET"),
    ({"overrides": (Override("d", "app", "off"),)}, "", "ALTER ROLE app IN DATABASE d RESET"),
    ({"overrides": (Override("", "", "off"),)}, "", "ALTER ROLE ALL RESET"),
    ({"settings": {"fsync": "off"}}, "a crash", "fsync = 'on'"),
]


@pytest.mark.parametrize(("changes", "text", "remedy"), FAILURES)
def test_failures(changes: dict[str, Any], text: str, remedy: str) -> None:
    finding = only_finding(**changes)
    assert finding.level is Level.FAIL
    assert text in finding.text
    assert remedy in finding.remedy


WARNINGS: list[tuple[dict[str, Any], str, str]] = [
    ({"is_superuser": False}, "--configure will not work", "as a superuser"),
    (
        {"slot": Slot("physical", "reserved", 42, "walproposer")},
        "used by a proposer (pid 42)",
        "takes over",
    ),
    ({"slot": Slot("physical", "unreserved", None, "")}, "keeps more than", "Attach soon"),
    ({"settings": {"max_slot_wal_keep_size": "-1"}}, "disk is full (51200 MB", "'25600MB'"),
    ({"settings": {"max_slot_wal_keep_size": "999999"}}, "more than the free disk", "'25600MB'"),
    ({"settings": {"max_slot_wal_keep_size": "64"}}, "64 MB", "'25600MB'"),
    ({"settings": {"wal_sender_timeout": "0"}}, "no timeout", "'60s'"),
    ({"settings": {"wal_sender_timeout": "1000"}}, "1000 ms", "'60s'"),
    (
        {"settings": {"synchronous_standby_names": "ANY 1 (other, walproposer)"}},
        "names others: other; commits may return when they confirm",
        "synchronous_standby_names = 'walproposer'",
    ),
    ({"standbys": (OTHER,)}, "commits wait now", "sk detach"),
    ({"settings": {"full_page_writes": "off"}}, "write partial pages", "full_page_writes = 'on'"),
    ({"clock_ahead_seconds": -7.0}, "7.0 s behind ours", "NTP"),
]


@pytest.mark.parametrize(("changes", "text", "remedy"), WARNINGS)
def test_warnings(changes: dict[str, Any], text: str, remedy: str) -> None:
    finding = only_finding(**changes)
    assert finding.level is Level.WARN
    assert text in finding.text
    assert remedy in finding.remedy


@pytest.mark.parametrize("value", ["on", "remote_write", "remote_apply"])
def test_commits_that_wait_for_a_standby_are_well(value: str) -> None:
    primary = replace(
        HEALTHY,
        settings={**SETTINGS, "synchronous_commit": value},
        overrides=(Override("d", "", value),),
    )
    assert unwell(check_primary(primary, ADDRESS)) == []


def test_without_standby_names_yet_commits_return_with_one_copy() -> None:
    finding = only_finding(settings={"synchronous_standby_names": ""}, slot=None, standbys=())
    assert finding.level is Level.WARN
    assert finding.text == "empty: commits return with one copy, on the primary"
    assert finding.remedy == "sk attach --configure sets it."


# ---- safekeepers

THREE = [safekeeper(1), safekeeper(2), safekeeper(3)]
#: Of an older release, which did not store the addresses of the members.
OLD = [safekeeper(i, membership={**membership(), "roster": []}) for i in (1, 2, 3)]
EMPTY = [emptied(1), emptied(2), emptied(3)]


def test_healthy_safekeepers() -> None:
    assert unwell(check_safekeepers(THREE, HEALTHY, None)) == []
    assert unwell(check_safekeepers(EMPTY, NEW, None)) == []


@pytest.mark.parametrize(
    ("reports", "primary", "text", "remedy"),
    [
        (EMPTY, HEALTHY, "belongs to log abab", "sk detach --drop-slot"),
        (THREE, replace(HEALTHY, log_markers=("sk_log_cd",)), "belongs to log cd, not", "detach"),
        (EMPTY, replace(NEW, settings=SETTINGS), "wait for a proposer", "sk timeline create"),
    ],
)
def test_a_primary_of_another_log(
    reports: list[SafekeeperReport], primary: PrimarySettings, text: str, remedy: str
) -> None:
    (finding,) = unwell(check_safekeepers(reports, primary, None))
    assert finding.level is Level.FAIL
    assert text in finding.text
    assert remedy in finding.remedy


def test_safekeepers_that_could_not_be_asked_may_have_its_log() -> None:
    """The advice to leave the log would lose its commits."""
    refused = [replace(silent(i), error="wrong password", hint="Correct it.") for i in (1, 2, 3)]
    found = {each.check: each for each in unwell(check_safekeepers(refused, HEALTHY, None))}
    finding = found["log of the primary"]
    assert finding.text.endswith("not all safekeepers could be asked whether they have it: wrong "
                                 "password")  # fmt: skip
    assert finding.remedy == "Correct it."
    found = {each.check: each for each in unwell(check_safekeepers(refused, NEW, None))}
    assert found["timeline"].remedy == "Correct it."


MEMBER_FAULTS: list[tuple[list[Any], dict[str, Any], list[tuple[Level, str]]]] = [
    ([*THREE[:2], silent(3)], {}, [(Level.FAIL, "Connection refused")]),
    (
        [THREE[0], silent(2), silent(3)],
        {},
        [(Level.FAIL, "refused"), (Level.FAIL, "refused"), (Level.FAIL, "only 1 of 3")],
    ),
    (
        [emptied(1), emptied(2), silent(3)],
        UNATTACHED,
        [(Level.FAIL, "refused"), (Level.FAIL, "only 2 of 3 safekeepers answer")],
    ),
    ([emptied(1), emptied(2), emptied(1)], UNATTACHED, [(Level.FAIL, "have the same id 1")]),
    ([*THREE[:2], emptied(3)], {}, [(Level.WARN, "safekeeper 3 lost its data")]),
    (
        [*THREE[:2], safekeeper(3, state="stopped", stopped_reason="disk")],
        {},
        [(Level.WARN, "safekeeper 3 is stopped: disk")],
    ),
    ([*THREE, emptied(4)], {}, [(Level.WARN, "safekeeper 4 is not a member of the timeline")]),
    (THREE[:2], {}, []),
    (
        [*THREE[:2], replace(THREE[2], instance="00ff" * 4)],
        {},
        [(Level.WARN, "safekeeper 3 lost its data")],
    ),
    ([*OLD[:2], emptied(4)], {}, [(Level.FAIL, "the timeline's members are 1, 2, 3")]),
    (OLD[:2], {}, [(Level.FAIL, "the timeline's members are 1, 2, 3")]),
    ([departed(i) for i in (1, 2, 3)], {}, [(Level.FAIL, "only 0 of 3 can vote")]),
    ([*THREE[:2], replace(THREE[2], version="0.2.0")], {}, [(Level.WARN, "run 0.1.0, 0.2.0")]),
    (
        [*THREE[:2], replace(THREE[2], disk={"free_bytes": 1 << 20, "total_bytes": 1 << 30})],
        {},
        [(Level.FAIL, "1 of 1024 MB are free")],
    ),
    (
        [*THREE[:2], replace(THREE[2], disk={"free_bytes": 512 << 20, "total_bytes": 1 << 30})],
        {},
        [(Level.WARN, "512 of 1024 MB are free")],
    ),
    ([*THREE[:2], replace(THREE[2], page_error="401")], {}, [(Level.WARN, "401")]),
    (THREE, {"version": 160000}, [(Level.FAIL, "was created for Postgres 15")]),
    (THREE, {"wal_seg_size": 1 << 20}, [(Level.FAIL, "16777216 byte segments")]),
    (THREE, {"flush_lsn": 0x1FFFFFF}, [(Level.FAIL, "but 0/2000000 was committed")]),
]


@pytest.mark.parametrize(("reports", "changes", "expected"), MEMBER_FAULTS)
def test_faults_of_safekeepers(
    reports: list[Any], changes: dict[str, Any], expected: list[tuple[Level, str]]
) -> None:
    found = unwell(check_safekeepers(reports, replace(HEALTHY, **changes), None))
    assert [finding.level for finding in found] == [level for level, _ in expected]
    for finding, (_, text) in zip(found, expected, strict=True):
        assert text in finding.text
        assert finding.remedy


def test_the_timeline_of_another_system_counts_only_when_it_is_named() -> None:
    other = replace(HEALTHY, system_id=8, **UNATTACHED)
    assert unwell(check_safekeepers(THREE, other, None)) == []
    (finding,) = unwell(check_safekeepers(THREE, other, TIMELINE))
    assert finding.level is Level.FAIL
    assert "belongs to system 7, the primary is 8" in finding.text


def test_several_timelines_of_one_system() -> None:
    second = TimelineId(bytes(16), bytes(16))
    reports = [
        replace(report, timelines={**report.timelines, second: report.timelines[TIMELINE]})
        for report in THREE
    ]
    (finding,) = unwell(check_safekeepers(reports, HEALTHY, None))
    assert "have 2 of this primary" in finding.text
    assert unwell(check_safekeepers(reports, HEALTHY, TIMELINE)) == []


def test_without_a_primary_the_safekeepers_are_checked_all_the_same() -> None:
    (finding,) = unwell(check_safekeepers([*THREE[:2], silent(3)], None, None))
    assert finding.check == "safekeeper 10.0.0.3:5454"
