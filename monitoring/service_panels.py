"""The panels about pageservers, the generation service, disks and connections."""

from __future__ import annotations

from monitoring.panel import TIMELINE, Panel, Query, Row, Unit, number, of_pages, rate_of

_PAGESERVER = Row(
    "Pageserver",
    (
        Panel(
            "Lag",
            "WAL after the newest cut.",
            Unit.BYTES,
            (of_pages("lag_bytes"),),
        ),
        Panel(
            "Replay",
            "WAL that was replayed to make cuts.",
            Unit.BYTES_PER_SECOND,
            (rate_of(of_pages("replayed_wal_bytes_total")),),
        ),
        Panel(
            "Cuts and layers",
            "Cuts that can be restored, and parts of layers in the store.",
            Unit.COUNT,
            (
                of_pages("cuts", "cuts of {{instance}}"),
                of_pages("layers", "layers of {{instance}}"),
            ),
        ),
        Panel(
            "Size",
            "Layers in the store, and frames before they are packed.",
            Unit.BYTES,
            (
                of_pages("layer_bytes", "layers of {{instance}}"),
                of_pages("frame_bytes", "frames of {{instance}}"),
            ),
        ),
        Panel(
            "Dead pages",
            "Share of pages at and below the horizon that no cut needs.",
            Unit.SHARE,
            (of_pages("dead_share"),),
        ),
        Panel(
            "Merges",
            "Bytes of old layers that were read, and bytes of merged layers that were written.",
            Unit.BYTES_PER_SECOND,
            (
                rate_of(of_pages("merge_read_bytes_total"), "read by {{instance}}"),
                rate_of(of_pages("merge_written_bytes_total"), "written by {{instance}}"),
            ),
        ),
        Panel(
            "Deletions",
            "Lists of objects that wait to be deleted; objects deleted within an hour.",
            Unit.COUNT,
            (
                Query("sk_pageserver_deletion_lists", "lists of {{instance}}"),
                Query(
                    "increase(sk_pageserver_deleted_objects_total[1h])", "deleted by {{instance}}"
                ),
            ),
        ),
        Panel(
            "Problems",
            "Timelines with a problem, attachments that are stale, damaged pages, an emergency.",
            Unit.COUNT,
            (
                Query("sk_pageserver_unwell_timelines", "unwell on {{instance}}"),
                Query("sk_pageserver_stale_attachments", "stale on {{instance}}"),
                Query("sk_pageserver_damaged_pages", "pages damaged, says {{instance}}"),
                Query("sk_pageserver_emergency", "emergency of {{instance}}"),
            ),
        ),
        Panel(
            "Validation and checks",
            "Time since the generation service last answered, and since the last round of checks.",
            Unit.SECONDS,
            (
                Query("sk_pageserver_validated_seconds_ago", "validated, {{instance}}"),
                Query("sk_pageserver_check_seconds_ago", "checked, {{instance}}"),
            ),
        ),
    ),
)

_GENERATIONS = Row(
    "Generation service",
    (
        number(
            "Database",
            "Whether the last transaction of the service succeeded.",
            Query("sk_generations_database_up"),
            ("down", "up"),
        ),
        Panel(
            "Requests",
            "Requests by operation and outcome.",
            Unit.PER_SECOND,
            (
                Query(
                    "sum by (operation, outcome) "
                    "(rate(sk_generations_requests_total[$__rate_interval]))",
                    "{{operation}} {{outcome}}",
                ),
            ),
        ),
        Panel(
            "Latency",
            "Mean time of a request, by operation.",
            Unit.SECONDS,
            (
                Query(
                    "sum by (operation) "
                    "(rate(sk_generations_request_seconds_total[$__rate_interval])) / "
                    "sum by (operation) (rate(sk_generations_requests_total[$__rate_interval]))",
                    "{{operation}}",
                ),
            ),
        ),
        Panel(
            "Invalid",
            "Processes and attachments that are not the newest, within five minutes.",
            Unit.COUNT,
            (
                Query("increase(sk_generations_invalid_nodes_total[5m])", "nodes"),
                Query("increase(sk_generations_invalid_tenants_total[5m])", "attachments"),
            ),
        ),
    ),
)

_DISK = Row(
    "Disk and connections",
    (
        Panel(
            "Free space",
            "Free space of the data directory of each safekeeper.",
            Unit.BYTES,
            (Query("sk_disk_free_bytes"),),
        ),
        Panel(
            "WAL on disk",
            "Size of the segments.",
            Unit.BYTES,
            (Query(f"sum by (instance) (sk_timeline_wal_bytes{TIMELINE})"),),
        ),
        Panel(
            "Scrub",
            "WAL that the scrub has read again.",
            Unit.BYTES_PER_SECOND,
            (rate_of(Query("sk_scrub_bytes_total")),),
        ),
        Panel(
            "Connections",
            "Connections to the WAL port of all safekeepers, by role.",
            Unit.COUNT,
            (
                Query("sum by (role) (sk_connections_of_role)", "{{role}}"),
                Query("sum(sk_connections_unauthenticated)", "not authenticated"),
            ),
        ),
        Panel(
            "Refusals",
            "Refused commands and connections, within five minutes.",
            Unit.COUNT,
            (
                Query("increase(sk_refusals_total[5m])", "refused by {{instance}}"),
                Query("increase(sk_connections_evicted_total[5m])", "evicted by {{instance}}"),
            ),
        ),
        Panel(
            "Files not in force",
            "Files of certificates, users and tokens that have changed and cannot be used.",
            Unit.COUNT,
            (
                Query(
                    "sk_unusable_files or sk_generations_unusable_files"
                    " or sk_pageserver_unusable_files",
                    "{{job}} {{instance}}",
                ),
            ),
        ),
        Panel(
            "Time to the end of certificates",
            "Until the first certificate in the file of --tls-cert ends.",
            Unit.SECONDS,
            (Query("sk_certificate_end_timestamp_seconds - time()", "{{job}} {{instance}}"),),
        ),
    ),
)

SERVICE_ROWS = (_PAGESERVER, _GENERATIONS, _DISK)
