"""The server settings that stock clients request: the answers of SHOW. Pure."""

from __future__ import annotations

from quorum_wal.consensus.messages import ServerFacts

# The version reported while there is no timeline; all our clients accept it.
FALLBACK_VERSION = "16.0"

_KIB, _MIB, _GIB = 1 << 10, 1 << 20, 1 << 30


def find_setting(settings: dict[str, str], name: str) -> tuple[str, str] | None:
    """Returns the name as Postgres spells it, and the value. Names are case-insensitive."""
    for own_name, value in settings.items():
        if own_name.lower() == name.lower():
            return own_name, value
    return None


def version_text(server_version_num: int) -> str:
    """`version_text(150018) == "15.18"`."""
    return f"{server_version_num // 10000}.{server_version_num % 10000}"


def size_text(size_bytes: int) -> str:
    """A size as Postgres shows it: the largest unit that leaves a whole number."""
    for unit, name in ((_GIB, "GB"), (_MIB, "MB"), (_KIB, "kB")):
        if size_bytes % unit == 0:
            return f"{size_bytes // unit}{name}"
    return f"{size_bytes}B"


def plain_settings(server: ServerFacts) -> dict[str, str]:
    """The values of pg_settings, in bytes and seconds. 0: there are no timed segment switches and
    no checkpoints."""
    return {
        "wal_segment_size": str(server.wal_seg_size),
        "archive_timeout": "0",
        "checkpoint_timeout": "0",
    }


def shown_settings(server: ServerFacts, application_name: str) -> dict[str, str]:
    """By name. Replication clients request the first ones, drivers the rest."""
    return {
        "data_directory_mode": "0700",
        "wal_segment_size": size_text(server.wal_seg_size),
        "server_version": version_text(server.pg_version),
        "server_version_num": str(server.pg_version),
        "integer_datetimes": "on",
        "wal_block_size": "8192",
        "wal_level": "replica",
        "transaction_read_only": "off",
        "default_transaction_read_only": "off",
        "in_hot_standby": "off",
        "is_superuser": "off",
        "server_encoding": "UTF8",
        "client_encoding": "UTF8",
        "standard_conforming_strings": "on",
        "DateStyle": "ISO, MDY",
        "IntervalStyle": "postgres",
        "TimeZone": "UTC",
        "application_name": application_name,
    }
