"""A cluster in which all is well, as series, and for each alert what must change to raise it.

    WELL    {series: value}                 no alert may fire
    Case    (alert, changed series, ...)    this alert must fire

A value is "start" or "start+step", with a step for each minute; or a whole sequence of promtool
("1+0x30 0+0x30"). None takes the series away.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

MiB, GiB = 1 << 20, 1 << 30
DAY = 86400  # seconds

TIMELINE = {"tenant_id": "0a", "timeline_id": "c0"}
PROPOSER = {"job": "sk-proposer", "instance": "pg1:7677"}
PAGESERVER = {"job": "sk-pageserver", "instance": "ps1:7680"}
GENERATIONS = {"job": "sk-generations", "instance": "gen1:7670"}
SECOND = {"safekeeper": "sk2:5454"}
THIRD = {"safekeeper": "sk3:5454"}
OWNER = {"owner": "77"}


def safekeeper(number: int) -> dict[str, str]:
    return {"job": "sk-safekeeper", "instance": f"sk{number}:7676"}


KEEPER = safekeeper(1)
KEPT = {**KEEPER, **TIMELINE}


def series(name: str, *labels: Mapping[str, str]) -> str:
    merged = {key: value for each in labels for key, value in each.items()}
    return name + "{" + ",".join(f'{key}="{value}"' for key, value in merged.items()) + "}"


def _states(name: str, now: str, others: tuple[str, ...], labels: Mapping[str, str]) -> Changes:
    return {series(name, labels, {"state": s}): str(int(s == now)) for s in (now, *others)}


def proposer_in(state: str) -> Changes:
    """The state set of the proposer."""
    others = {"starting", "waiting_for_primary", "waiting_for_lock", "waiting_for_promotion"}
    others |= {"connecting", "campaigning", "recovering", "streaming", "stopped"}
    return _states("sk_proposer_state", state, tuple(sorted(others - {state})), PROPOSER)


Changes = dict[str, str | None]


def _of(labels: Mapping[str, str], values: Mapping[str, str]) -> Changes:
    return {series(name, labels): value for name, value in values.items()}


def _well_proposer() -> Changes:
    well = _of(
        PROPOSER,
        {
            "up": "1",
            "sk_proposer_quorum_ok": "1",
            "sk_proposer_quorum_losses_total": "1",
            "sk_proposer_unconfirmed_seconds": "0.01",
            "sk_proposer_primary_silent_seconds": "0.4",
            "sk_proposer_stalled_seconds": "0",
            "sk_proposer_commits_protected": "1",
            "sk_proposer_term": "7",
            "sk_proposer_qsync_deciding": "1",
            "sk_proposer_qsync_term": "7",
            "sk_proposer_qsync_limbo_len": "3",
            "sk_proposer_qsync_limbo_len_max": "100",
            "sk_proposer_qsync_limbo_age_seconds": "0.2",
            "sk_proposer_qsync_unconfirmed": "2",
            "sk_proposer_qsync_foreign": "1",
            "sk_proposer_qsync_waiting": "5",
            "sk_proposer_qsync_pending_total": "4",
            "sk_proposer_qsync_committed_total": "4",
        },
    )
    well[series("sk_proposer_qsync_owner", PROPOSER, OWNER)] = "1"
    for number in (1, 2, 3):
        labels = {**PROPOSER, "safekeeper": f"sk{number}:5454"}
        well |= _of(
            labels,
            {
                "sk_proposer_safekeeper_connected": "1",
                "sk_proposer_safekeeper_lag_bytes": "4096",
                "sk_proposer_safekeeper_chained": "1" if number == 2 else "0",
                "sk_proposer_safekeeper_left_behind": "0",
            },
        )
    return well | proposer_in("streaming")


def _well_safekeeper(number: int) -> Changes:
    keeper = safekeeper(number)
    well = _of(
        {**keeper, **TIMELINE},
        {
            "sk_timeline_active": "1",
            "sk_timeline_proposer_connected": "1",
            "sk_timeline_proposer_silent_seconds": "0.4",
            "sk_timeline_flush_lsn": f"{100 * GiB}+{MiB}",
            "sk_timeline_commit_lsn": f"{100 * GiB}+{MiB}",
            "sk_timeline_truncate_lsn": f"{100 * GiB}+{MiB}",
            "sk_timeline_local_start_lsn": f"{99 * GiB}+{MiB}",
            "sk_timeline_pageserver_held_bytes": f"{GiB}",
            "sk_timeline_archive_backlog_bytes": f"{16 * MiB}",
            "sk_timeline_archive_failures": "2",
            "sk_timeline_holes": "0",
            "sk_timeline_lost_lsn": "0",
            "sk_timeline_slots_lost": "0",
            "sk_timeline_member_left_behind": "0",
        },
    )
    well |= _of(
        keeper,
        {
            "up": "1",
            "sk_timelines_damaged": "0",
            "sk_unusable_files": "0",
            # Tests begin in 1970, and the longest one takes two and a half days.
            "sk_certificate_end_timestamp_seconds": f"{90 * DAY}",
            "sk_disk_free_bytes": f"{100 * GiB}",
            "sk_connections": "98",
            "sk_connections_unauthenticated": "1",
            "sk_scrub_bytes_total": f"0+{MiB}",
            "sk_scrub_passes_total": "0",
            "sk_scrub_damages_total": "0",
            "sk_connections_refused_total": "3",
            "sk_refusals_total": "3",
            "sk_connections_evicted_total": "3",
        },
    )
    for role in ("proposer", "replica", "monitor", "client", "admin"):
        count = "90" if role == "proposer" else "2"  # these have no limit of their own
        well[series("sk_connections_of_role", keeper, {"role": role})] = count
    for bound in ("0.1", "1", "+Inf"):
        well[series("sk_wal_flush_seconds_bucket", keeper, {"le": bound})] = "0+1000"
    others = ("asleep", "creating", "stopped", "damaged")
    return well | _states("sk_timelines", "active", others, keeper)


def _well_pages() -> Changes:
    well = _of(
        PAGESERVER,
        {
            "up": "1",
            "sk_pageserver_emergency": "0",
            "sk_pageserver_deletion_lists": "2",
            "sk_pageserver_stale_attachments": "0",
            "sk_pageserver_unwell_timelines": "0",
            "sk_pageserver_validated_seconds_ago": "4",
            "sk_pageserver_unusable_files": "0",
            "sk_certificate_end_timestamp_seconds": f"{90 * DAY}",
            "sk_pageserver_check_seconds_ago": "1800",
            "sk_pageserver_damaged_pages": "0",
        },
    )
    well |= _of(
        {**PAGESERVER, "timeline": "0a.c0"},
        {"sk_pageserver_lag_bytes": f"{GiB}", "sk_pageserver_dead_share": "0.2"},
    )
    well |= _of(
        GENERATIONS,
        {
            "up": "1",
            "sk_generations_database_up": "1",
            "sk_generations_unusable_files": "0",
            "sk_certificate_end_timestamp_seconds": f"{90 * DAY}",
            "sk_generations_invalid_nodes_total": "1",
            "sk_generations_invalid_tenants_total": "1",
        },
    )
    for outcome in ("done", "refused", "failed"):
        labels = {**GENERATIONS, "operation": "validate", "outcome": outcome}
        well[series("sk_generations_requests_total", labels)] = "0+6" if outcome == "done" else "1"
    return well


#: Situations that look like a fault, but are none.
_ODD: Changes = {
    # a timeline that has had no proposer for long
    series("sk_timeline_proposer_connected", KEEPER, {"tenant_id": "0a", "timeline_id": "c1"}): "0",
    # a member that does not know yet what all have flushed
    series("sk_timeline_truncate_lsn", safekeeper(3), TIMELINE): "0",
    # a scrub that finds no cold WAL ends its passes
    series("sk_scrub_bytes_total", safekeeper(2)): "0",
    series("sk_scrub_passes_total", safekeeper(2)): "0+0.001",
}

WELL: Changes = {
    **_well_proposer(),
    **{name: value for n in (1, 2, 3) for name, value in _well_safekeeper(n).items()},
    **_well_pages(),
    **_ODD,
}


@dataclass(frozen=True)
class Case:
    """`value`: how the annotations print `$value`. `minutes`: when the alert must fire, if the
    series change at minute 0."""

    alert: str
    changes: Changes
    labels: Mapping[str, str]
    value: str = ""
    minutes: int = 20


def _case(
    alert: str,
    name: str,
    labels: Mapping[str, str],
    value: str,
    printed: str = "",
    *,
    minutes: int = 20,
    hidden: tuple[str, ...] = (),
) -> Case:
    """One series that is changed; `hidden` labels of it are not the alert's."""
    shown = {key: text for key, text in labels.items() if key not in hidden}
    changes: Changes = {series(name, labels): value}
    return Case(alert, changes, shown, printed, minutes)


