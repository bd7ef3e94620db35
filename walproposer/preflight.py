"""The preflight: may this primary be attached, and will its commits be safe then? Pure rules.

Each rule looks at what was read and says ok, warn or FAIL in one sentence, with the command that
mends it. FAIL: attaching would not work, or acknowledged commits would not be safe. warn: it would
work, but somebody should know.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum

from walproposer.primary_settings import Override, PrimarySettings
from walproposer.upstream import SUPPORTED_MAJORS, PrimaryAddress

CLOCK_SECONDS_MAX = 2.0
COMMIT_WAIT_SECONDS_MAX = 1.0
# The proposer reports once a second; less than this leaves no room for a pause of either.
WAL_SENDER_TIMEOUT_MS_MIN = 5_000
# A proposer that is restarted must find its WAL: less is gone in seconds on a busy primary.
SLOT_KEEP_MB_MIN = 1024

#: synchronous_commit: a commit that does not wait for a standby is not known to any safekeeper.
UNSAFE_COMMITS = ("off", "local")


class Level(Enum):
    OK = "ok"
    WARN = "warn"
    FAIL = "FAIL"


@dataclass(frozen=True, slots=True)
class Finding:
    """`remedy` is what to run, or to do; "" when all is well."""

    check: str
    level: Level
    text: str
    remedy: str = ""


def check_primary(primary: PrimarySettings, address: PrimaryAddress) -> list[Finding]:
    """All rules on the primary, in the order in which they should be mended."""
    return [finding for rule in _RULES for finding in rule(primary, address)]


def ok(check: str, text: str) -> Finding:
    return Finding(check, Level.OK, text)


def warn(check: str, text: str, remedy: str) -> Finding:
    return Finding(check, Level.WARN, text, remedy)


def fail(check: str, text: str, remedy: str) -> Finding:
    return Finding(check, Level.FAIL, text, remedy)


def _alter_system(name: str, value: str, *, restart: bool = False) -> str:
    then = "then restart the primary" if restart else "SELECT pg_reload_conf();"
    return f"ALTER SYSTEM SET {name} = '{value}'; {then}"


# ---- what it is


def _version(primary: PrimarySettings, _: PrimaryAddress) -> Iterator[Finding]:
    text = f"Postgres {primary.major}.{primary.version % 10000}"
    if primary.major in SUPPORTED_MAJORS:
        yield ok("version", text)
    else:
        first, last = SUPPORTED_MAJORS[0], SUPPORTED_MAJORS[-1]
        yield fail(
            "version",
            f"{text}, supported are {first} to {last}",
            f"Upgrade it with pg_upgrade to Postgres {first} to {last}.",
        )


def _role_in_cluster(primary: PrimarySettings, _: PrimaryAddress) -> Iterator[Finding]:
    if primary.in_recovery:
        yield fail(
            "primary",
            "the server is a standby",
            "Give the DSN of its primary, or promote it: SELECT pg_promote();",
        )
    else:
        yield ok("primary", f"system {primary.system_id}, not in recovery")


def _replication(primary: PrimarySettings, _: PrimaryAddress) -> Iterator[Finding]:
    role = _quoted(primary.role)
    if not primary.may_replicate:
        yield fail(
            "role",
            f"role {role} may not replicate",
            f"ALTER ROLE {role} REPLICATION;",
        )
    elif primary.replication_error:
        yield fail(
            "role",
            f"no replication connection: {primary.replication_error}",
            f"Add a line to pg_hba.conf: host replication {primary.role} <our address> "
            "scram-sha-256; then SELECT pg_reload_conf();",
        )
    else:
        yield ok("role", f"role {role} may replicate")
    if not primary.is_superuser:
        yield warn(
            "configure",
            f"role {role} is no superuser, --configure will not work",
            "Set synchronous_standby_names as a superuser once the proposer streams.",
        )


# ---- room for a standby


def _wal_level(primary: PrimarySettings, _: PrimaryAddress) -> Iterator[Finding]:
    value = primary.settings["wal_level"]
    if value == "minimal":
        yield fail(
            "wal_level",
            'wal_level is "minimal", expected "replica" or "logical"',
            _alter_system("wal_level", "replica", restart=True),
        )
    else:
        yield ok("wal_level", value)


def _wal_senders(primary: PrimarySettings, address: PrimaryAddress) -> Iterator[Finding]:
    # A predecessor of ours, if there is one, keeps its sender until it is fenced: one more is used.
    yield _room("max_wal_senders", primary, primary.walsenders, "in use")


def _slots(primary: PrimarySettings, address: PrimaryAddress) -> Iterator[Finding]:
    if primary.slot is not None:
        limit = primary.settings["max_replication_slots"]
        yield ok("max_replication_slots", f"{limit}, {primary.slots} taken, ours among them")
    else:
        yield _room("max_replication_slots", primary, primary.slots, "taken")


def _room(name: str, primary: PrimarySettings, used: int, word: str) -> Finding:
    limit = int(primary.settings[name])
    if used < limit:
        return ok(name, f"{limit}, {used} {word}")
    return fail(
        name,
        f"all {limit} are {word}",
        _alter_system(name, str(limit + 5), restart=True),
    )


def _slot(primary: PrimarySettings, address: PrimaryAddress) -> Iterator[Finding]:
    slot, name = primary.slot, address.slot
    if slot is None:
        yield ok("slot", f'"{name}" will be created')
    elif slot.kind != "physical":
        yield fail("slot", f'"{name}" is {slot.kind}', "Choose another --slot.")
    elif slot.holder_pid is not None and slot.holder not in (address.application_name, ""):
        yield fail(
            "slot",
            f'"{name}" is used by "{slot.holder}" (pid {slot.holder_pid})',
            "Choose another --slot, or stop that client.",
        )
    elif slot.holder_pid is not None:
        yield warn(
            "slot",
            f'"{name}" is used by a proposer (pid {slot.holder_pid})',
            "sk attach takes over from it; stop it first if that is not meant.",
        )
    elif slot.wal_status == "lost":
        yield fail(
            "slot",
            f'"{name}" has lost WAL that it should have kept',
            f"SELECT pg_drop_replication_slot('{name}'); sk attach creates it anew, if the "
            "safekeepers have all WAL up to what the primary still has.",
        )
    elif slot.wal_status == "unreserved":
        yield warn(
            "slot",
            f'"{name}" keeps more than max_slot_wal_keep_size allows',
            "Attach soon: the next checkpoint may remove the WAL.",
        )
    else:
        yield ok("slot", f'"{name}" is there and free, its WAL is {slot.wal_status}')


def _slot_keep_size(primary: PrimarySettings, _: PrimaryAddress) -> Iterator[Finding]:
    name = "max_slot_wal_keep_size"
    megabytes = int(primary.settings[name])
    free = primary.disk_free_bytes
    free_text = f" ({free >> 20} MB are free)" if free is not None else ""
    enough = max(SLOT_KEEP_MB_MIN, (free or 0) // 2 >> 20)
    if megabytes == -1:
        yield warn(
            name,
            f"no limit: without a proposer, WAL is kept until the disk is full{free_text}",
            _alter_system(name, f"{enough}MB"),
        )
    elif free is not None and megabytes << 20 > free:
        yield warn(
            name,
            f"{megabytes} MB, more than the disk has left{free_text}",
            _alter_system(name, f"{enough}MB"),
        )
    elif megabytes < SLOT_KEEP_MB_MIN:
        yield warn(
            name,
            f"{megabytes} MB: a proposer that is away for that much WAL may "
            "have to start from a new base backup",
            _alter_system(name, f"{enough}MB"),
        )
    else:
        yield ok(name, f"{megabytes} MB{free_text}")


def _wal_sender_timeout(primary: PrimarySettings, _: PrimaryAddress) -> Iterator[Finding]:
    name = "wal_sender_timeout"
    milliseconds = int(primary.settings[name])
    if 0 < milliseconds < WAL_SENDER_TIMEOUT_MS_MIN:
        yield warn(
            name,
            f"{milliseconds} ms: a short pause would break the stream",
            _alter_system(name, "60s"),
        )
    elif milliseconds == 0:
        yield warn(
            name,
            "none: a proposer that vanished would hold its slot for long",
            _alter_system(name, "60s"),
        )
    else:
        yield ok(name, f"{milliseconds} ms")


# ---- whether commits will be safe


_COUNTED_NAMES = re.compile(r"(?:(?:ANY|FIRST)\s+)?[0-9]+\s*\((.*)\)", re.IGNORECASE | re.DOTALL)


def standby_names(value: str) -> list[str]:
    """The names in synchronous_standby_names, of `a, b`, `2 (a, b)`, `ANY 1 (a, b)`, `FIRST ...`.

    Source: Postgres `replication/syncrep_gram.y`.
    """
    counted = _COUNTED_NAMES.fullmatch(value.strip())
    found = re.findall(r'"((?:[^"]|"")*)"|([^\s,"]+)', counted[1] if counted else value)
    return [quoted.replace('""', '"') or plain for quoted, plain in found]


def _standby_names(primary: PrimarySettings, address: PrimaryAddress) -> Iterator[Finding]:
    name, ours = "synchronous_standby_names", address.application_name
    value = primary.settings[name]
    names = standby_names(value)
    foreign = [each for each in names if each.lower() != ours.lower()]
    if not names:
        yield ok(name, "empty; commits do not wait until it is set (sk attach --configure)")
    elif foreign:
        yield warn(
            name,
            f"names others: {', '.join(foreign)}; commits may return on their "
            "word, without the quorum",
            _alter_system(name, ours),
        )
    elif ours not in primary.standbys and (primary.is_superuser or not primary.walsenders):
        yield warn(
            name,
            f"{value}, but no such standby streams: commits wait now",
            "Run sk attach; or let commits go on without: sk detach.",
        )
    else:
        yield ok(name, f"{value}, commits wait for the quorum")


def _synchronous_commit(primary: PrimarySettings, _: PrimaryAddress) -> Iterator[Finding]:
    name = "synchronous_commit"
    value = primary.settings[name]
    if value in UNSAFE_COMMITS:
        yield fail(
            name,
            f'"{value}": commits return before the quorum has them',
            _alter_system(name, "on"),
        )
    else:
        yield ok(name, f"{value}")
    for override in primary.overrides:
        if override.value in UNSAFE_COMMITS:
            whose = _whose(override)
            yield fail(
                name,
                f'"{override.value}" by ALTER {whose}: such commits return before the quorum has '
                "them",
                f"ALTER {whose} RESET {name};",
            )


def _whose(override: Override) -> str:
    """As ALTER wants it: DATABASE d; ROLE r; ROLE r IN DATABASE d."""
    database = f"DATABASE {_quoted(override.database)}" if override.database else ""
    if not override.role:
        return database or "ROLE ALL"
    role = f"ROLE {_quoted(override.role)}"
    return f"{role} IN {database}" if database else role


def _commit_waits(primary: PrimarySettings, _: PrimaryAddress) -> Iterator[Finding]:
    waits, seconds = primary.commit_waits, primary.commit_wait_seconds
    if waits and seconds > COMMIT_WAIT_SECONDS_MAX:
        yield warn(
            "commits",
            f"{waits} wait for the quorum, the longest for {seconds:.0f} s",
            "sk status says why. Do not cancel them: a cancelled wait makes the transaction "
            "visible, though it may still be lost.",
        )
    else:
        yield ok("commits", "none waits for long")


def _durability(primary: PrimarySettings, _: PrimaryAddress) -> Iterator[Finding]:
    if primary.settings["fsync"] == "off":
        yield fail(
            "fsync",
            "off: a crash of the machine would ruin the primary",
            _alter_system("fsync", "on"),
        )
    else:
        yield ok("fsync", "on")
    if primary.settings["full_page_writes"] == "off":
        yield warn(
            "full_page_writes",
            "off: right only where the file system cannot tear a page",
            _alter_system("full_page_writes", "on"),
        )
    else:
        yield ok("full_page_writes", "on")


def _clock(primary: PrimarySettings, _: PrimaryAddress) -> Iterator[Finding]:
    ahead = primary.clock_ahead_seconds
    if abs(ahead) > CLOCK_SECONDS_MAX:
        yield warn(
            "clock",
            f"the primary's is {abs(ahead):.1f} s {'ahead of' if ahead > 0 else 'behind'} ours: "
            "nothing depends on it, but logs will not fit together",
            "Run NTP on both.",
        )
    else:
        yield ok("clock", f"{abs(ahead):.1f} s apart")


def _quoted(identifier: str) -> str:
    if re.fullmatch(r"[a-z_][a-z0-9_]*", identifier):
        return identifier
    escaped = identifier.replace('"', '""')
    return f'"{escaped}"'


_Rule = Callable[[PrimarySettings, PrimaryAddress], Iterator[Finding]]
_RULES: tuple[_Rule, ...] = (
    _version,
    _role_in_cluster,
    _replication,
    _wal_level,
    _wal_senders,
    _slots,
    _slot,
    _slot_keep_size,
    _wal_sender_timeout,
    _standby_names,
    _synchronous_commit,
    _commit_waits,
    _durability,
    _clock,
)
