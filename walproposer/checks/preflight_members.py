"""The preflight of the safekeepers: do they answer, and do they match each other and the primary?
Pure.

The second half of `preflight.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from quorum_wal.consensus.ids import TimelineId
from quorum_wal.consensus.membership import Membership
from quorum_wal.consensus.quorum import has_quorum
from quorum_wal.pgwal.lsn import Lsn
from quorum_wal.walproposer.checks.finding import Finding, fail, ok, warn
from quorum_wal.walproposer.primary.log_marker import (
    LEAVE_HINT,
    UNKNOWN_LOG,
    UNKNOWN_LOG_HINT,
    log_problem,
    new_log_problem,
)
from quorum_wal.walproposer.primary.primary_settings import PrimarySettings
from quorum_wal.walproposer.primary.standby_names import names_us
from quorum_wal.walproposer.timelines.discovery import SafekeeperReport
from quorum_wal.walproposer.timelines.survey import (
    folder_name,
    foreign_folders,
    greatest_membership,
    is_known,
)
from quorum_wal.walproposer.timelines.timeline_creation import DAMAGE_HINT

DISK_FREE_BYTES_MIN = 1 << 30

_USABLE = "active"


def check_safekeepers(
    reports: Sequence[SafekeeperReport],
    primary: PrimarySettings | None,
    wanted: TimelineId | None,
    application_name: str = "walproposer",
) -> list[Finding]:
    """All rules on the safekeepers. `primary` is None if it could not be reached."""
    findings = [_reachable(report) for report in reports]
    findings += _distinct_ids(reports)
    findings += _same_release(reports)
    findings += [_disk(report) for report in reports if report.disk is not None]
    if primary is not None:
        findings += _timeline(reports, primary, wanted, application_name)
    return findings


def _reachable(report: SafekeeperReport) -> Finding:
    check = f"safekeeper {report.address}"
    if not report.reachable:
        return fail(check, report.error, report.hint or "Start it, or correct its address.")
    if report.page_error:
        return warn(
            check,
            f"id {report.safekeeper_id}; {report.page_error}",
            "sk status will not show its disk.",
        )
    return ok(check, f"id {report.safekeeper_id}, release {report.version}")


def _distinct_ids(reports: Sequence[SafekeeperReport]) -> Iterator[Finding]:
    ids: dict[int, list[str]] = {}
    for report in reports:
        if report.reachable:
            ids.setdefault(report.safekeeper_id, []).append(report.address)
    twice = {number: addresses for number, addresses in ids.items() if len(addresses) > 1}
    for number, addresses in twice.items():
        yield fail(
            "safekeeper ids",
            f"{' and '.join(addresses)} have the same id {number}",
            "Give every safekeeper its own --id and data directory.",
        )
    if ids and not twice:
        yield ok("safekeeper ids", ", ".join(map(str, sorted(ids))))


def _same_release(reports: Sequence[SafekeeperReport]) -> Iterator[Finding]:
    releases = {report.version for report in reports if report.version}
    if len(releases) > 1:
        yield warn(
            "release",
            f"the safekeepers run {', '.join(sorted(releases))}",
            "Finish the upgrade, one safekeeper after the other.",
        )
    elif releases:
        yield ok("release", f"{releases.pop()} on all that answer")


def _disk(report: SafekeeperReport) -> Finding:
    assert report.disk is not None
    check = f"disk of {report.address}"
    if report.is_short_of_disk:
        return fail(check, report.disk_text, "Free some space, or use a larger disk.")
    if report.disk["free_bytes"] < DISK_FREE_BYTES_MIN:
        return warn(check, report.disk_text, "Use a larger disk.")
    return ok(check, report.disk_text)


# ---- the timeline of this primary


def _timeline(
    reports: Sequence[SafekeeperReport],
    primary: PrimarySettings,
    wanted: TimelineId | None,
    application_name: str,
) -> Iterator[Finding]:
    answering = [report for report in reports if report.reachable]
    silent = [report for report in reports if not report.reachable]
    found = {
        timeline
        for report in answering
        for timeline, status in (*report.timelines.items(), *report.left.items())
        if _belongs(timeline, status, primary, wanted)
        and (status["active"] or timeline in report.left)
    }
    if len(found) > 1:
        names = ", ".join(sorted(map(str, found)))
        yield fail(
            "timeline",
            f"the safekeepers have {len(found)} of this primary: {names}",
            "Name one with --timeline.",
        )
    elif found:
        timeline = found.pop()
        problem = log_problem(primary.log_markers, timeline)
        if problem:
            yield fail("log of the primary", problem, LEAVE_HINT)
        yield from _existing(timeline, reports, primary)
    elif primary.log_markers:
        present = [timeline for report in answering for timeline in report.timelines]
        unasked = [(report.error, report.hint) for report in silent]
        problem, remedy = new_log_problem(primary.log_markers, wanted, present, unasked)
        yield fail("log of the primary", problem, remedy)
    elif silent:
        yield fail(
            "timeline",
            f"none found, and only {len(answering)} of {len(reports)} safekeepers answer",
            next((report.hint for report in silent if report.hint), "")
            or "Start them all: a new timeline is created on every safekeeper.",
        )
    elif names_us(primary.settings["synchronous_standby_names"], application_name):
        yield fail("timeline", UNKNOWN_LOG, UNKNOWN_LOG_HINT)
    elif damaged := _damaged(answering, primary.system_id):
        yield fail("timeline", damaged[0], DAMAGE_HINT)
    else:
        name = f" {wanted}" if wanted is not None else ""
        yield ok("timeline", f"none yet, sk attach creates it{name}")


def _damaged(reports: Sequence[SafekeeperReport], system_id: int) -> list[str]:
    """Timelines that a safekeeper cannot open, and that may belong to this primary."""
    foreign = foreign_folders(reports, system_id)
    return [
        f"safekeeper {report.safekeeper_id} cannot open timeline {folder}: {reason}"
        for report in reports
        for folder, reason in report.damaged.items()
        if folder not in foreign
    ]


def _belongs(
    timeline: TimelineId,
    status: Mapping[str, Any],
    primary: PrimarySettings,
    wanted: TimelineId | None,
) -> bool:
    return timeline == wanted if wanted else int(status["system_id"]) == primary.system_id


def _existing(
    timeline: TimelineId, reports: Sequence[SafekeeperReport], primary: PrimarySettings
) -> Iterator[Finding]:
    having = {
        report.safekeeper_id: report.timelines[timeline]
        for report in reports
        if timeline in report.timelines
    }
    left = [report.left[timeline] for report in reports if timeline in report.left]
    membership = greatest_membership([*having.values(), *left])
    statuses = {
        report.safekeeper_id: having[report.safekeeper_id]
        for report in reports
        if timeline in report.timelines
        and report.safekeeper_id in membership.all_members
        and report.is_listed_as(membership.member(report.safekeeper_id))
    }
    yield _facts(timeline, next(iter((*having.values(), *left))), primary)
    yield from _members(timeline, membership, reports, statuses)
    if statuses:
        yield _end_of_log(statuses, primary)


def _facts(timeline: TimelineId, status: Mapping[str, Any], primary: PrimarySettings) -> Finding:
    if int(status["system_id"]) != primary.system_id:
        return fail(
            "timeline",
            f"{timeline} belongs to system {status['system_id']}, the primary is "
            f"{primary.system_id}",
            "Attach the primary it was created for, or another timeline.",
        )
    theirs = (status["pg_version"] // 10000, status["wal_seg_size"])
    if theirs != (primary.major, primary.wal_seg_size):
        return fail(
            "timeline",
            f"{timeline} was created for Postgres {theirs[0]} with {theirs[1]} byte segments, the "
            f"primary is {primary.major} with {primary.wal_seg_size}",
            "A major upgrade needs a new timeline: sk timeline create.",
        )
    return ok("timeline", str(timeline))


def _members(
    timeline: TimelineId,
    membership: Membership,
    reports: Sequence[SafekeeperReport],
    statuses: Mapping[int, Mapping[str, Any]],
) -> Iterator[Finding]:
    ids = {report.safekeeper_id for report in reports if report.reachable}
    strangers = ids - set(membership.all_members)
    if is_known(membership):
        yield from map(_stranger, sorted(strangers))
    elif strangers or len(reports) != len(membership.all_members):
        yield fail(
            "members",
            f"the timeline's members are {_listed(membership.all_members)}, the safekeepers given "
            f"and reachable are {_listed(ids)}",
            "Give exactly its members in --safekeepers.",
        )
    usable = {i for i, status in statuses.items() if status["state"] in (_USABLE, "creating")}
    gone = {report.safekeeper_id for report in reports if timeline in report.left}
    lost = ids & set(membership.all_members) - set(statuses) - gone
    damaged = {report.safekeeper_id: report.damaged for report in reports if report.reachable}
    for member in sorted(lost):
        reason = damaged[member].get(folder_name(timeline))
        yield warn(
            "members",
            f"safekeeper {member} is damaged: {reason}"
            if reason
            else f"safekeeper {member} lost its data",
            f"sk member replace {member} HOST:PORT puts a new safekeeper in its place.",
        )
    for member in sorted(set(statuses) - usable):
        status = statuses[member]
        yield warn(
            "members",
            f"safekeeper {member} is {status['state']}: {status['stopped_reason']}",
            "Repair its disk and restart it.",
        )
    count = f"{len(usable)} of {len(membership.all_members)} can vote"
    if has_quorum(membership, usable):
        yield ok("quorum", count)
    else:
        yield fail("quorum", f"only {count}, too few for an election", "Start the others.")


def _stranger(number: int) -> Finding:
    return warn(
        "members",
        f"safekeeper {number} is not a member of the timeline",
        "Leave it out of --safekeepers, or make it a member: sk member add.",
    )


def _end_of_log(statuses: Mapping[int, Mapping[str, Any]], primary: PrimarySettings) -> Finding:
    """A primary whose WAL ends below the commit position lacks acknowledged commits."""
    commit_lsn = max(Lsn.parse(status["commit_lsn"]) for status in statuses.values())
    if primary.flush_lsn is not None and primary.flush_lsn < commit_lsn:
        return fail(
            "log",
            f"the primary's WAL ends at {Lsn(primary.flush_lsn)}, but {commit_lsn} was committed",
            "It lacks acknowledged commits. First start it as a standby of the safekeepers.",
        )
    return ok("log", f"committed up to {commit_lsn}")


def _listed(ids: Sequence[int] | set[int]) -> str:
    return ", ".join(map(str, sorted(ids))) or "none"
