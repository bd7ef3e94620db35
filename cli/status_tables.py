"""The output of `sk status`: the verdict, the proposer, a row per member, a row per safekeeper."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from quorum_wal.cli.member_table import notes, remarks
from quorum_wal.cli.output import plain_table
from quorum_wal.cluster.member_view import MemberState, MemberView, node_id_of
from quorum_wal.cluster.server_view import Role, ServerView
from quorum_wal.cluster.timeline_view import ProposerView, TimelineView, brief_node_id
from quorum_wal.cluster.verdict import Condition, Verdict, runbook_entry
from quorum_wal.consensus.ids import NodeId
from quorum_wal.telemetry.size import bytes_text
from quorum_wal.telemetry.status_server import CERTIFICATE_TIME_MIN
from quorum_wal.walproposer.timelines.discovery import SafekeeperReport

_STYLES = {Condition.OK: "bold green", Condition.DEGRADED: "bold yellow"}
_UNWELL = "bold red"
_NOTHING = "-"


def timeline_section(view: TimelineView, verdict: Verdict) -> RenderableType:
    """The section of one timeline."""
    head = Text(f"timeline {view.timeline}", style="bold")
    head.append(
        f"   Postgres {version_text(view.pg_version)}, system {view.system_id}, "
        f"generation {view.membership.generation}",
        style="dim",
    )
    return Group(
        head,
        Text(str(verdict), style=_STYLES.get(verdict.condition, _UNWELL), overflow="fold"),
        *runbook_line(verdict.runbook),
        *(Text(proposer_line(proposer), overflow="fold") for proposer in view.proposers),
        _members_table((*view.members, *view.others)),
        *(Text(remark, style="bold yellow", overflow="fold") for remark in remarks(view)),
        *(Text(note, style="dim", overflow="fold") for note in notes(view)),
        *(
            Text(remark, style="bold yellow", overflow="fold")
            for member in view.members
            for remark in archive_remarks(member)
        ),
        Text(""),
    )


def unopened_section(folder: str, reports: Sequence[SafekeeperReport]) -> RenderableType:
    """The section of a timeline that these safekeepers have and that no safekeeper can open."""
    reasons = damage_text(folder, reports)
    return Group(
        Text(f"timeline {folder.replace('.', '/')}", style="bold"),
        Text(f"DAMAGED: no member can open it: {reasons}", style=_UNWELL, overflow="fold"),
        *runbook_line(runbook_entry("SkTimelineUnreadable")),
        Text(""),
    )


def runbook_line(entry: str) -> list[Text]:
    """Leads to the steps; nothing without an entry."""
    return [Text(f"runbook: {entry}", style="dim", overflow="fold")] if entry else []


def damage_text(folder: str, reports: Sequence[SafekeeperReport]) -> str:
    """The reason why each safekeeper cannot open the timeline."""
    return "; ".join(
        f"safekeeper {report.safekeeper_id} ({report.address}): {report.damaged[folder]}"
        for report in reports
    )


def proposer_line(proposer: ProposerView) -> str:
    """The name, state and positions of a proposer."""
    page = proposer.page
    if page is None:
        return f"{proposer}: {proposer.error}"
    line = f"{proposer}: {proposer.state}"
    if "commit_lsn" not in page:
        return line
    return (
        f"{line} from {page['primary']['dsn']}; primary {page['primary']['flush_lsn']}, received "
        f"{page['received_lsn']}, commit {page['commit_lsn']}, "
        f"{bytes_text(page['commit_bytes_per_second'])}/s; quorum "
        f"{'ok' if page['quorum']['ok'] else 'lost'} for {_age(page['quorum']['since'])}"
        f"{_limbo_text(page.get('qsync'))}"
    )


def _limbo_text(qsync: dict[str, Any] | None) -> str:
    """The prepared transactions of the coordinator, or why it refuses; "" without a coordinator."""
    if qsync is None:
        return ""
    if not qsync.get("owner"):
        return f"; qsync at {qsync['address']}: {qsync['refuses']}"
    oldest = f", the oldest for {qsync['age']:.0f} s" if qsync["len"] else ""
    return f"; qsync at {qsync['address']}: {qsync['len']} of {qsync['len_max']} prepared{oldest}"


def _members_table(members: Sequence[MemberView]) -> Table:
    table = plain_table(
        "id", "address", "state", "is", "site", "proposer", "promised", "last log", "written",
        "flush", "commit", "lag", "behind", "archived", "wal", "held by",
    )  # fmt: skip
    for member in members:
        is_well = member.state is MemberState.ACTIVE or not member.is_member
        style = "" if is_well else "red"
        table.add_row(*_member_cells(member), style=style)
    return table


def _member_cells(member: MemberView) -> list[str]:
    status, peer = member.status or {}, member.peer or {}
    return [
        str(member.safekeeper_id),
        member.address or _NOTHING,
        member.state.value,
        member.standing.value,
        member.site or _NOTHING,
        _connection(member),
        node_id_text(node_id_of(status.get("promised"))),
        node_id_text(node_id_of(status.get("last_log_node_id"))),
        status.get("written_lsn", _NOTHING),
        *(status.get(name, peer.get(name, _NOTHING)) for name in ("flush_lsn", "commit_lsn")),
        bytes_text(peer["lag_bytes"]) if "lag_bytes" in peer else _NOTHING,
        f"{peer['lag_seconds']:g} s" if "lag_seconds" in peer else _NOTHING,
        (status.get("archive") or {}).get("archived_lsn", _NOTHING),
        bytes_text(status["wal_bytes"]) if status else _NOTHING,
        status["retention"]["held_by"] if "retention" in status else _NOTHING,
    ]


def archive_remarks(member: MemberView) -> list[str]:
    """Problems of archiving on this member."""
    archive = (member.status or {}).get("archive")
    if archive is None:
        return []
    name, remarks = f"safekeeper {member.safekeeper_id}", []
    if archive["error"]:
        remarks.append(f"{name}: archiving fails: {archive['error']}")
    if archive["backlog_is_high"]:
        remarks.append(
            f"{name}: {bytes_text(archive['backlog_bytes'])} wait for the archive; at "
            f"{bytes_text(archive['backlog_max_bytes'])} the safekeeper refuses WAL"
        )
    return remarks


def _connection(member: MemberView) -> str:
    """Whether a proposer streams to the member, as the member or the proposer reports it."""
    proposer = (member.status or {}).get("proposer")
    if proposer is not None:
        via = f", via {member.via}" if member.via else ""
        return f"for {_age(proposer['connected_since'])}{via}"
    return str(member.peer["state"]) if member.peer and "state" in member.peer else _NOTHING


def servers_section(servers: Sequence[ServerView]) -> RenderableType:
    """A row per Postgres given, then a line per problem or remark."""
    table = plain_table(
        "postgres", "role", "timeline", "commits waiting", "longest", "prepared by qsync", "oldest"
    )
    remarks: list[RenderableType] = []
    for server in servers:
        style = "" if server.role in (Role.PRIMARY, Role.STANDBY) else "red"
        table.add_row(
            server.dsn,
            server.role.value,
            str(server.tli or _NOTHING),
            str(server.commit_waits.count),
            f"{server.commit_waits.longest_seconds:.0f} s"
            if server.commit_waits.count
            else _NOTHING,
            str(len(server.limbo)),
            f"{server.limbo_seconds:.0f} s" if server.limbo else _NOTHING,
            style=style,
        )
        for remark in (*server.dangers, *server.risks, *server.remarks):
            text = f"{server.role.value} {server.dsn}: {remark}"
            remarks.append(Text(text, style="bold yellow", overflow="fold"))
    return Group(table, *remarks)


def safekeepers_table(
    reports: Sequence[SafekeeperReport], views: Sequence[TimelineView] = ()
) -> Table:
    """A row per address given. `views`: the timelines, to find out which may be a member."""
    table = plain_table(
        "safekeeper", "id", "version", "status page", "disk free", "scrubbed", "problem"
    )
    for report in reports:
        table.add_row(
            report.address,
            str(report.safekeeper_id or _NOTHING),
            report.version or _NOTHING,
            report.http or _NOTHING,
            _disk_text(report),
            _scrub_text(report),
            _no_member(report, views)
            or report.error
            or report.page_error
            or _damage(report)
            or _empty(report, views)
            or _files(report),
            style="" if report.reachable else "red",
        )
    return table


def _no_member(report: SafekeeperReport, views: Sequence[TimelineView]) -> str:
    """An address that does not answer, and at which no member is missing; "" for all others. The
    address of a member that was replaced stays in --safekeepers until somebody removes it."""
    missing = " or ".join(
        member.address
        for view in views
        for member in (*view.members, *view.others)
        if member.state is MemberState.UNREACHABLE
    )
    if report.reachable or not views or report.address in missing.split(" or "):
        return ""
    return f"no member of a timeline, remove it from --safekeepers ({report.error})"


def _damage(report: SafekeeperReport) -> str:
    """How many of its timelines it cannot read, and how many have damaged WAL, so that it does not
    vote in them."""
    damaged_wal = sum(bool(status.get("damage")) for status in report.timelines.values())
    counts = {"cannot be read": len(report.damaged), "with damaged WAL": damaged_wal}
    return ", ".join(f"timelines {what}: {count}" for what, count in counts.items() if count)


def _empty(report: SafekeeperReport, views: Sequence[TimelineView]) -> str:
    """A new safekeeper, or the wrong one: all is well with the timelines, but it is no part of
    that. Before there is any timeline this says nothing."""
    return "stores no timeline" if views and not report.timelines else ""


def _files(report: SafekeeperReport) -> str:
    """Files that changed and are not in force, and a certificate that ends soon."""
    problems = [f"not in force: {name} ({why})" for name, why in report.unusable_files.items()]
    if report.certificate_until is not None:
        until, now = datetime.fromisoformat(report.certificate_until), datetime.now(UTC)
        if until - now < CERTIFICATE_TIME_MIN:
            verb = "ends" if until > now else "has ended"
            problems.append(f"its certificate {verb} on {until:%Y-%m-%d %H:%M} UTC")
    return "; ".join(problems)


def _disk_text(report: SafekeeperReport) -> str:
    if not report.disk:
        return _NOTHING
    free, total = report.disk["free_bytes"], report.disk["total_bytes"]
    return f"{bytes_text(free)} of {bytes_text(total)}"


def _scrub_text(report: SafekeeperReport) -> str:
    """The time since the last pass over all old WAL ended."""
    scrub = report.scrub or {}
    if scrub.get("pass_ended_at"):
        return f"{_age(scrub['pass_ended_at'])} ago"
    return "never, scrub is off" if scrub.get("bytes_per_second") == 0 else _NOTHING


def node_id_text(node_id: NodeId) -> str:
    return brief_node_id(node_id) if node_id != NodeId.ZERO else _NOTHING


def version_text(pg_version: int) -> str:
    """15.18 for 150018."""
    return f"{pg_version // 10000}.{pg_version % 10000}"


def _age(moment: str) -> str:
    """The time since an ISO time: 12 s, 3 min, 5 h, 2 d."""
    seconds = max(0.0, (datetime.now(UTC) - datetime.fromisoformat(moment)).total_seconds())
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"
