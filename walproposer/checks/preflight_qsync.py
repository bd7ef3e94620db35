"""The preflight's rules on prepared transactions: room for them on each server, those that wait
now, and the requirements of a qsync coordinator. Pure.

A standby with less room than its primary stops its replay, because after a promotion it could not
hold the primary's prepared transactions. (Postgres logs `hot standby is not possible because of
insufficient parameter settings` and pauses recovery; version 13 shuts down.)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from quorum_wal.walproposer.checks.finding import Finding, alter_system, fail, ok, quoted, warn
from quorum_wal.walproposer.primary.janitor_rights import JanitorRights
from quorum_wal.walproposer.primary.prepared_transactions import PreparedTransaction, ours
from quorum_wal.walproposer.primary.primary_address import PrimaryAddress
from quorum_wal.walproposer.primary.primary_settings import PrimarySettings

ROOM = "max_prepared_transactions"
READ_ONLY = "default_transaction_read_only"
#: A qsync transaction ends within moments. Others end within the time limits of their transaction
#: manager.
LIMBO_SECONDS_MAX = 30.0
FOREIGN_SECONDS_MAX = 3600.0
#: The coordinator admits transactions up to half of this number.
ROOM_MIN = 10
ROOM_RECOMMENDED = 100
#: The first version whose logical decoding reports prepared transactions (protocol version 3).
STREAM_MAJOR = 15
NAMED_MAX = 5


def check_prepared(primary: PrimarySettings, _: PrimaryAddress) -> Iterator[Finding]:
    """For every primary, with or without qsync."""
    if primary.in_recovery:
        return
    if primary.settings.get(READ_ONLY) == "on":
        yield warn(
            "read_only",
            f"{READ_ONLY} is on: clients cannot write",
            "If sk promote was interrupted, sk attach ends the read-only state. Otherwise: ALTER "
            f"SYSTEM RESET {READ_ONLY}; SELECT pg_reload_conf();",
        )
    yield _room(primary)
    yield from check_limbo(primary.prepared)


def _room(primary: PrimarySettings) -> Finding:
    room = int(primary.settings.get(ROOM, "0"))
    if room == 0:
        return ok(ROOM, "0: no transaction can be prepared, so qsync cannot be used")
    limbo = len(ours(primary.prepared))
    others = len(primary.prepared) - limbo
    return ok(ROOM, f"{room}; {limbo} of qsync are prepared, {others} of others")


def check_limbo(prepared: Sequence[PreparedTransaction]) -> Iterator[Finding]:
    """Transactions that have been prepared for too long. They hold locks and hold back vacuum."""
    limbo = ours(prepared)
    old = [each for each in limbo if each.age_seconds > LIMBO_SECONDS_MAX]
    if old:
        yield warn(
            "limbo",
            f"{_count(old)} of qsync, prepared {_oldest(old)}",
            "sk qsync status shows the reason, sk qsync list shows each transaction.",
        )
    foreign = set(prepared) - set(limbo)
    old = [each for each in foreign if each.age_seconds > FOREIGN_SECONDS_MAX]
    if old:
        yield warn(
            "prepared",
            f"{_count(old)} of others, prepared {_oldest(old)}",
            "SELECT * FROM pg_prepared_xacts; shows them. Their transaction manager ends them, or "
            "you do, with COMMIT PREPARED or ROLLBACK PREPARED in their database.",
        )


def _count(entries: Sequence[PreparedTransaction]) -> str:
    return f"{len(entries)} transaction{'s' if len(entries) > 1 else ''}"


def _oldest(entries: Sequence[PreparedTransaction]) -> str:
    oldest = max(each.age_seconds for each in entries)
    return f"{'up to ' if len(entries) > 1 else ''}{oldest:.0f} s ago"


def check_standbys(
    primary: PrimarySettings, standbys: Iterable[tuple[str, PrimarySettings]]
) -> Iterator[Finding]:
    """`standbys`: the name and the settings of each."""
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
                f"{theirs} on the standby ({name}), {room} on the primary: the standby stops its "
                "replay when it sees the primary's value",
                f"On the standby: ALTER SYSTEM SET {ROOM} = {room}; then restart it.",
            )
        else:
            yield ok(ROOM, f"{theirs} on the standby ({name})")


# ---- requirements of qsync


def check_qsync(primary: PrimarySettings, rights: JanitorRights) -> Iterator[Finding]:
    """Can clients prepare transactions, and can the coordinator see and finish those that clients
    leave?"""
    yield _version(primary)
    room = int(primary.settings.get(ROOM, "0"))
    if room < ROOM_MIN:
        wanted = alter_system(ROOM, str(ROOM_RECOMMENDED), restart=True)
        text = f"{room}, expected at least {ROOM_MIN}: each waiting transaction needs one"
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
        f"{text}: no stream reports prepared transactions, so the coordinator polls for them",
        f"This works. From Postgres {STREAM_MAJOR} on positions are exact, and known at once.",
    )


def _wal_level(primary: PrimarySettings) -> Finding:
    value = primary.settings["wal_level"]
    if value == "logical" or primary.major < STREAM_MAJOR:
        return ok("wal_level", value)
    return warn(
        "wal_level",
        f'"{value}": no stream reports prepared transactions, so the coordinator polls for them',
        f"This works. For exact positions: {alter_system('wal_level', 'logical', restart=True)}",
    )


def _rights(rights: JanitorRights) -> Iterator[Finding]:
    role = quoted(rights.role)
    if rights.is_superuser:
        yield ok("janitor", f"role {role} is a superuser: it may finish all transactions")
    elif rights.foreign_owners:
        yield warn(
            "janitor",
            f"role {role} may not finish transactions of roles: {_names(rights.foreign_owners)}",
            f"For each role that uses qsync: GRANT {quoted(rights.foreign_owners[0])} TO {role};",
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
            f"{primary.slots} of {limit} are in use, and the stream needs one in each of {wanted} "
            "databases in which clients prepare transactions",
            alter_system(name, str(primary.slots + wanted + 5), restart=True),
        )
    else:
        yield ok(name, f"{limit}, {primary.slots} taken")


def _names(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED_MAX} more" if len(names) > NAMED_MAX else ""
    return ", ".join(names[:NAMED_MAX]) + more
