"""Whether commits wait for the quorum, and which standbys can release them: each case is named."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from healthy_primary import ADDRESS, HEALTHY, PROPOSER, SETTINGS, unwell

from quorum_wal.walproposer.checks.finding import Finding, Level
from quorum_wal.walproposer.checks.preflight_commits import check_commits, check_protection
from quorum_wal.walproposer.primary.commit_waits import CommitWaits
from quorum_wal.walproposer.primary.primary_settings import Override, PrimarySettings, Slot
from quorum_wal.walproposer.primary.walsenders import WalSender

HELD = Slot("physical", "reserved", PROPOSER.pid, "walproposer")
RECEIVER = WalSender(50, "walproposer", client_addr="10.0.0.7", role="backup", sync_state="sync")
BEHIND = replace(RECEIVER, sync_state="potential")
STANDBY = WalSender(60, "s1", slot="s1", sync_state="quorum")


def primary(names: str, *standbys: WalSender, **changes: Any) -> PrimarySettings:
    settings = {**SETTINGS, "synchronous_standby_names": names, **changes.pop("settings", {})}
    return replace(HEALTHY, settings=settings, standbys=standbys, slot=HELD, **changes)


def protection(settings: PrimarySettings) -> list[Finding]:
    return unwell(list(check_protection(settings, ADDRESS)))


@pytest.mark.parametrize(
    "settings",
    [
        primary("walproposer", PROPOSER),
        primary('"WalProposer"', PROPOSER),
        primary("FIRST 1 (walproposer)", PROPOSER, WalSender(51, "walproposer", state="startup")),
        primary("ANY 2 (walproposer, s1)", replace(PROPOSER, sync_state="quorum"), STANDBY),
        primary("FIRST 2 (s1, walproposer)", PROPOSER, replace(STANDBY, sync_state="sync")),
        primary("walproposer", PROPOSER, WalSender(52, "s1", sync_state="async")),
        primary("walproposer", replace(PROPOSER, state="", sync_state=""), sees_all=False),
    ],
)
def test_only_the_quorum_lets_commits_return(settings: PrimarySettings) -> None:
    assert protection(settings) == []


@pytest.mark.parametrize(
    ("settings", "text", "remedy"),
    [
        (primary("", PROPOSER), "empty: commits return with one copy", "'walproposer'; SELECT pg"),
        (primary("s1", PROPOSER), "it does not include walproposer", "'walproposer'"),
        (
            primary("walproposer", PROPOSER, settings={"max_wal_senders": "0"}),
            "0: commits return with one copy",
            "max_wal_senders = '10'; then restart",
        ),
        (
            primary("walproposer", PROPOSER, settings={"synchronous_commit": "off"}),
            "commits return before the quorum has them",
            "synchronous_commit = 'on'",
        ),
        # The proposer is down, and another client has its seat; or is the first of two.
        (primary("walproposer", RECEIVER), "from 10.0.0.7), which is not our", "backend(50);"),
        (
            primary("walproposer", RECEIVER, replace(PROPOSER, sync_state="potential")),
            '"walproposer" (pid 50, role backup, from 10.0.0.7), which is not our proposer',
            "pg_terminate_backend(50);",
        ),
        (primary("walproposer, s1", replace(STANDBY, sync_state="sync")), '"s1" (pid 60', "'walp"),
        (
            primary("ANY 1 (walproposer, s1)", replace(PROPOSER, sync_state="quorum"), STANDBY),
            '"s1" (pid 60',
            "'walproposer'",
        ),
        (primary("*", replace(STANDBY, sync_state="sync")), '"s1" (pid 60', "'walproposer'"),
    ],
)
def test_commits_return_without_the_quorum(
    settings: PrimarySettings, text: str, remedy: str
) -> None:
    (finding,) = protection(settings)
    assert finding.level is Level.FAIL
    assert text in finding.text
    assert remedy in finding.remedy


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        (primary("walproposer, s1", PROPOSER, replace(STANDBY, sync_state="potential")), "s1;"),
        (primary("ANY 1 (walproposer, s1)", replace(PROPOSER, sync_state="quorum")), "others: s1;"),
        (primary("*", PROPOSER), "names others: *;"),
        (primary("walproposer", PROPOSER, BEHIND), "is not known as our proposer"),
        (primary("walproposer"), "no such standby streams: commits wait now"),
        (primary("FIRST 2 (s1, walproposer)", replace(STANDBY, sync_state="sync")), "wait now"),
        (primary("2 (walproposer)", PROPOSER), "2 standbys must confirm, and only one is called"),
    ],
)
def test_it_needs_only_one_thing_more(settings: PrimarySettings, text: str) -> None:
    (finding,) = protection(settings)
    assert finding.level is Level.WARN
    assert text in finding.text
    assert finding.remedy


def test_without_our_slot_no_client_is_reported() -> None:
    """It was attached under another --slot, so its proposer is unknown here."""
    other = replace(PROPOSER, slot="other")
    (finding,) = protection(replace(primary("walproposer", other), slot=None))
    assert finding.level is Level.WARN
    assert "is not known as our proposer" in finding.text


@pytest.mark.parametrize("value", ["OFF", "false", "no", "0", "Local"])
def test_all_spellings_of_an_opt_out(value: str) -> None:
    settings = primary("walproposer", PROPOSER, overrides=(Override("", "app", value),))
    (finding,) = unwell(list(check_commits(settings, ADDRESS)))
    assert finding.text.startswith(f'"{value}" by ALTER ROLE app')


@pytest.mark.parametrize("value", ["TRUE", "1", "yes", "on", "remote_apply"])
def test_all_spellings_of_none(value: str) -> None:
    settings = primary("walproposer", PROPOSER, overrides=(Override("", "app", value),))
    assert unwell(list(check_commits(settings, ADDRESS))) == []


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"sees_all": False}, "role postgres may not see which commits wait"),
        ({"commit_waits": CommitWaits(2, 1, 7.2)}, "2 commits wait, the longest for 7 s"),
        ({"checkpointer_obeys": False, "config_age_seconds": 3.0}, "loaded 3 s ago"),
    ],
)
def test_other_findings(changes: dict[str, Any], text: str) -> None:
    settings = primary("walproposer", PROPOSER, **changes)
    (finding,) = unwell(list(check_commits(settings, ADDRESS)))
    assert finding.level is Level.WARN
    assert text in finding.text


def test_what_is_nothing_to_tell() -> None:
    settings = primary(
        "walproposer",
        PROPOSER,
        commit_waits=CommitWaits(30, 0, 0.2),
        checkpointer_obeys=False,
        config_age_seconds=1000.0,
    )
    assert unwell(list(check_commits(settings, ADDRESS))) == []


def test_a_setting_that_may_not_be_read_is_not_called_well() -> None:
    """Our role has its own value, which hides the server's."""
    without = {
        n: v for n, v in primary("walproposer").settings.items() if n != "synchronous_commit"
    }
    (finding,) = protection(replace(primary("walproposer", PROPOSER), settings=without))
    assert finding.level is Level.WARN
    assert "may not read the server's" in finding.text
