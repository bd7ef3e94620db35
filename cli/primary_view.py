"""`sk status --primary`: servers as they see themselves, beside the quorum's log.

A deposed primary that was started again is no proposer's any more, so no safekeeper knows of it; it
must be asked itself. Its commits wait, and what it shows to its readers is out of date.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum
from typing import Any

from consensus.tli_history import first_difference
from pgwal.history import TimelineHistory
from pgwal.lsn import format_lsn
from walproposer.discovery import Discovery
from walproposer.errors import WalProposerError
from walproposer.log_view import LogView, log_view
from walproposer.preflight import Level, check_primary
from walproposer.primary_settings import PrimarySettings, read_primary_settings
from walproposer.standby import StandbyServer
from walproposer.upstream import PrimaryAddress

#: What the preflight may find that matters while commits run.
SAFETY_CHECKS = ("synchronous_standby_names", "synchronous_commit", "commits", "fsync")


class Role(Enum):
    PRIMARY = "primary"
    DEPOSED = "deposed primary"
    STANDBY = "standby"
    STRANGER = "stranger"  # the safekeepers have no timeline of its system
    UNREACHABLE = "unreachable"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerView:
    """One server. `remarks` are sentences, each with what to do."""

    dsn: str
    role: Role
    tli: int = 0
    commit_waits: int = 0
    commit_wait_seconds: float = 0.0
    remarks: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        return {
            "dsn": self.dsn,
            "role": self.role.value,
            "tli": self.tli or None,
            "commit_waits": self.commit_waits,
            "commit_wait_seconds": round(self.commit_wait_seconds, 1),
            "remarks": list(self.remarks),
        }


def server_views(dsns: Sequence[str], discovery: Discovery) -> list[ServerView]:
    """All asked at once."""
    logs = logs_of(discovery)
    with ThreadPoolExecutor(max(1, len(dsns))) as pool:
        return list(pool.map(lambda dsn: _ask(PrimaryAddress(dsn), logs), dsns))


def logs_of(discovery: Discovery) -> dict[int, list[LogView]]:
    """The logs of every system, as their members tell."""
    statuses: dict[Any, list[Any]] = {}
    for report in discovery.safekeepers:
        for timeline, status in report.timelines.items():
            if status["active"]:
                statuses.setdefault((int(status["system_id"]), timeline), []).append(status)
    logs: dict[int, list[LogView]] = {}
    for (system_id, _), found in statuses.items():
        logs.setdefault(system_id, []).append(log_view(found))
    return logs


def _ask(address: PrimaryAddress, logs: dict[int, list[LogView]]) -> ServerView:
    try:
        settings = read_primary_settings(address)
        history, _ = StandbyServer(address).read_history()
    except WalProposerError as error:
        remark = " ".join(str(error).split())
        return ServerView(dsn=str(address), role=Role.UNREACHABLE, remarks=(remark,))
    return server_view(address, settings, history, logs.get(settings.system_id, []))


def server_view(
    address: PrimaryAddress,
    settings: PrimarySettings,
    history: TimelineHistory,
    logs: Sequence[LogView],
) -> ServerView:
    """What it is, and what somebody should know of it. Pure."""
    role, remark = _role(settings, history, logs)
    remarks = [remark] if remark else []
    if not settings.in_recovery:
        remarks += _warnings(settings, address)
    return ServerView(
        dsn=str(address),
        role=role,
        tli=history.tli,
        commit_waits=settings.commit_waits,
        commit_wait_seconds=settings.commit_wait_seconds,
        remarks=tuple(remarks),
    )


def _role(
    settings: PrimarySettings, history: TimelineHistory, logs: Sequence[LogView]
) -> tuple[Role, str]:
    if settings.in_recovery:
        return Role.STANDBY, ""
    if not logs:
        return Role.STRANGER, "the safekeepers have no timeline of its system: sk attach"
    forks = [first_difference(history, log.history, log.start_lsn, log.flush_lsn) for log in logs]
    if None in forks:
        return Role.PRIMARY, ""
    fork_lsn = max(lsn for lsn in forks if lsn is not None)
    return Role.DEPOSED, (
        f"left the quorum's log at {format_lsn(fork_lsn)}, its commits cannot be acknowledged: "
        "stop it, then sk rejoin"
    )


def _warnings(settings: PrimarySettings, address: PrimaryAddress) -> Iterator[str]:
    for finding in check_primary(settings, address):
        if finding.level is not Level.OK and finding.check in SAFETY_CHECKS:
            yield f"{finding.check}: {finding.text}: {finding.remedy}"
