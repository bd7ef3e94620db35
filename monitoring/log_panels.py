"""The panels about the log: commits, proposers, members, slots, archive, quorum transactions."""

from __future__ import annotations

from monitoring.panel import (
    PROPOSER,
    SERVICE,
    TIMELINE,
    Kind,
    Panel,
    Query,
    Row,
    Unit,
    number,
    of_proposer,
    of_timeline,
    rate_of,
)

_COMMITS = Row(
    "Commits",
    (
        number(
            "Quorum",
            "Whether a quorum of the safekeepers follows. While it does not, commits wait.",
            of_proposer("quorum_ok"),
            ("lost", "ok"),
        ),
        number(
            "Commits protected",
            "Whether the primary's commits wait for the quorum.",
            of_proposer("commits_protected"),
            ("unprotected", "protected"),
        ),
        Panel(
            "Alerts",
            "Alerts that fire, by severity.",
            Unit.COUNT,
            (
                Query(
                    'count by (severity) (ALERTS{alertname=~"Sk.*",alertstate="firing"})'
                    " or vector(0)",
                    "{{severity}}",
                ),
            ),
            Kind.NUMBER,
        ),
        Panel(
            "WAL",
            "WAL that the primary sent, and WAL that a quorum confirmed.",
            Unit.BYTES_PER_SECOND,
            (
                rate_of(of_proposer("received_lsn"), "received by {{instance}}"),
                rate_of(of_proposer("commit_lsn"), "confirmed by {{instance}}"),
            ),
        ),
        Panel(
            "Unconfirmed time",
            "How long commit_lsn has not moved while there were records to confirm.",
            Unit.SECONDS,
            (of_proposer("unconfirmed_seconds"),),
        ),
        Panel(
            "Flushes",
            "Time of one fdatasync of a safekeeper. A commit waits for the flushes of a quorum.",
            Unit.SECONDS,
            tuple(
                Query(
                    f"histogram_quantile({quantile}, sum by (instance, le) "
                    "(rate(sk_wal_flush_seconds_bucket[$__rate_interval])))",
                    f"{SERVICE} {name}",
                )
                for quantile, name in ((0.5, "p50"), (0.99, "p99"))
            ),
        ),
    ),
)

_PROPOSER = Row(
    "Proposer",
    (
        Panel(
            "State",
            "The state of each proposer. One that waits for its lock is a standby.",
            Unit.COUNT,
            (Query(f"sk_proposer_state{PROPOSER} == 1", "{{instance}}: {{state}}"),),
            Kind.NUMBER,
        ),
        Panel(
            "Terms",
            "Each restart of the proposer or of the primary begins a new term.",
            Unit.COUNT,
            (of_proposer("term"),),
        ),
        Panel(
            "Silence",
            "Time since the primary last answered, and the delay of the proposer's event loop.",
            Unit.SECONDS,
            (
                of_proposer("primary_silent_seconds", "primary of {{instance}}"),
                of_proposer("stalled_seconds", "loop of {{instance}}"),
            ),
        ),
        Panel(
            "WAL window",
            "WAL in the proposer's memory for slow safekeepers.",
            Unit.BYTES,
            (of_proposer("window_bytes"),),
        ),
        Panel(
            "Losses of the quorum",
            "How often the quorum was lost, within an hour.",
            Unit.COUNT,
            (Query(f"increase(sk_proposer_quorum_losses_total{PROPOSER}[1h])"),),
        ),
    ),
)

_MEMBERS = Row(
    "Members",
    (
        Panel(
            "Scraped",
            "1 while the HTTP port of a process answers.",
            Unit.COUNT,
            (Query('up{job=~"sk-.*"}', "{{job}} {{instance}}"),),
        ),
        Panel(
            "Safekeepers that follow",
            "1 while a safekeeper follows its proposer and can confirm commits.",
            Unit.COUNT,
            (of_proposer("safekeeper_connected", "{{safekeeper}}"),),
        ),
        Panel(
            "Lag",
            "WAL that a safekeeper has not flushed.",
            Unit.BYTES,
            (of_proposer("safekeeper_lag_bytes", "{{safekeeper}}"),),
        ),
        Panel(
            "Chained, left behind",
            "Safekeepers that take the WAL from another one, and those that lack WAL that no "
            "safekeeper has.",
            Unit.COUNT,
            (
                of_proposer("safekeeper_chained", "{{safekeeper}} chained"),
                of_proposer("safekeeper_left_behind", "{{safekeeper}} left behind"),
                Query(
                    f"sum by (instance) (sk_timeline_member_left_behind{TIMELINE})",
                    "left behind, says {{instance}}",
                ),
            ),
        ),
        Panel(
            "Timelines by state",
            "Timelines of all safekeepers together.",
            Unit.COUNT,
            (
                Query("sum by (state) (sk_timelines)", "{{state}}"),
                Query("sum(sk_timelines_damaged)", "control file damaged"),
                Query("sum(sk_timelines_without_series)", "without series"),
            ),
        ),
        Panel(
            "Timelines that take part",
            "Timelines that each safekeeper serves, and how many of them have a proposer.",
            Unit.COUNT,
            (
                Query(
                    f"sum by (instance) (sk_timeline_active{TIMELINE})", "active on {{instance}}"
                ),
                Query(
                    f"sum by (instance) (sk_timeline_proposer_connected{TIMELINE})",
                    "streamed to {{instance}}",
                ),
            ),
        ),
        Panel(
            "Silence of the proposer",
            "Time since a safekeeper last received a message of the proposer that streams to it.",
            Unit.SECONDS,
            (of_timeline("proposer_silent_seconds"),),
        ),
        Panel(
            "Terms promised",
            "The greatest term that a safekeeper has promised.",
            Unit.COUNT,
            (of_timeline("term"),),
        ),
        Panel(
            "Flushed WAL",
            "Progress of flush_lsn.",
            Unit.BYTES_PER_SECOND,
            (rate_of(of_timeline("flush_lsn")),),
        ),
        Panel(
            "Damage",
            "Damaged or missing segments, damaged ends of logs, and what the scrub found.",
            Unit.COUNT,
            (
                Query(f"sum by (instance) (sk_timeline_holes{TIMELINE})", "holes on {{instance}}"),
                Query(
                    f"sum by (instance) (sk_timeline_lost_lsn{TIMELINE} > bool 0)",
                    "lost ends on {{instance}}",
                ),
                Query("sk_scrub_damages_total", "found by the scrub of {{instance}}"),
            ),
        ),
    ),
)

