"""A primary without findings of the preflight, for tests to change."""

from __future__ import annotations

from cluster_pages import TIMELINE

from quorum_wal.walproposer.checks.finding import Finding, Level
from quorum_wal.walproposer.primary.log_marker import marker_name
from quorum_wal.walproposer.primary.primary_address import PrimaryAddress
from quorum_wal.walproposer.primary.primary_settings import PrimarySettings, Slot
from quorum_wal.walproposer.primary.walsenders import WalSender

ADDRESS = PrimaryAddress("host=db")
SETTINGS = {
    "wal_level": "replica",
    "max_wal_senders": "10",
    "max_replication_slots": "10",
    "synchronous_standby_names": "walproposer",
    "synchronous_commit": "on",
    "fsync": "on",
    "full_page_writes": "on",
    "max_slot_wal_keep_size": "10240",
    "wal_sender_timeout": "60000",
}
PROPOSER = WalSender(42, "walproposer", slot="walproposer", sync_state="sync")
HEALTHY = PrimarySettings(
    version=150018,
    in_recovery=False,
    system_id=7,
    wal_seg_size=16 << 20,
    flush_lsn=0x2000000,
    walsenders=1,
    slots=2,
    role="postgres",
    may_replicate=True,
    is_superuser=True,
    replication_error="",
    settings=SETTINGS,
    slot=Slot("physical", "reserved", None, ""),
    overrides=(),
    standbys=(PROPOSER,),
    clock_ahead_seconds=0.1,
    disk_free_bytes=50 << 30,
    log_markers=(marker_name(TIMELINE),),
)


def unwell(findings: list[Finding]) -> list[Finding]:
    return [finding for finding in findings if finding.level is not Level.OK]
