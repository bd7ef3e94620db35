"""How a generation service connects to a server of the fixtures."""

from __future__ import annotations

from quorum_wal.pg_fixtures.postgres import Postgres


def postgres_uri(postgres: Postgres, database: str) -> str:
    return f"postgresql://postgres@127.0.0.1:{postgres.port}/{database}?sslmode=disable"
