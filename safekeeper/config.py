"""The configuration of a safekeeper."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from quorum_wal.access.access import TRUST, AccessConfig
from quorum_wal.safekeeper.archive_progress import ArchiveSettings
from quorum_wal.safekeeper.metrics import SERIES_TIMELINES_MAX
from quorum_wal.safekeeper.replica import WAL_SENDER_TIMEOUT_SECONDS
from quorum_wal.safekeeper.retention import DEFAULT_RETENTION, RetentionPolicy
from quorum_wal.safekeeper.scrub import DEFAULT_SCRUB, ScrubSettings
from quorum_wal.safekeeper.sleep import IDLE_SECONDS
from quorum_wal.safekeeper.tenant_limits import NO_LIMITS, TenantLimits


@dataclass(frozen=True, slots=True)
class SafekeeperConfig:
    """`http_token_file` None: every client that reaches the HTTP port may read it."""

    safekeeper_id: int
    data_dir: Path
    host: str
    port: int
    http_host: str
    http_port: int
    access: AccessConfig = TRUST
    tenant_limits: TenantLimits = NO_LIMITS
    http_token_file: Path | None = None
    #: Ports to try if `http_port` is in use.
    http_spare_ports: Sequence[int] = ()
    retention: RetentionPolicy = DEFAULT_RETENTION
    archive: ArchiveSettings | None = None
    scrub: ScrubSettings = DEFAULT_SCRUB
    #: How long a replica may be silent; 0 means for ever.
    wal_sender_timeout_seconds: float = WAL_SENDER_TIMEOUT_SECONDS
    #: A timeline that is not used for so long goes to sleep.
    idle_seconds: float = IDLE_SECONDS
    #: Timelines that have metrics of their own.
    metrics_timelines_max: int = SERIES_TIMELINES_MAX
    #: The operator's name for the place: two copies at one site may be lost together.
    site: str = ""
    #: What libpq needs to read from another safekeeper (daisy chain): user, passfile, sslmode ...
    peer_conninfo: str = ""
