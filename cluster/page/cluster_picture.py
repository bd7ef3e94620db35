"""The picture of one timeline: the primary, its proposer, the members, and their readers.
Pure.

    primary    proposer    members    readers: replicas, pageservers, the archive
    limbo
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict

from quorum_wal.cluster.member_view import MemberState, MemberView, Status
from quorum_wal.cluster.timeline_view import ProposerView, TimelineView
from quorum_wal.pgwal.lsn import Lsn
from quorum_wal.telemetry.page.picture import Link, Node, Picture
from quorum_wal.telemetry.page.tone import Tone
from quorum_wal.telemetry.size import bytes_text
from quorum_wal.walproposer.stream.quorum_watch import SILENT_SECONDS_MAX

#: Boxes of readers; the table below the picture names more of them.
READERS_MAX = 6
PRIMARY, PROPOSER, LIMBO, ARCHIVE, OTHERS = "primary", "proposer", "limbo", "archive", "others"
STREAMING = "streaming"


def cluster_picture(view: TimelineView) -> Picture:
    """From the statuses of the members and of the leading proposer."""
    leader = view.leader
    page = leader.page if leader is not None else None
    members = (*view.members, *(m for m in view.others if m.is_followed))
    readers = _Readers()
    for member in members:
        readers.take(member)
    first = [_primary(page)]
    if page is not None and page.get("qsync"):
        first.append(_limbo(page["qsync"]))
    links = [
        Link(PRIMARY, PROPOSER, _primary_tone(page), "WAL of the primary"),
        *(_member_link(member) for member in members),
        *readers.links,
    ]
    if len(first) > 1:
        links.append(Link(PROPOSER, LIMBO, Tone.PLAIN, "transactions that wait for the quorum"))
    nodes = tuple(member_node(member) for member in members)
    return Picture((tuple(first), (_proposer(leader),), nodes, readers.nodes), tuple(links))


# ---- boxes


def _primary(page: Status | None) -> Node:
    if page is None:
        return Node(PRIMARY, "primary", "unknown", Tone.IDLE)
    primary = page["primary"]
    silent_seconds = primary.get("silent_seconds") or 0.0
    if not primary.get("connected"):
        state = "not connected"
    elif silent_seconds > SILENT_SECONDS_MAX:
        state = f"silent for {silent_seconds:.0f} s"
    else:
        state = "connected"
    return Node(PRIMARY, "primary", state, _primary_tone(page), place_of(primary["dsn"]))


def _primary_tone(page: Status | None) -> Tone:
    if page is None:
        return Tone.IDLE
    silent_seconds = page["primary"].get("silent_seconds") or 0.0
    is_well = page["primary"].get("connected") and silent_seconds <= SILENT_SECONDS_MAX
    return Tone.OK if is_well else Tone.BAD


def place_of(dsn: str) -> str:
    """`host:port` of a connection string; the folder of a socket; "" if it is not valid."""
    try:
        parts = conninfo_to_dict(dsn)
    except psycopg.Error:
        return ""
    host = str(parts.get("host") or parts.get("hostaddr") or "local socket")
    port = parts.get("port")
    return f"{host}:{port}" if port else host


def _proposer(leader: ProposerView | None) -> Node:
    if leader is None:
        return Node(PROPOSER, "proposer", "none is connected", Tone.BAD)
    term = f", term {leader.node_id.term}" if leader.node_id.term else ""
    if leader.page is None:
        return Node(PROPOSER, "proposer", f"connected{term}", Tone.IDLE, leader.http)
    tone = Tone.OK if leader.state == STREAMING else Tone.WARN
    if not leader.page["quorum"]["ok"]:
        tone = Tone.BAD
    commit_lsn = leader.page.get("commit_lsn")
    detail = f"commit {commit_lsn}" if commit_lsn else leader.http
    return Node(PROPOSER, "proposer", leader.state.replace("_", " ") + term, tone, detail)


def _limbo(qsync: Any) -> Node:
    if not qsync.get("owner"):
        return Node(LIMBO, "limbo (qsync)", "not open", Tone.WARN, str(qsync.get("refuses") or ""))
    state = f"{qsync['len']} of {qsync['len_max']} prepared"
    if qsync.get("refuses"):
        return Node(LIMBO, "limbo (qsync)", state, Tone.WARN, str(qsync["refuses"]))
    oldest = f"oldest {qsync['age']:.0f} s" if qsync["len"] else ""
    return Node(LIMBO, "limbo (qsync)", state, Tone.OK, oldest)


def member_node(member: MemberView) -> Node:
    name = f"safekeeper {member.safekeeper_id}" + (f" · {member.site}" if member.site else "")
    return Node(key_of(member), name, member_text(member), member_tone(member), _position(member))


def key_of(member: MemberView) -> str:
    return f"safekeeper {member.safekeeper_id}"


def member_text(member: MemberView) -> str:
    """What it does, as the proposer or else as the safekeeper calls it."""
    if member.damage:
        return "damaged, does not vote"
    if member.is_followed and member.peer is not None:
        via = f" via {member.via}" if member.via else ""
        return str(member.peer["state"]) + via
    if member.state is MemberState.ACTIVE:
        return "not followed" if member.peer is not None else "active"
    if member.state is MemberState.NOT_GIVEN or (
        member.state is MemberState.UNREACHABLE and member.peer is None
    ):
        return "not asked"
    return str(member.state.value)


def member_tone(member: MemberView) -> Tone:
    state = (member.peer or {}).get("state")
    if member.damage or member.short_of_disk:
        return Tone.WARN
    if member.is_followed:
        return Tone.OK if state in (STREAMING, "chained") else Tone.WARN
    if member.peer is None and member.state in (MemberState.UNREACHABLE, MemberState.NOT_GIVEN):
        return Tone.IDLE
    if member.peer is None and member.state is MemberState.ACTIVE:
        return Tone.OK if (member.status or {}).get("proposer") else Tone.IDLE
    return Tone.BAD


def _position(member: MemberView) -> str:
    peer, status = member.peer or {}, member.status or {}
    lsn = peer.get("flush_lsn") if member.is_followed else status.get("flush_lsn")
    if not lsn:
        return member.address
    lag_bytes = peer.get("lag_bytes", 0) if member.is_followed else 0
    return f"flush {lsn}" + (f", {bytes_text(lag_bytes)} behind" if lag_bytes else "")


def _member_link(member: MemberView) -> Link:
    source = f"safekeeper {member.via}" if member.via else PROPOSER
    tone = member_tone(member)
    return Link(source, key_of(member), tone, f"WAL, {member_text(member)}")


# ---- readers


class _Readers:
    """The last column, filled member by member."""

    def __init__(self) -> None:
        self._nodes: dict[str, Node] = {}
        self._others = 0
        self._archived_lsn = Lsn(0)
        self.links: list[Link] = []

    @property
    def nodes(self) -> tuple[Node, ...]:
        if not self._others:
            return tuple(self._nodes.values())
        more = Node(OTHERS, f"{self._others} more readers", "in the table below", Tone.PLAIN)
        return (*self._nodes.values(), more)

    def take(self, member: MemberView) -> None:
        status = member.status or {}
        for node in (*_pageservers(status), *_archives(status), *_replicas(status)):
            if node.key not in self._nodes and len(self._nodes) >= READERS_MAX:
                self._others += 1
                continue
            if node.key == ARCHIVE:
                self._take_archive(node, Lsn.parse(status["archive"]["archived_lsn"]))
            else:
                self._nodes.setdefault(node.key, node)
            self.links.append(Link(key_of(member), node.key, node.tone, f"WAL, {node.state}"))

    def _take_archive(self, node: Node, archived_lsn: Lsn) -> None:
        """All members write to one archive. The box shows the member that reports an error, else
        the one that has archived most."""
        known = self._nodes.get(ARCHIVE)
        is_worse = known is not None and known.tone is Tone.WARN
        if (
            known is None
            or (node.tone is Tone.WARN and not is_worse)
            or (archived_lsn > self._archived_lsn and not is_worse)
        ):
            self._nodes[ARCHIVE], self._archived_lsn = node, archived_lsn


def _replicas(status: Status) -> Iterator[Node]:
    for replica in status.get("replicas", ()):
        if replica["pageserver"] is not None:
            continue
        name = replica["application_name"] or "replica"
        tone = Tone.OK if replica["state"] == STREAMING else Tone.WARN
        key = f"replica {name} {replica['address']}"
        yield Node(key, name, replica["state"], tone, f"sent {replica['sent_lsn']}")


def _pageservers(status: Status) -> Iterator[Node]:
    pageserver = status.get("pageserver")
    if pageserver is None:
        return
    is_here = any(r["pageserver"] == pageserver["suffix"] for r in status.get("replicas", ()))
    yield Node(
        f"pageserver {pageserver['suffix']}",
        "pageserver",
        "streaming" if is_here else "not connected here",
        Tone.OK if is_here else Tone.IDLE,
        f"holds {bytes_text(pageserver['held_bytes'])} of WAL",
    )


def _archives(status: Status) -> Iterator[Node]:
    archive = status.get("archive")
    if archive is None:
        return
    is_well = not archive["error"] and not archive["backlog_is_high"]
    state = "failing" if archive["error"] else archive["state"]
    backlog_bytes = archive["backlog_bytes"]
    behind = f", {bytes_text(backlog_bytes)} behind" if backlog_bytes else ""
    tone = Tone.OK if is_well else Tone.WARN
    yield Node(ARCHIVE, "archive", state, tone, f"{archive['archived_lsn']}{behind}")
