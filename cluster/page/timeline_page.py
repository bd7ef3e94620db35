"""What a page shows of one timeline, as tables and a headline. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from quorum_wal.cluster.member_view import MemberView, Status
from quorum_wal.cluster.page.cluster_picture import member_text, member_tone
from quorum_wal.cluster.timeline_view import TimelineView
from quorum_wal.cluster.verdict import Condition, Verdict
from quorum_wal.telemetry.page.page_view import Cell, Headline, Table
from quorum_wal.telemetry.page.tone import Tone
from quorum_wal.telemetry.size import bytes_text
from quorum_wal.walproposer.errors import WalProposerError
from quorum_wal.walproposer.timelines.status_page import PageAddress

UNKNOWN = "UNKNOWN"
NOTHING = "-"
ROWS_MAX = 50
EVENTS_SHOWN = 25
#: A name or an address. A user name or a path would make the link point to another place.
_HOST = re.compile(r"[A-Za-z0-9._:%-]+")
_TONES = {Condition.OK: Tone.OK, Condition.DEGRADED: Tone.WARN}


def headline_of(verdict: Verdict) -> Headline:
    tone = _TONES.get(verdict.condition, Tone.BAD)
    return Headline(verdict.condition.value, verdict.text, tone)


def unknown(text: str) -> Headline:
    """Where too little is known for a verdict."""
    return Headline(UNKNOWN, text, Tone.IDLE)


def version_text(pg_version: int) -> str:
    """15.18 for 150018."""
    return f"{pg_version // 10000}.{pg_version % 10000}"


def page_link(http: str, reached_host: str) -> str:
    """The URL for a browser; "" if the address is not valid."""
    try:
        page = PageAddress.parse(http, reached_host)
    except WalProposerError:
        return ""
    if _HOST.fullmatch(page.host) is None:
        return ""
    text = str(page)
    return f"{text}/" if page.encrypted else f"http://{text}/"


def members_table(view: TimelineView, pages: Mapping[int, str]) -> Table:
    """`pages`: the addresses of their pages, by id."""
    columns = ("safekeeper", "address", "state", "flush", "commit", "lag", "archived", "WAL here")
    members = (*view.members, *view.others)
    rows = tuple(_member_row(member, pages) for member in members[:ROWS_MAX])
    return Table("Members", columns, rows, max(0, len(members) - ROWS_MAX))


def _member_row(member: MemberView, pages: Mapping[int, str]) -> tuple[Cell, ...]:
    status, peer = member.status or {}, member.peer or {}
    standing = "" if member.standing.value == "member" else f" ({member.standing.value})"
    site = f" · {member.site}" if member.site else ""
    return (
        Cell(f"{member.safekeeper_id}{site}{standing}", link=pages.get(member.safekeeper_id, "")),
        Cell(member.address or NOTHING),
        Cell(_state_text(member), member_tone(member)),
        *(Cell(str(_newer(status, peer, name))) for name in ("flush_lsn", "commit_lsn")),
        Cell(_lag_text(peer)),
        Cell((status.get("archive") or {}).get("archived_lsn", NOTHING)),
        Cell(bytes_text(status["wal_bytes"]) if "wal_bytes" in status else NOTHING),
    )


def _state_text(member: MemberView) -> str:
    error = (member.peer or {}).get("error") or ""
    text = member_text(member)
    return text if member.is_followed or not error else f"{text}: {error}"


def _newer(status: Status, peer: Status, name: str) -> Any:
    """The proposer's value if it is connected: the safekeeper's may be some seconds old."""
    if peer.get("connected") and name in peer:
        return peer[name]
    return status.get(name, NOTHING)


def _lag_text(peer: Status) -> str:
    if not peer.get("connected") or "lag_bytes" not in peer:
        return NOTHING
    seconds = f", {peer['lag_seconds']:g} s" if peer.get("lag_seconds") else ""
    return bytes_text(peer["lag_bytes"]) + seconds


def readers_table(statuses: Iterable[tuple[int, Status]]) -> Table | None:
    """Replicas, pageservers and all else that streams WAL from a safekeeper, by its id."""
    readers = [(number, r) for number, status in statuses for r in status.get("replicas", ())]
    if not readers:
        return None
    columns = ("reader", "address", "from", "state", "sent", "flushed", "replayed", "slot")
    rows = tuple(_reader_row(number, reader) for number, reader in readers[:ROWS_MAX])
    return Table("Readers", columns, rows, max(0, len(readers) - ROWS_MAX))


def _reader_row(safekeeper_id: int, reader: Status) -> tuple[Cell, ...]:
    tone = Tone.OK if reader["state"] == "streaming" else Tone.WARN
    kind = f" (pageserver {reader['pageserver']})" if reader["pageserver"] else ""
    return (
        Cell((reader["application_name"] or NOTHING) + kind),
        Cell(reader["address"]),
        Cell(f"safekeeper {safekeeper_id}"),
        Cell(reader["state"], tone),
        *(Cell(reader[name] or NOTHING) for name in ("sent_lsn", "flush_lsn", "replay_lsn")),
        Cell(reader["slot"] or NOTHING),
    )


def slots_table(statuses: Iterable[tuple[int, Status]]) -> Table | None:
    """The replication slots of the safekeepers, by their ids."""
    slots = [(number, s) for number, status in statuses for s in status.get("slots", ())]
    if not slots:
        return None
    columns = ("slot", "on", "in use", "restart", "WAL")
    rows = tuple(_slot_row(number, slot) for number, slot in slots[:ROWS_MAX])
    return Table("Replication slots", columns, rows, max(0, len(slots) - ROWS_MAX))


def _slot_row(safekeeper_id: int, slot: Status) -> tuple[Cell, ...]:
    wal_status = slot["wal_status"] or NOTHING
    tones = {"lost": Tone.BAD, "unreserved": Tone.WARN}
    return (
        Cell(slot["slot_name"]),
        Cell(f"safekeeper {safekeeper_id}"),
        Cell("yes" if slot["active"] else "no"),
        Cell(slot["restart_lsn"] or NOTHING),
        Cell(wal_status, tones.get(wal_status, Tone.PLAIN)),
    )


def tables_of(view: TimelineView, pages: Mapping[int, str]) -> tuple[Table, ...]:
    """All tables of a timeline."""
    statuses = [(m.safekeeper_id, m.status) for m in (*view.members, *view.others) if m.status]
    found = (members_table(view, pages), readers_table(statuses), slots_table(statuses))
    return tuple(table for table in found if table is not None)
