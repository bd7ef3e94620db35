"""The preflight: can this primary be attached, and will its commits be safe then? Pure rules.

Each rule checks what was read and returns ok, warn or FAIL in one sentence, with the command that
fixes it. FAIL: attaching would not work, or acknowledged commits would not be safe. warn: attaching
works, but the operator should know the problem.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from quorum_wal.walproposer.checks.finding import Finding, alter_system, fail, ok, quoted, warn
from quorum_wal.walproposer.checks.preflight_commits import SENDERS, check_commits
from quorum_wal.walproposer.checks.preflight_qsync import check_prepared
from quorum_wal.walproposer.primary.primary_address import PrimaryAddress
from quorum_wal.walproposer.primary.primary_settings import PrimarySettings
from quorum_wal.walproposer.primary.server_facts import SUPPORTED_MAJORS

CLOCK_SECONDS_MAX = 2.0
# The proposer reports once a second. A smaller timeout does not tolerate a pause of either side.
WAL_SENDER_TIMEOUT_MS_MIN = 5_000
# A restarted proposer must find its WAL. A busy primary writes less than this in seconds.
SLOT_KEEP_MB_MIN = 1024


def check_primary(primary: PrimarySettings, address: PrimaryAddress) -> list[Finding]:
    """All rules on the primary, in the order in which to fix the findings."""
    return [finding for rule in _RULES for finding in rule(primary, address)]


# ---- the server


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
    role = quoted(primary.role)
    if not primary.may_replicate:
        yield fail(
            "role",
            f"role {role} may not replicate",
            f"ALTER ROLE {role} REPLICATION;",
        )
    elif primary.replication_error and primary.walsenders < int(primary.settings[SENDERS]):
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
            f"role {role} is not a superuser, --configure will not work",
            "Set synchronous_standby_names as a superuser once the proposer streams.",
        )


# ---- settings that a standby needs


def _wal_level(primary: PrimarySettings, _: PrimaryAddress) -> Iterator[Finding]:
    value = primary.settings["wal_level"]
    if value == "minimal":
        yield fail(
            "wal_level",
            'wal_level is "minimal", expected "replica" or "logical"',
            alter_system("wal_level", "replica", restart=True),
        )
    else:
        yield ok("wal_level", value)


def _wal_senders(primary: PrimarySettings, address: PrimaryAddress) -> Iterator[Finding]:
    if primary.settings[SENDERS] == "0":
        return  # preflight_commits.py reports this
    # A predecessor keeps its WAL sender until it is fenced, so one more is needed.
    yield _room(SENDERS, primary, primary.walsenders, "in use")


def _slots(primary: PrimarySettings, address: PrimaryAddress) -> Iterator[Finding]:
    wanted = (primary.slot is None) + (not primary.log_markers)
    if wanted == 0:
        limit = primary.settings["max_replication_slots"]
        yield ok("max_replication_slots", f"{limit}, {primary.slots} taken, ours among them")
    else:
        yield _room("max_replication_slots", primary, primary.slots, "taken", wanted)


def _room(name: str, primary: PrimarySettings, used: int, word: str, wanted: int = 1) -> Finding:
    limit = int(primary.settings[name])
    if used + wanted <= limit:
        return ok(name, f"{limit}, {used} {word}")
    return fail(
        name,
        f"all {limit} are {word}"
        if used >= limit
        else f"{used} of {limit} are {word}, {wanted} are needed",
        alter_system(name, str(limit + 5), restart=True),
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
            "sk attach takes over from it. If you do not want that, stop that proposer first.",
        )
    elif slot.wal_status == "lost":
        yield fail(
            "slot",
            f'"{name}" has lost WAL that it should have kept',
            f"SELECT pg_drop_replication_slot('{name}'); sk attach creates it again, if the "
            "safekeepers have all WAL that the primary no longer has.",
        )
    elif slot.wal_status == "unreserved":
        yield warn(
            "slot",
            f'"{name}" keeps more than max_slot_wal_keep_size allows',
            "Attach soon: the next checkpoint may remove the WAL.",
        )
    else:
        yield ok("slot", f'"{name}" exists and is free, its WAL is {slot.wal_status}')


def _slot_keep_size(primary: PrimarySettings, _: PrimaryAddress) -> Iterator[Finding]:
    name = "max_slot_wal_keep_size"
    megabytes = int(primary.settings[name])
    free = primary.disk_free_bytes
    free_text = f" ({free >> 20} MB are free)" if free is not None else ""
    enough = max(SLOT_KEEP_MB_MIN, (free or 0) // 2 >> 20)
    if megabytes == -1:
        yield warn(
            name,
            f"no limit: without a proposer, the slot keeps WAL until the disk is full{free_text}",
            alter_system(name, f"{enough}MB"),
        )
    elif free is not None and megabytes << 20 > free:
        yield warn(
            name,
            f"{megabytes} MB, more than the free disk space{free_text}",
            alter_system(name, f"{enough}MB"),
        )
    elif megabytes < SLOT_KEEP_MB_MIN:
        yield warn(
            name,
            f"{megabytes} MB: a proposer that is detached while the primary writes this much WAL "
            "may have to start from a new base backup",
            alter_system(name, f"{enough}MB"),
        )
    else:
        yield ok(name, f"{megabytes} MB{free_text}")


def _wal_sender_timeout(primary: PrimarySettings, _: PrimaryAddress) -> Iterator[Finding]:
    name = "wal_sender_timeout"
    milliseconds = int(primary.settings[name])
    if 0 < milliseconds < WAL_SENDER_TIMEOUT_MS_MIN:
        yield warn(
            name,
            f"{milliseconds} ms: a short pause would end the stream",
            alter_system(name, "60s"),
        )
    elif milliseconds == 0:
        yield warn(
            name,
            "no timeout: a proposer on an unreachable host would hold its slot for a long time",
            alter_system(name, "60s"),
        )
    else:
        yield ok(name, f"{milliseconds} ms")


# ---- other settings that make commits safe


def _durability(primary: PrimarySettings, _: PrimaryAddress) -> Iterator[Finding]:
    if primary.settings["fsync"] == "off":
        yield fail(
            "fsync",
            "off: a crash of the machine would corrupt the primary",
            alter_system("fsync", "on"),
        )
    else:
        yield ok("fsync", "on")
    if primary.settings["full_page_writes"] == "off":
        yield warn(
            "full_page_writes",
            "off: safe only where the file system does not write partial pages",
            alter_system("full_page_writes", "on"),
        )
    else:
        yield ok("full_page_writes", "on")


def _clock(primary: PrimarySettings, _: PrimaryAddress) -> Iterator[Finding]:
    ahead = primary.clock_ahead_seconds
    if abs(ahead) > CLOCK_SECONDS_MAX:
        yield warn(
            "clock",
            f"the primary's is {abs(ahead):.1f} s {'ahead of' if ahead > 0 else 'behind'} ours: "
            "nothing depends on it, but log times will differ",
            "Run NTP on both machines.",
        )
    else:
        yield ok("clock", f"{abs(ahead):.1f} s apart")


_Rule = Callable[[PrimarySettings, PrimaryAddress], Iterable[Finding]]
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
    check_commits,
    check_prepared,
    _durability,
    _clock,
)
