"""What a safekeeper is told."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pgwire.auth import ScramVerifier


@dataclass(frozen=True, slots=True)
class SafekeeperConfig:
    """`verifiers` None lets everybody in who reaches the port, as trust does in pg_hba.conf."""

    safekeeper_id: int
    data_dir: Path
    host: str
    port: int
    http_host: str
    http_port: int
    tls_certificate: Path | None = None
    tls_key: Path | None = None
    verifiers: dict[str, ScramVerifier] | None = None
