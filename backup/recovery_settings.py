"""The recovery settings of a restored server, in postgresql.auto.conf. Pure.

That file overrides postgresql.conf. Recovery settings that an earlier restore or a standby left in
it are removed; all other settings are kept. Source: Postgres `xlogrecovery.c`, `guc-file.l`.
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
    """An empty file that makes the server start in recovery, or as a standby."""

    RECOVERY = "recovery.signal"
    STANDBY = "standby.signal"


def restore_command(prefetched: str, fetch: Sequence[str]) -> str:
    """A shell command. It moves a file that is ready in the folder `prefetched`, which avoids
    starting one of our programs. Otherwise it runs `fetch` with the file name and the target path,
    and returns its exit code."""
    words = (shlex.quote(word.replace("%", "%%")) for word in fetch)
    return f"mv -f {prefetched}/%f %p 2>/dev/null || exec {' '.join(words)} %f %p"


def with_settings(auto_conf: str, settings: Mapping[str, str]) -> str:
    """The text of postgresql.auto.conf with `settings` and without other recovery settings."""
    ours = re.compile(rf"\s*({'|'.join(map(re.escape, settings)) or '(?!)'})\b", re.IGNORECASE)
    kept = [
        line
        for line in auto_conf.splitlines()
        if not OF_RECOVERY.match(line) and not ours.match(line)
    ]
    lines = [*kept, *(f"{name} = {quoted(value)}" for name, value in settings.items())]
    return "\n".join(lines) + "\n"


def quoted(value: str) -> str:
    """Quotes a value for a configuration file: quotes and backslashes are doubled."""
    escaped = value.replace("\\", "\\\\").replace("'", "''")
    return f"'{escaped}'"