_SLOTS = Row(
    "Replicas and slots",
    (
        Panel(
            "Replicas",
            "Replicas that stream from each safekeeper.",
            Unit.COUNT,
            (Query(f"sum by (instance) (sk_timeline_replicas{TIMELINE})"),),
        ),
        Panel(
            "Slots",
            "Replication slots, and those that have lost WAL or may lose it.",
            Unit.COUNT,
            (
                Query(f"sum by (instance) (sk_timeline_slots{TIMELINE})", "slots on {{instance}}"),
                Query(
                    f"sum by (instance) (sk_timeline_slots_lost{TIMELINE})", "lost on {{instance}}"
                ),
            ),
        ),
        Panel(
            "WAL kept",
            "From the oldest WAL that a safekeeper keeps to the newest.",
            Unit.BYTES,
            (
                Query(
                    f"sk_timeline_flush_lsn{TIMELINE} - sk_timeline_local_start_lsn{TIMELINE}",
                ),
            ),
        ),
        Panel(
            "WAL kept for members",
            "Committed WAL that a member has not flushed.",
            Unit.BYTES,
            (Query(f"sk_timeline_commit_lsn{TIMELINE} - sk_timeline_truncate_lsn{TIMELINE}"),),
        ),
        Panel(
            "WAL kept for pageservers",
            "WAL that a pageserver has not made durable as pages.",
            Unit.BYTES,
            (of_timeline("pageserver_held_bytes"),),
        ),
    ),
)

_ARCHIVE = Row(
    "Archive",
    (
        Panel(
            "Backlog",
            "Committed WAL that is not in the archive yet, as each safekeeper reports it.",
            Unit.BYTES,
            (of_timeline("archive_backlog_bytes"),),
        ),
        Panel(
            "Archived",
            "Progress of the archive.",
            Unit.BYTES_PER_SECOND,
            (rate_of(Query(f"sk_timeline_archived_lsn{TIMELINE}")),),
        ),
        Panel(
            "Failures",
            "Failed uploads to the archive, within five minutes.",
            Unit.COUNT,
            (Query(f"increase(sk_timeline_archive_failures{TIMELINE}[5m])"),),
        ),
    ),
)

_QSYNC = Row(
    "Quorum transactions",
    (
        number(
            "Coordinator",
            "Whether the coordinator of quorum transactions gives verdicts.",
            of_proposer("qsync_deciding"),
            ("gives none", "gives verdicts"),
        ),
        Panel(
            "Limbo",
            "Prepared transactions, and how many may be prepared.",
            Unit.COUNT,
            (
                of_proposer("qsync_limbo_len", "prepared"),
                of_proposer("qsync_limbo_len_max", "limit"),
                of_proposer("qsync_unconfirmed", "on no quorum yet"),
                of_proposer("qsync_foreign", "of other programs"),
            ),
        ),
        Panel(
            "Age and lag",
            "Age of the oldest prepared transaction; how long the last confirmed one had waited.",
            Unit.SECONDS,
            (
                of_proposer("qsync_limbo_age_seconds", "oldest"),
                of_proposer("qsync_confirm_lag_seconds", "last confirmed"),
            ),
        ),
        Panel(
            "Verdicts",
            "Requests of clients for a verdict, by answer.",
            Unit.PER_SECOND,
            (
                rate_of(of_proposer("qsync_confirmed_total"), "confirmed"),
                rate_of(of_proposer("qsync_pending_total"), "not yet"),
            ),
        ),
        Panel(
            "Requests that wait",
            "Requests on the coordinator's port that are not answered yet.",
            Unit.COUNT,
            (of_proposer("qsync_waiting"),),
        ),
        Panel(
            "Janitor",
            "Transactions that were finished after their clients disconnected, within an hour.",
            Unit.COUNT,
            tuple(
                Query(f"increase(sk_proposer_qsync_{name}_total{PROPOSER}[1h])", legend)
                for name, legend in (
                    ("committed", "committed"),
                    ("rollback_count", "rolled back"),
                    ("adopted", "adopted by a new term"),
                )
            ),
        ),
        Panel(
            "Term and quorum",
            "The term in which the coordinator gives verdicts, 0 while it does not lead.",
            Unit.COUNT,
            (
                of_proposer("qsync_term", "term"),
                of_proposer("qsync_quorum", "safekeepers needed"),
                Query(f"count(sk_proposer_qsync_owner{PROPOSER})", "owners"),
            ),
        ),
    ),
)

LOG_ROWS = (_COMMITS, _PROPOSER, _MEMBERS, _SLOTS, _ARCHIVE, _QSYNC)
