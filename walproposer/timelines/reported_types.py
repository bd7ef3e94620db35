"""The types of the values on the status pages of other services, for the fields that our tools use.

    check_timeline()    an object of LIST_TIMELINES, or of `timelines` on a safekeeper's /status
    SafekeeperPage, check_safekeeper()
                        the rest of a safekeeper's /status
    check_proposer()    a proposer's /status

Law: a page that a tool shows has these types. The service that answers may be of another release,
damaged or hostile, so a missing optional field and an unknown field are accepted; a field of
another type is not. Pure. The writers are `safekeeper/status.py` and `walproposer/status.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Literal, Required, TypeAlias, TypedDict

import msgspec
from msgspec import Meta

from quorum_wal.consensus.membership_page import membership_of_page

_INT64_MAX = 2**63 - 1
_Count: TypeAlias = Annotated[int, Meta(ge=-_INT64_MAX, le=_INT64_MAX)]
#: At most 30 years: a date minus these seconds is still a date.
_Seconds: TypeAlias = Annotated[float, Meta(ge=-1e9, le=1e9)]
#: ISO 8601 with an offset: it is compared with the present time.
_Moment: TypeAlias = Annotated[datetime, Meta(tz=True)]
_Lsn: TypeAlias = Annotated[str, Meta(pattern=r"\A[0-9A-F]{1,8}/[0-9A-F]{1,8}\Z")]
_SystemId: TypeAlias = Annotated[str, Meta(pattern=r"\A[0-9]{1,20}\Z")]
_State: TypeAlias = Literal["creating", "active", "stopped", "damaged", "left"]


class _NodeId(TypedDict):
    term: Annotated[int, Meta(ge=0, le=_INT64_MAX)]
    uuid: Annotated[str, Meta(pattern=r"\A[0-9a-f]{32}\Z")]


# ---- a safekeeper


class _Proposer(TypedDict, total=False):
    """One that streams to the safekeeper, or did."""

    node_id: _NodeId
    address: Required[str]
    http: str
    connected_since: _Moment
    silent_seconds: _Seconds


class _Replica(TypedDict):
    application_name: str
    address: str
    state: str
    slot: str | None
    pageserver: str | None
    sent_lsn: str
    flush_lsn: str | None
    replay_lsn: str | None


class _Slot(TypedDict):
    slot_name: str
    active: bool
    restart_lsn: str | None
    wal_status: str | None


class _Pageserver(TypedDict):
    suffix: str
    held_bytes: _Count


class _Archive(TypedDict):
    archived_lsn: _Lsn
    backlog_bytes: _Count
    backlog_max_bytes: _Count | None
    backlog_is_high: bool
    state: str
    error: str | None


class _Retention(TypedDict):
    held_by: str
    member_left_behind: bool


class _Timeline(TypedDict, total=False):
    state: Required[_State]
    stopped_reason: Required[str | None]
    active: Required[bool]
    system_id: Required[_SystemId]
    pg_version: Required[Annotated[int, Meta(ge=0, le=10**9)]]
    wal_seg_size: Required[Annotated[int, Meta(ge=1, le=1 << 30)]]
    membership: Required[dict[str, Any]]
    promised: Required[_NodeId]
    last_log_node_id: _NodeId
    damage: list[str]
    forced: bool
    local_start_lsn: Required[_Lsn]
    written_lsn: str
    flush_lsn: Required[_Lsn]
    commit_lsn: Required[_Lsn]
    wal_bytes: Required[_Count]
    proposer: _Proposer | None
    last_proposer: _Proposer | None
    last_leader: _Proposer | None
    replicas: list[_Replica]
    slots: list[_Slot]
    pageserver: _Pageserver | None
    retention: Required[_Retention]
    archive: Required[_Archive | None]


class _Disk(TypedDict):
    free_bytes: _Count
    total_bytes: _Count


class _Scrub(TypedDict, total=False):
    pass_ended_at: str | None
    bytes_per_second: Annotated[float, Meta(ge=0, le=2.0**63)] | None


class SafekeeperPage(TypedDict, total=False):
    """The rest of the /status of a safekeeper, without its timelines."""

    version: str
    disk: _Disk | None
    scrub: _Scrub | None
    unusable_files: dict[str, str]
    certificate_until: str | None


class _DatedScrub(TypedDict, total=False):
    pass_ended_at: _Moment | None


class _DatedSafekeeper(TypedDict, total=False):
    """SafekeeperPage is the type that the page is decoded to, so it has times as texts."""

    scrub: _DatedScrub | None
    certificate_until: _Moment | None


# ---- a proposer


class _Primary(TypedDict, total=False):
    dsn: Required[str]
    connected: Required[bool]
    error: str | None
    silent_seconds: _Seconds | None
    flush_lsn: str
    system_id: _SystemId
    slot: str
    application_name: str


class _Quorum(TypedDict, total=False):
    ok: Required[bool]
    since: _Moment


class _Peer(TypedDict, total=False):
    id: _Count | None
    address: str
    state: str
    via: _Count | None
    connected: bool
    flush_lsn: str
    commit_lsn: str
    lag_bytes: _Count
    lag_seconds: _Seconds
    error: str | None
    silent_seconds: _Seconds | None


class _Change(TypedDict):
    state: str
    wanted: list[_Count]
    waits_for: str | None
    error: str | None


class _Members(TypedDict, total=False):
    change: _Change | None


class _Failover(TypedDict, total=False):
    error: str | None


class _Limbo(TypedDict):
    """A coordinator that does not decide, for the reason in `refuses`."""

    address: str
    owner: str | None
    refuses: str | None


class _OpenLimbo(_Limbo):
    len: _Count
    len_max: _Count
    age: _Seconds


class _ProposerPage(TypedDict, total=False):
    """Of a proposer in any state."""

    state: Required[str]
    node_id: _NodeId | None
    timeline_id: str
    primary: Required[_Primary]
    quorum: Required[_Quorum]
    safekeepers: Required[list[_Peer]]
    membership: _Members | None
    commit_problems: list[str] | None
    failover: _Failover | None
    qsync: _Limbo
    stalled_seconds: _Seconds
    unconfirmed_seconds: _Seconds


class _ConnectedPrimary(TypedDict):
    flush_lsn: str


class _MeasuredQuorum(TypedDict):
    since: _Moment


class _Connected(TypedDict):
    """The additional fields of a proposer that has a connection to a primary."""

    commit_lsn: str
    received_lsn: str
    commit_bytes_per_second: Annotated[float, Meta(ge=0, le=2.0**63)]
    primary: _ConnectedPrimary
    quorum: _MeasuredQuorum


class _Coordinating(TypedDict):
    """The additional fields of a proposer whose coordinator decides."""

    qsync: _OpenLimbo


#: msgspec prepares a type when it is first used, and two threads that do this at the same time
#: crash the process. Here the import does it.
_PREPARED = tuple(
    msgspec.json.Decoder(kind)
    for kind in (
        *(_Timeline, SafekeeperPage, _DatedSafekeeper),
        *(_ProposerPage, _Connected, _Coordinating),
    )
)


def check_timeline(status: Mapping[str, Any]) -> None:
    """Raises ValueError, which names the field; MessageError for an invalid membership."""
    msgspec.convert(status, _Timeline)
    membership_of_page(status["membership"])
    archive = status["archive"]
    if archive and archive["backlog_is_high"] and archive["backlog_max_bytes"] is None:
        raise ValueError("expected a number of bytes, got null - at `$.archive.backlog_max_bytes`")


def check_safekeeper(page: Mapping[str, Any]) -> None:
    """Of a page that was decoded to SafekeeperPage. Raises ValueError, which names the field."""
    msgspec.convert(page, _DatedSafekeeper)


def check_proposer(page: Mapping[str, Any]) -> None:
    """Raises ValueError, which names the field."""
    msgspec.convert(page, _ProposerPage)
    if "commit_lsn" in page:
        msgspec.convert(page, _Connected)
    if "qsync" in page and page["qsync"]["owner"]:
        msgspec.convert(page, _Coordinating)
