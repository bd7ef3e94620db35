"""`ServerView`: the state of a Postgres server, compared with the quorum's log.

A deposed primary that was started again has no proposer, so no safekeeper reports it. It must be
asked itself. Its commits wait, and its readers get outdated data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from quorum_wal.consensus.tli_history import first_difference
from quorum_wal.pgwal.history import TimelineHistory
from quorum_wal.pgwal.lsn import format_lsn
from quorum_wal.walproposer.checks.finding import Finding, Level
from quorum_wal.walproposer.checks.preflight import check_primary
from quorum_wal.walproposer.checks.preflight_commits import (
    SEE_STATUS,
    check_opt_outs,
    check_protection,
)
from quorum_wal.walproposer.errors import WalProposerError
from quorum_wal.walproposer.failover.log_view import LogView, log_view
from quorum_wal.walproposer.failover.standby import StandbyServer
from quorum_wal.walproposer.primary.commit_waits import NO_WAITS, CommitWaits
from quorum_wal.walproposer.primary.prepared_transactions import PreparedTransaction, ours
from quorum_wal.walproposer.primary.primary_address import PrimaryAddress
from quorum_wal.walproposer.primary.primary_settings import PrimarySettings, read_primary_settings
from quorum_wal.walproposer.timelines.discovery import Discovery

#: Checks of the preflight that also matter while commits run.
REMARKABLE = ("commits", "fsync", "read_only", "limbo", "prepared")
UNKNOWN_TO_SOME = (
    "the safekeepers that do not answer may have the timeline of its system, the others have none"
)
CONTENDED = (
    "it and another server are primaries that could continue the log: run sk attach for one of "
    "them, stop the other, then run sk rejoin or make it again from a base backup"
)


class Role(Enum):
    PRIMARY = "primary"
    DEPOSED = "deposed primary"
    CONTENDER = "one of several primaries"  # each of them could continue the log
    OTHER = "not the log's primary"  # the loser of two promotions at once, or a copy
    STANDBY = "standby"
    STRANGER = "stranger"  # the safekeepers have no timeline of its system
    UNKNOWN = "unknown"  # those that answer have none
    UNREACHABLE = "unreachable"


@dataclass(frozen=True, slots=True)
class Leader:
    """A proposer that streams: its status page, and the server it is attached to."""

    http: str
    dsn: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerView:
    """One server. Each remark is a sentence that says what to do. `dangers`: why commits return
    without the quorum. `risks`: why all or some of them may. `remarks`: the rest. `holder_pid`: the
    walsender that holds our slot, which means that a proposer streams. `limbo`: the prepared
    transactions of qsync."""

    dsn: str
    role: Role
    system_id: int = 0
    tli: int = 0
    holder_pid: int | None = None
    commit_waits: CommitWaits = NO_WAITS
    limbo: tuple[PreparedTransaction, ...] = ()
    dangers: tuple[str, ...] = ()
    risks: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()

    @property
    def limbo_seconds(self) -> float:
        """The age of the oldest prepared transaction."""
        return max((each.age_seconds for each in self.limbo), default=0.0)

    def as_json(self) -> dict[str, Any]:
        return {
            "dsn": self.dsn,
            "role": self.role.value,
            "tli": self.tli or None,
            "commit_waits": self.commit_waits.count,
            "commit_waits_stuck": self.commit_waits.stuck_count,
            "commit_wait_seconds": round(self.commit_waits.longest_seconds, 1),
            "limbo_len": len(self.limbo),
            "limbo_seconds": round(self.limbo_seconds, 1),
            "returns_without_quorum": bool(self.dangers),
            "remarks": [*self.dangers, *self.risks, *self.remarks],
        }


def server_views(dsns: Sequence[str], discovery: Discovery) -> list[ServerView]:
    """Asks all servers at once."""
    logs, names, leaders = logs_of(discovery), names_of(discovery), leaders_of(discovery)
    with ThreadPoolExecutor(max(1, len(dsns))) as pool:
        views = list(pool.map(lambda dsn: _ask(PrimaryAddress(dsn), logs, names, leaders), dsns))
    if not all(report.reachable for report in discovery.safekeepers):
        views = [_unknown(view) if view.role is Role.STRANGER else view for view in views]
    return with_contenders(views, {system for system, of in logs.items() if len(of) == 1})


def _unknown(view: ServerView) -> ServerView:
    """A server of which only some safekeepers, or none, could be asked."""
    return replace(view, role=Role.UNKNOWN, remarks=(UNKNOWN_TO_SOME, *view.remarks[1:]))


def with_contenders(views: Sequence[ServerView], systems: Set[int]) -> list[ServerView]:
    """Of several primaries of one log at most one keeps that role. `systems` have one log each."""
    return [
        _among(view, [v for v in views if v.role is Role.PRIMARY and v.system_id == view.system_id])
        if view.role is Role.PRIMARY and view.system_id in systems
        else view
        for view in views
    ]


def _among(view: ServerView, primaries: Sequence[ServerView]) -> ServerView:
    """`view` is the primary if a proposer is connected to it and to no other of `primaries`. The
    pid shows whether two names belong to the same server."""
    holders = {primary.holder_pid for primary in primaries} - {None}
    if len({primary.dsn for primary in primaries}) == 1 or holders == {view.holder_pid}:
        return view
    if len(holders) == 1:
        (dsn, *_) = (primary.dsn for primary in primaries if primary.holder_pid is not None)
        reason = f"a proposer is connected to another server ({dsn})"
        role, remark = Role.OTHER, _other(reason, returns_without_quorum=bool(view.dangers))
    else:
        role, remark = Role.CONTENDER, CONTENDED
    return replace(view, role=role, remarks=(remark, *view.remarks))


def leaders_of(discovery: Discovery) -> dict[int, Leader]:
    """The proposers that stream from a primary, by system id."""
    return {
        int(page["primary"]["system_id"]): Leader(report.http, page["primary"]["dsn"])
        for report in discovery.proposers.values()
        if (page := report.page) is not None
        and page["state"] == "streaming"
        and page["primary"]["connected"]
    }


def logs_of(discovery: Discovery) -> dict[int, list[LogView]]:
    """The logs of each system, from the status of their members."""
    statuses: dict[Any, list[Any]] = {}
    for report in discovery.safekeepers:
        for timeline, status in report.timelines.items():
            if status["active"]:
                statuses.setdefault((int(status["system_id"]), timeline), []).append(status)
    logs: dict[int, list[LogView]] = {}
    for (system_id, _), found in statuses.items():
        logs.setdefault(system_id, []).append(log_view(found))
    return logs


def names_of(discovery: Discovery) -> dict[int, tuple[str, str]]:
    """The slot and the application_name that the proposers of each system use."""
    primaries = [
        report.page["primary"]
        for report in discovery.proposers.values()
        if report.page is not None and "slot" in report.page["primary"]
    ]
    return {int(p["system_id"]): (p["slot"], p["application_name"]) for p in primaries}


def _ask(
    address: PrimaryAddress,
    logs: Mapping[int, Sequence[LogView]],
    names: Mapping[int, tuple[str, str]],
    leaders: Mapping[int, Leader],
) -> ServerView:
    try:
        settings = read_primary_settings(address)
        slot, application_name = names.get(
            settings.system_id, (address.slot, address.application_name)
        )
        if (slot, application_name) != (address.slot, address.application_name):
            address = replace(address, slot=slot, application_name=application_name)
            settings = read_primary_settings(address)
    except WalProposerError as error:
        remark = " ".join(str(error).split())
        return ServerView(dsn=str(address), role=Role.UNREACHABLE, remarks=(remark,))
    history: TimelineHistory | str
    try:
        history = StandbyServer(address).read_history_of(settings)
    except WalProposerError as error:
        history = str(error)
    system = settings.system_id
    return server_view(address, settings, history, logs.get(system, []), leaders.get(system))


def server_view(
    address: PrimaryAddress,
    settings: PrimarySettings,
    history: TimelineHistory | str,
    logs: Sequence[LogView],
    leader: Leader | None = None,
) -> ServerView:
    """The state of one server, and remarks about it. `history` is its timeline history, or the
    reason why it could not be read. Pure."""
    dangers, risks, remarks = [], [], []
    if not settings.in_recovery and logs:
        protection = list(check_protection(settings, address))
        dangers = [f.sentence for f in protection if f.level is Level.FAIL]
        risks = [f.sentence for f in protection if f.level is Level.WARN]
        risks += [f.sentence for f in check_opt_outs(settings)]
    if not settings.in_recovery:
        remarks = [_sentence(f) for f in check_primary(settings, address) if _is_remarkable(f)]
    role, remark = _role(settings, history, logs, returns_without_quorum=bool(dangers))
    holder_pid = settings.slot.holder_pid if settings.slot is not None else None
    if role is Role.PRIMARY and leader is not None and holder_pid is None:
        reason = f"the proposer at {leader.http} streams from another server ({leader.dsn})"
        role, remark = Role.OTHER, _other(reason, returns_without_quorum=bool(dangers))
    return ServerView(
        dsn=str(address),
        role=role,
        system_id=settings.system_id,
        tli=history.tli if isinstance(history, TimelineHistory) else 0,
        holder_pid=holder_pid,
        commit_waits=settings.commit_waits,
        limbo=ours(settings.prepared),
        dangers=tuple(dangers),
        risks=tuple(risks),
        remarks=(*([remark] if remark else []), *remarks),
    )


def _role(
    settings: PrimarySettings,
    history: TimelineHistory | str,
    logs: Sequence[LogView],
    *,
    returns_without_quorum: bool,
) -> tuple[Role, str]:
    if settings.in_recovery:
        return Role.STANDBY, ""
    if not logs:
        return Role.STRANGER, "the safekeepers have no timeline of its system: sk attach"
    if isinstance(history, str):
        return Role.PRIMARY, f"could not find out whether it was deposed: {history}"
    forks = [first_difference(history, log.history, log.start_lsn, log.flush_lsn) for log in logs]
    if None in forks:
        return Role.PRIMARY, ""
    fork_lsn = max(lsn for lsn in forks if lsn is not None)
    action = (
        "and acknowledges commits that no quorum has: stop it at once, then run sk rejoin"
        if returns_without_quorum
        else "its commits cannot be acknowledged: stop it, then run sk rejoin"
    )
    return Role.DEPOSED, f"left the quorum's log at {format_lsn(fork_lsn)}, {action}"


def _other(reason: str, *, returns_without_quorum: bool) -> str:
    """Two promotions at once give both servers the same timeline, so their histories are equal.
    pg_rewind cannot tell them apart either, because it compares only histories."""
    effect = "return without the quorum" if returns_without_quorum else "cannot be acknowledged"
    return (
        f"{reason}, commits here {effect}: if this does not change, stop this server and make it "
        "again from a base backup"
    )


def _sentence(finding: Finding) -> str:
    """The remedy of waiting commits refers to sk status, which prints this sentence."""
    return finding.sentence.replace(f"{SEE_STATUS} ", "")


def _is_remarkable(finding: Finding) -> bool:
    return finding.level is not Level.OK and finding.check in REMARKABLE