def _of_proposer(alert: str, name: str, value: str, printed: str = "", minutes: int = 20) -> Case:
    return _case(alert, f"sk_proposer_{name}", PROPOSER, value, printed, minutes=minutes)


def _of_second(alert: str, name: str, value: str, printed: str = "", minutes: int = 20) -> Case:
    labels = {**PROPOSER, **SECOND}
    return _case(alert, f"sk_proposer_safekeeper_{name}", labels, value, printed, minutes=minutes)


def _on_all(alert: str, name: str, value: str, printed: str) -> Case:
    """The same on all safekeepers; the alert belongs to the timeline."""
    places = [{**safekeeper(number), **TIMELINE} for number in (1, 2, 3)]
    return Case(alert, {series(name, labels): value for labels in places}, TIMELINE, printed)


#: While the proposer waits for the primary, metrics still show the end of the last term.
OF_LAST_TERM: Changes = {
    series("sk_proposer_quorum_ok", PROPOSER): "0",
    series("sk_proposer_unconfirmed_seconds", PROPOSER): "30",
    series("sk_proposer_commits_protected", PROPOSER): "0",
    series("sk_proposer_primary_silent_seconds", PROPOSER): "30",
    series("sk_proposer_safekeeper_connected", PROPOSER, SECOND): "0",
    series("sk_proposer_qsync_deciding", PROPOSER): "0",
}
NOT_DECIDING: Changes = {series("sk_proposer_qsync_deciding", PROPOSER): "0"}
FAR_BEHIND = f"{GiB}+{GiB // 8}"
ONCE_CONNECTED = "1+0x5 0+0x600"

