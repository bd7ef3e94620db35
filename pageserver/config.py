"""The configuration of a pageserver process."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from quorum_wal.pageserver.ingest.ingest import IngestConfig


@dataclass(frozen=True, slots=True)
class ProcessConfig:
    """`attaches_all`: attach every timeline of the archive; used with the embedded service.
    `grace_seconds`: how long readers may use an index after it was replaced."""

    node_id: int
    data_dir: Path
    ingest: IngestConfig
    attaches_all: bool = True
    history_seconds: int = 7 * 24 * 3600
    grace_seconds: float = 24 * 3600.0
    #: Start without the generation service. Take these tenants, and those that this node had last.
    emergency_tenants: frozenset[str] | None = None
    local_bytes_max: int = 16 << 30
    validation_seconds: float = 10.0
    attachments_seconds: float = 10.0
    round_seconds: float = 60.0
    collect_seconds: float = 300.0
    scrub_seconds: float = 24 * 3600.0
    compact_seconds: float = 3600.0
