"""The preflight of commits: do they wait for the quorum, and for nothing less? Pure rules.

A part of `preflight.py`. `sk status` and the proposer (`commit_watch.py`) use the same rules. Law:
no rule returns ok for a commit that returns without the quorum. Source: Postgres `syncrep.c`
(SyncRepWaitForLSN, SyncRepGetSyncRecPtr): a commit waits when max_wal_senders > 0,
synchronous_commit > local and synchronous_standby_names is not empty. It returns when all standbys
with sync_state `sync` have confirmed it, or enough of those with `quorum`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import assert_never

from quorum_wal.walproposer.checks.finding import Finding, alter_system, fail, ok, quoted, warn
from quorum_wal.walproposer.primary.primary_address import PrimaryAddress
from quorum_wal.walproposer.primary.primary_settings import (
    COMMIT_SETTING,
    Override,
    PrimarySettings,
)
from quorum_wal.walproposer.primary.standby_names import (
    ANY_NAME,
    Method,
    StandbyNames,
    parse_standby_names,
)
from quorum_wal.walproposer.primary.walsenders import STREAMING, WalSender, names_of

SEE_STATUS = "sk status shows the reason."
DO_NOT_CANCEL = (
    "Do not cancel them: a cancelled wait makes the transaction visible, though a failover may "
    "still lose it."
)

NAMES = "synchronous_standby_names"
SENDERS = "max_wal_senders"

#: Values of synchronous_commit with which a commit does not wait for a standby, so perhaps no
#: safekeeper has it.
UNSAFE_COMMITS = ("off", "local")
# Postgres also accepts these for its enum. Source: `guc_tables.c`, synchronous_commit_options.
_COMMIT_SYNONYMS = {"false": "off", "no": "off", "0": "off", "true": "on", "yes": "on", "1": "on"}

# Soon after a reload the checkpointer may not have applied it yet.
SETTLED_SECONDS = 300.0


def check_commits(primary: PrimarySettings, address: PrimaryAddress) -> Iterator[Finding]:
    """All rules, for `sk check`. Before a proposer has the slot, commits need not wait yet."""
    slot = primary.slot
    is_attached = slot is not None and slot.holder == address.application_name
    yield from check_standbys(primary, address, expects_quorum=is_attached)
    yield _synchronous_commit(primary)
    yield from check_opt_outs(primary)
    yield from _in_force(primary)
    yield _waits(primary)


def check_protection(primary: PrimarySettings, address: PrimaryAddress) -> Iterator[Finding]:
    """The rules for every commit of a primary whose commits must wait for the quorum. FAIL: commits
    return without it. warn: one more failure would have that effect."""
    yield from check_standbys(primary, address, expects_quorum=True)
    yield _synchronous_commit(primary)


def check_standbys(
    primary: PrimarySettings, address: PrimaryAddress, *, expects_quorum: bool
) -> Iterator[Finding]:
    """Which standbys must confirm a commit, and which can confirm one instead of the proposer."""
    ours, value = address.application_name, primary.settings[NAMES]
    judged = fail if expects_quorum else warn
    if primary.settings[SENDERS] == "0":
        yield fail(
            SENDERS,
            "0: commits return with one copy, on the primary, whatever the value of "
            "synchronous_standby_names, and no proposer can stream",
            alter_system(SENDERS, "10", restart=True),
        )
        return
    rule = parse_standby_names(value)
    if rule is None:
        yield judged(
            NAMES,
            "empty: commits return with one copy, on the primary",
            alter_system(NAMES, quoted(ours))
            if expects_quorum
            else "sk attach --configure sets it.",
        )
    elif not rule.matches(ours):
        yield judged(
            NAMES,
            f"{value}: it does not include {ours}, so commits do not wait for the quorum",
            alter_system(NAMES, quoted(ours)),
        )
    else:
        yield _confirming_standbys(rule, primary, address)


def _confirming_standbys(
    rule: StandbyNames, primary: PrimarySettings, address: PrimaryAddress
) -> Finding:
    """The finding for a list that names our proposer."""
    ours, value = address.application_name, primary.settings[NAMES]
    proposer, namesakes = _proposer_and_namesakes(primary, address)
    releasing = _releasing_without(rule, proposer, primary.standbys)
    set_right = alter_system(NAMES, quoted(ours))
    if releasing and primary.slot is not None:
        return fail(
            NAMES,
            f"{value}: {names_of(releasing)}, which is not our proposer, confirms commits without "
            "the quorum",
            _ending(releasing) if set(releasing) <= set(namesakes) else set_right,
        )
    others = rule.others(ours)
    if len(others) >= rule.count or ANY_NAME in others:
        return warn(
            NAMES,
            f"{value}: names others: {', '.join(others)}; commits may return when they confirm, "
            "without the quorum",
            set_right,
        )
    if namesakes:
        return warn(
            NAMES,
            f"{value}: {names_of(namesakes)} is not known as our proposer: without the proposer it "
            "would confirm commits, without the quorum",
            _ending(namesakes),
        )
    if proposer is None and (primary.sees_all or not primary.walsenders):
        return warn(
            NAMES,
            f"{value}, but no such standby streams: commits wait now",
            "Run sk attach. Or run sk detach: commits then return without the quorum.",
        )
    if rule.count > len(others) + 1:
        return warn(
            NAMES,
            f"{value}: {rule.count} standbys must confirm, and only one is called {ours}: commits "
            "wait now",
            set_right,
        )
    besides = f" and for {', '.join(others)}" if others else ""
    return ok(NAMES, f"{value}, commits wait for the quorum{besides}")


def _proposer_and_namesakes(
    primary: PrimarySettings, address: PrimaryAddress
) -> tuple[WalSender | None, list[WalSender]]:
    """Our proposer, which uses our slot, and other standbys that use its application_name."""
    proposer, namesakes = None, []
    for standby in primary.standbys:
        is_named_so = standby.application_name.lower() == address.application_name.lower()
        if standby.slot == address.slot:
            proposer = standby
        elif is_named_so and standby.state in (STREAMING, ""):
            namesakes.append(standby)
    return proposer, namesakes


def _releasing_without(
    rule: StandbyNames, proposer: WalSender | None, standbys: tuple[WalSender, ...]
) -> list[WalSender]:
    """The standbys whose confirmation lets commits return without our proposer's; or an empty
    list."""
    releasing = [standby for standby in standbys if standby.releases_commits]
    others = [standby for standby in releasing if standby != proposer]
    match rule.method:
        case Method.PRIORITY:  # all of them must confirm
            return others if len(others) == len(releasing) >= rule.count else []
        case Method.QUORUM:
            return others if len(others) >= rule.count else []
        case _:
            assert_never(rule.method)


def _ending(standbys: list[WalSender]) -> str:
    ends = " ".join(f"SELECT pg_terminate_backend({standby.pid});" for standby in standbys)
    return f"Give that client another application_name; then {ends}"


# ---- commits that do not wait


def _synchronous_commit(primary: PrimarySettings) -> Finding:
    name, value = COMMIT_SETTING, primary.settings.get(COMMIT_SETTING)
    if value is None:
        return warn(
            name,
            f"role {quoted(primary.role)} has its own value, and may not read the server's",
            f"ALTER ROLE {quoted(primary.role)} RESET {name};",
        )
    if _level(value) in UNSAFE_COMMITS:
        return fail(
            name,
            f'"{value}": commits return before the quorum has them',
            alter_system(name, "on"),
        )
    return ok(name, value)


def check_opt_outs(primary: PrimarySettings) -> Iterator[Finding]:
    """The roles and databases whose commits do not wait."""
    for override in primary.overrides:
        if _level(override.value) in UNSAFE_COMMITS:
            whose = _whose(override)
            yield fail(
                COMMIT_SETTING,
                f'"{override.value}" by ALTER {whose}: such commits return before the quorum has '
                "them",
                f"ALTER {whose} RESET {COMMIT_SETTING};",
            )


def _level(value: str) -> str:
    lowered = value.strip().lower()
    return _COMMIT_SYNONYMS.get(lowered, lowered)


def _whose(override: Override) -> str:
    """In the form that ALTER requires: DATABASE d; ROLE r; ROLE r IN DATABASE d."""
    database = f"DATABASE {quoted(override.database)}" if override.database else ""
    if not override.role:
        return database or "ROLE ALL"
    role = f"ROLE {quoted(override.role)}"
    return f"{role} IN {database}" if database else role


# ---- the current state


def _in_force(primary: PrimarySettings) -> Iterator[Finding]:
    """The checkpointer puts synchronous_standby_names into effect for all sessions; Postgres
    `checkpointer.c` (UpdateSharedMemoryConfig)."""
    is_settled = primary.checkpointer_obeys or primary.config_age_seconds > SETTLED_SECONDS
    if primary.settings[NAMES] and not is_settled:
        yield warn(
            "reload",
            f"the configuration was loaded {primary.config_age_seconds:.0f} s ago, and the "
            "checkpointer is busy: commits may not wait until it has applied it",
            "CHECKPOINT; then run sk check again.",
        )


def _waits(primary: PrimarySettings) -> Finding:
    if not primary.sees_all:
        role = quoted(primary.role)
        return warn(
            "commits",
            f"role {role} may not see which commits wait",
            f"GRANT pg_read_all_stats TO {role};",
        )
    if primary.commit_waits.stuck_count:
        return warn(
            "commits",
            f"{primary.commit_waits}",
            f"{SEE_STATUS} {DO_NOT_CANCEL}",
        )
    return ok("commits", "no commit waits for long")