COMMITS = (
    _of_proposer("SkQuorumLost", "quorum_ok", "0"),
    _of_proposer("SkQuorumUnstable", "quorum_losses_total", "1+1", "60", minutes=90),
    _of_proposer("SkCommitsWait", "unconfirmed_seconds", "30+60", "20m 30s"),
    _of_proposer("SkUnprotected", "commits_protected", "0"),
    Case(
        "SkFlushSlow",
        {series("sk_wal_flush_seconds_bucket", KEEPER, {"le": "0.1"}): "0+900"},
        KEEPER,
        "910ms",
    ),
)
LEADING = (
    _on_all("SkNoProposer", "sk_timeline_proposer_connected", ONCE_CONNECTED, "0"),
    Case(
        "SkNoPrimary",
        {**proposer_in("waiting_for_primary"), **OF_LAST_TERM},
        {**PROPOSER, "state": "waiting_for_primary"},
    ),
    Case("SkElectionLasts", {**proposer_in("campaigning"), **NOT_DECIDING}, PROPOSER),
    Case("SkElectionLasts", proposer_in("connecting"), PROPOSER),
    _case("SkProposerDown", "up", PROPOSER, "0"),
    _of_proposer("SkProposerHung", "stalled_seconds", "60+60", "21m 0s"),
    _on_all("SkProposerSilent", "sk_timeline_proposer_silent_seconds", "60+60", "3"),
    _of_proposer("SkPrimaryHung", "primary_silent_seconds", "60+60", "21m 0s"),
    _of_proposer("SkTermsRise", "term", "7+1", "60", minutes=90),
    Case("SkTargetsMissing", {series("up", PROPOSER): None}, {"job": "sk-proposer"}),
)
MEMBERS = (
    _case("SkSafekeeperDown", "up", KEEPER, "0"),
    Case(
        "SkSafekeeperNotFollowing",
        {
            series("sk_proposer_safekeeper_connected", PROPOSER, THIRD): "0",
            series("sk_proposer_safekeeper_lag_bytes", PROPOSER, THIRD): FAR_BEHIND,
        },
        {**PROPOSER, **THIRD},
    ),
    _of_second("SkSafekeeperLags", "lag_bytes", FAR_BEHIND, "6Gi", minutes=40),
    _of_second("SkSafekeeperNotChained", "chained", ONCE_CONNECTED),
    _of_second("SkMemberLeftBehind", "left_behind", "1"),
    _case("SkMemberLeftBehind", "sk_timeline_member_left_behind", KEPT, "1"),
    _case("SkMemberHoldsWal", "sk_timeline_truncate_lsn", KEPT, f"{60 * GiB}+{MiB}", "40Gi"),
    Case(
        "SkTimelineStopped",
        {
            series("sk_timeline_active", KEPT): "0",
            series("sk_timelines", KEEPER, {"state": "stopped"}): "1",
            series("sk_timelines", KEEPER, {"state": "active"}): "0",
        },
        KEPT,
    ),
    _case("SkTimelineUnreadable", "sk_timelines_damaged", KEEPER, "2", "2"),
    Case(
        "SkTimelineUnfinished",
        {
            series("sk_timeline_active", KEPT): "0",
            series("sk_timelines", KEEPER, {"state": "creating"}): "1",
        },
        {**KEEPER, "state": "creating"},
        "1",
    ),
    _case("SkWalDamaged", "sk_timeline_holes", KEPT, "2", "2"),
    _case("SkLogEndDamaged", "sk_timeline_lost_lsn", KEPT, f"{100 * GiB}"),
    _case("SkScrubFoundDamage", "sk_scrub_damages_total", KEEPER, "3", "3"),
    _case("SkSlotLost", "sk_timeline_slots_lost", KEPT, "1", "1"),
    _case("SkWalHeld", "sk_timeline_local_start_lsn", KEPT, f"{60 * GiB}+{MiB}", "40Gi"),
    _case("SkArchiveFails", "sk_timeline_archive_failures", KEPT, "0+2", minutes=40),
    _on_all("SkArchiveBacklog", "sk_timeline_archive_backlog_bytes", f"{GiB}", "1Gi"),
    _case("SkDiskFull", "sk_disk_free_bytes", KEEPER, f"{60 * MiB}", "60Mi"),
)
QSYNC = (
    _of_proposer("SkQsyncNotDeciding", "qsync_deciding", "0"),
    _of_proposer("SkQsyncNotDeciding", "qsync_term", "0"),
    Case(
        "SkQsyncNotDeciding", {series("sk_proposer_qsync_owner", PROPOSER, OWNER): None}, PROPOSER
    ),
    _of_proposer("SkQsyncLimboFull", "qsync_limbo_len", "90", "90"),
    _of_proposer("SkQsyncLimboOld", "qsync_limbo_age_seconds", "90+60", "21m 30s"),
    _of_proposer("SkQsyncUnconfirmedGrows", "qsync_unconfirmed", "0+5", minutes=40),
    _of_proposer("SkQsyncForeignGrows", "qsync_foreign", "0+1", minutes=150),
    _of_proposer("SkQsyncWaitingGrows", "qsync_waiting", "0+5", minutes=40),
    _of_proposer("SkQsyncAnswersPending", "qsync_pending_total", "0+5", minutes=40),
    _of_proposer("SkQsyncClientsLost", "qsync_committed_total", "0+1", "60", minutes=90),
)
TIMELINE_OF_PAGES = {**PAGESERVER, "timeline": "0a.c0"}
PAGES = (
    _case("SkPageserverDown", "up", PAGESERVER, "0"),
    _case("SkPageserverLags", "sk_pageserver_lag_bytes", TIMELINE_OF_PAGES, f"{9 * GiB}", "9Gi"),
    _case("SkPageserverHoldsWal", "sk_timeline_pageserver_held_bytes", KEPT, f"{40 * GiB}", "40Gi"),
    _case("SkPageserverStale", "sk_pageserver_stale_attachments", PAGESERVER, "1", "1", minutes=40),
    _case("SkPageserverUnwell", "sk_pageserver_unwell_timelines", PAGESERVER, "1", "1"),
    _case("SkPageserverEmergency", "sk_pageserver_emergency", PAGESERVER, "1"),
    _case(
        *("SkPageserverNotValidated", "sk_pageserver_validated_seconds_ago", PAGESERVER),
        *("400+60", "26m 40s"),
    ),
    _case(
        *("SkPageCheckLate", "sk_pageserver_check_seconds_ago", PAGESERVER),
        *("10800", "3h 0m 0s"),
    ),
    _case("SkPagesDamaged", "sk_pageserver_damaged_pages", PAGESERVER, "2", "2"),
    _case("SkGenerationsDown", "up", GENERATIONS, "0"),
    _case("SkGenerationsDatabaseDown", "sk_generations_database_up", GENERATIONS, "0"),
    _case(
        *("SkGenerationsRequestsFail", "sk_generations_requests_total"),
        {**GENERATIONS, "operation": "validate", "outcome": "failed"},
        "0+2",
        hidden=("outcome",),
    ),
    _case(
        *("SkGenerationsInvalidNodes", "sk_generations_invalid_nodes_total", GENERATIONS, "0+2"),
        minutes=40,
    ),
    _case(
        *("SkGenerationsInvalidTenants", "sk_generations_invalid_tenants_total", GENERATIONS),
        "0+2",
        minutes=60,
    ),
)
ACCESS = (
    _case("SkUnusableFiles", "sk_unusable_files", KEEPER, "1", "1"),
    _case("SkUnusableFiles", "sk_pageserver_unusable_files", PAGESERVER, "1", "1"),
    _case("SkUnusableFiles", "sk_generations_unusable_files", GENERATIONS, "1", "1"),
    _case(
        *("SkCertificateEnds", "sk_certificate_end_timestamp_seconds", KEEPER, f"{10 * DAY}"),
        "1970-01-11 00:00:00 +0000 UTC",
    ),
    _case(
        *("SkCertificateEnded", "sk_certificate_end_timestamp_seconds", KEEPER, "60"),
        "1970-01-01 00:01:00 +0000 UTC",
    ),
    _case("SkConnectionsNearMax", "sk_connections", KEEPER, "190", "190"),
    _case(
        *("SkRoleConnectionsNearMax", "sk_connections_of_role"),
        *({**KEEPER, "role": "monitor"}, "90", "90"),
    ),
    _case("SkUnauthenticatedConnections", "sk_connections_unauthenticated", KEEPER, "64"),
    _case("SkConnectionsRefused", "sk_connections_refused_total", KEEPER, "0+3"),
    _case("SkRefusals", "sk_refusals_total", KEEPER, "0+3"),
    _case("SkConnectionsEvicted", "sk_connections_evicted_total", KEEPER, "0+3"),
)
QUICK_CASES = (*COMMITS, *LEADING, *MEMBERS, *QSYNC, *PAGES, *ACCESS)

#: Cases that take hours.
SLOW_CASES = (
    _case("SkScrubStopped", "sk_scrub_bytes_total", KEEPER, "5", minutes=35 * 60),
    _case(
        "SkPageserverDeadPages",
        "sk_pageserver_dead_share",
        TIMELINE_OF_PAGES,
        "0.6",
        "60%",
        minutes=500,
    ),
    _case(
        *("SkPageserverDeletionsPileUp", "sk_pageserver_deletion_lists", PAGESERVER),
        "0+1",
        minutes=60 * 60,
    ),
    _case(
        *("SkDiskFilling", "sk_disk_free_bytes", KEEPER, f"{200 * GiB}-{50 * MiB}"),
        minutes=55 * 60,
    ),
)
