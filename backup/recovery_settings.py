"""What a restored server is told: its recovery settings, in postgresql.auto.conf. Pure.

That file has the last word on a server. What an earlier restore, or a standby's life, has left
there is taken out; all else stays. Source: Postgres `xlogrecovery.c`, `guc-file.l`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from enum import Enum

AUTO_CONF = "postgresql.auto.conf"
OF_RECOVERY = re.compile(
    r"\s*(recovery_target\w*|restore_command|archive_cleanup_command|recovery_end_command|"
    r"primary_conninfo|primary_slot_name|promote_trigger_file|recovery_min_apply_delay)\b",
    re.IGNORECASE,
)


class SignalFile(Enum):
    """By its presence a server knows what it starts as."""

    RECOVERY = "recovery.signal"
    STANDBY = "standby.signal"


def restore_command(prefetched: str, fetch: Sequence[str]) -> str:
    """A shell command line: a file that is ready in the folder `prefetched` is taken, which costs
    no start of a program of ours; for all others there is `fetch`, with the file's name and the
    path to write it to, and what it says counts."""
    words = (shlex.quote(word.replace("%", "%%")) for word in fetch)
    return f"mv -f {prefetched}/%f %p 2>/dev/null || exec {' '.join(words)} %f %p"


def with_settings(auto_conf: str, settings: Mapping[str, str]) -> str:
    """postgresql.auto.conf with these settings, and without others of recovery."""
    ours = re.compile(rf"\s*({'|'.join(map(re.escape, settings)) or '(?!)'})\b", re.IGNORECASE)
    kept = [
        line
        for line in auto_conf.splitlines()
        if not OF_RECOVERY.match(line) and not ours.match(line)
    ]
    lines = [*kept, *(f"{name} = {quoted(value)}" for name, value in settings.items())]
    return "\n".join(lines) + "\n"


def quoted(value: str) -> str:
    """As configuration files have it: quotes and backslashes doubled."""
    escaped = value.replace("\\", "\\\\").replace("'", "''")
    return f"'{escaped}'"
