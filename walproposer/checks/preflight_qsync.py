"""The preflight's rules on prepared transactions: room for them on each server, what waits now, and
for qsync what its coordinator needs. Pure.

A standby with less room than its primary stops its replay: once promoted, it could not hold what
the primary held. (Postgres: `hot standby is not possible because of insufficient parameter
settings`, recovery pauses; 13 ends.)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from walproposer.checks.finding import Finding, alter_system, fail, ok, quoted, warn
from walproposer.primary.janitor_rights import JanitorRights
from walproposer.primary.prepared_transactions import PreparedTransaction, ours
from walproposer.primary.primary_address import PrimaryAddress
from walproposer.primary.primary_settings import PrimarySettings

ROOM = "max_prepared_transactions"
READ_ONLY = "default_transaction_read_only"
#: A transaction of qsync is over within moments; those of others within their manager's patience.
LIMBO_SECONDS_MAX = 30.0
FOREIGN_SECONDS_MAX = 3600.0
#: For half of them the coordinator admits transactions.
ROOM_MIN = 10
ROOM_RECOMMENDED = 100
#: The first whose logical decoding tells of prepared transactions (protocol version 3).
STREAM_MAJOR = 15
NAMED_MAX = 5


def check_prepared(primary: PrimarySettings, _: PrimaryAddress) -> Iterator[Finding]:
    """For every primary, with qsync or without."""
    if primary.in_recovery:
        return
    if primary.settings.get(READ_ONLY) == "on":
        yield warn(
            "read_only",
            f"{READ_ONLY} is on: clients cannot write",
            "If sk promote was broken off: sk attach ends it. Else: ALTER SYSTEM RESET "
            f"{READ_ONLY}; SELECT pg_reload_conf();",
        )
    yield _room(primary)
    yield from check_limbo(primary.prepared)


def _room(primary: PrimarySettings) -> Finding:
    room = int(primary.settings.get(ROOM, "0"))
    if room == 0:
        return ok(ROOM, "0: no transaction can be prepared, which qsync needs")
    limbo = len(ours(primary.prepared))
    others = len(primary.prepared) - limbo
    return ok(ROOM, f"{room}; {limbo} of qsync are prepared, {others} of others")


def check_limbo(prepared: Sequence[PreparedTransaction]) -> Iterator[Finding]:
    """What has waited for too long: it holds its locks, and holds back vacuum."""
    limbo = ours(prepared)
    old = [each for each in limbo if each.age_seconds > LIMBO_SECONDS_MAX]
    if old:
        yield warn(
            "limbo",
            f"{_count(old)} of qsync, prepared {_oldest(old)}",
            "sk qsync status says what it waits for, sk qsync list shows each.",
        )
    foreign = set(prepared) - set(limbo)
    old = [each for each in foreign if each.age_seconds > FOREIGN_SECONDS_MAX]
    if old:
        yield warn(
            "prepared",
            f"{_count(old)} of others, prepared {_oldest(old)}",
            "SELECT * FROM pg_prepared_xacts; shows them. Their transaction manager ends them, or "
            "COMMIT PREPARED, ROLLBACK PREPARED in their database.",
        )


def _count(entries: Sequence[PreparedTransaction]) -> str:
    return f"{len(entries)} transaction{'s' if len(entries) > 1 else ''}"


def _oldest(entries: Sequence[PreparedTransaction]) -> str:
    oldest = max(each.age_seconds for each in entries)
    return f"{'up to ' if len(entries) > 1 else ''}{oldest:.0f} s ago"


def check_standbys(
    primary: PrimarySettings, standbys: Iterable[tuple[str, PrimarySettings]]
) -> Iterator[Finding]:
    """`standbys`: how each is named, and what it says."""
    room = int(primary.settings.get(ROOM, "0"))
    for name, standby in standbys:
        theirs = int(standby.settings.get(ROOM, "0"))
        if standby.system_id != primary.system_id:
            yield fail(
                "standby",
                f"{name} is of system {standby.system_id}, the primary of {primary.system_id}",
                "Give the DSN of a standby of this primary.",
            )
        elif theirs < room:
            yield fail(
                ROOM,
                f"{theirs} on the standby ({name}), {room} on the primary: it replays no more once "
                "the primary's is that",
                f"There: ALTER SYSTEM SET {ROOM} = {room}; then restart it",
            )
        else:
            yield ok(ROOM, f"{theirs} on the standby ({name})")


# ---- what qsync needs


def check_qsync(primary: PrimarySettings, rights: JanitorRights) -> Iterator[Finding]:
    """May clients prepare, and may the coordinator see and end what they leave?"""
    yield _version(primary)
    room = int(primary.settings.get(ROOM, "0"))
    if room < ROOM_MIN:
        wanted = alter_system(ROOM, str(ROOM_RECOMMENDED), restart=True)
        text = f"{room}, at least {ROOM_MIN} are needed: one for each transaction that waits"
        yield fail(ROOM, text, f"On each standby first, then on the primary: {wanted}")
    else:
        yield _room(primary)
    yield _wal_level(primary)
    yield from _rights(rights)
    yield from _slots(primary, rights)
    yield from check_limbo(primary.prepared)


def _version(primary: PrimarySettings) -> Finding:
    text = f"Postgres {primary.major}.{primary.version % 10000}"
    if primary.major >= STREAM_MAJOR:
        return ok("version", text)
    return warn(
        "version",
        f"{text}: no stream tells of prepared transactions, the limbo is read again and again",
        f"It works; from Postgres {STREAM_MAJOR} on positions are exact, and known at once.",
    )


def _wal_level(primary: PrimarySettings) -> Finding:
    value = primary.settings["wal_level"]
    if value == "logical" or primary.major < STREAM_MAJOR:
        return ok("wal_level", value)
    return warn(
        "wal_level",
        f'"{value}": no stream tells of prepared transactions, the limbo is read again and again',
        f"It works; for exact positions: {alter_system('wal_level', 'logical', restart=True)}",
    )


def _rights(rights: JanitorRights) -> Iterator[Finding]:
    role = quoted(rights.role)
    if rights.is_superuser:
        yield ok("janitor", f"role {role} is a superuser: it may end what clients leave")
    elif rights.foreign_owners:
        yield warn(
            "janitor",
            f"role {role} may not end what these have prepared: {_names(rights.foreign_owners)}",
            f"For each that uses qsync: GRANT {quoted(rights.foreign_owners[0])} TO {role};",
        )
    else:
        yield ok("janitor", f"role {role} is a member of all roles that log in")
    if rights.closed:
        yield fail(
            "janitor",
            f"role {role} may not connect to: {_names(rights.closed)}",
            f"GRANT CONNECT ON DATABASE {quoted(rights.closed[0])} TO {role};",
        )


def _slots(primary: PrimarySettings, rights: JanitorRights) -> Iterator[Finding]:
    if primary.major < STREAM_MAJOR or primary.settings["wal_level"] != "logical":
        return
    name, wanted = "max_replication_slots", len(rights.databases)
    limit = int(primary.settings[name])
    if primary.slots + wanted > limit:
        yield warn(
            name,
            f"{primary.slots} of {limit} are taken, the stream takes one in each of {wanted} "
            "databases in which clients prepare",
            alter_system(name, str(primary.slots + wanted + 5), restart=True),
        )
    else:
        yield ok(name, f"{limit}, {primary.slots} taken")


def _names(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED_MAX} more" if len(names) > NAMED_MAX else ""
    return ", ".join(names[:NAMED_MAX]) + more
