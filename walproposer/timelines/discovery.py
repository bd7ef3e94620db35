"""What a set of safekeepers and the proposers they know of say of themselves, all asked at once.

    safekeepers --wire--> identity, timelines --http--> disk
                              `--> proposers --http--> election, positions, quorum

Nothing is changed by asking. Whoever does not answer is in the result, with the reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from consensus.ids import TimelineId
from consensus.membership import Member as ListedMember
from walproposer.errors import Refusal, Unreachable, WalProposerError
from walproposer.safekeeper_client import SafekeeperAddress
from walproposer.timelines.status_page import PageAccess, PageAddress, demands_tls, read_status_page
from walproposer.timelines.survey import (
    LATE_SECONDS,
    Member,
    addresses_of,
    any_timeline,
    check_members,
    follow,
    greatest_membership,
    known_timelines,
    survey,
    wanted_of,
)

#: Asked for at once: of many timelines some proposers do not answer, each until a timeout.
PAGES_MAX = 64
#: A timeline does not grow, or come back, with less: safekeeper/room.py.
SEGMENTS_FREE_MIN = 3


@dataclass(frozen=True, slots=True)
class SafekeeperReport:
    """`error` says why it did not tell, `page_error` why its status page did not; else "". One that
    answered, and refused, comes with its id, if we may know it, and with a `hint`.

    `timelines` are the JSON objects of its status, `left` those of timelines that it has left;
    `damaged` maps the folders of those that it cannot open to the reasons. `instance` (8 bytes in
    hex) is of its data directory.
    """

    address: str
    error: str = ""
    safekeeper_id: int = 0
    version: str = ""
    http: str = ""
    timelines: Mapping[TimelineId, Mapping[str, Any]] = field(default_factory=dict)
    damaged: Mapping[str, str] = field(default_factory=dict)
    disk: Mapping[str, int] | None = None
    scrub: Mapping[str, Any] | None = None
    page_error: str = ""
    hint: str = ""
    instance: str = ""
    site: str = ""
    left: Mapping[TimelineId, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def reachable(self) -> bool:
        return not self.error

    @property
    def is_short_of_disk(self) -> bool:
        """Its timelines stop soon: no room is left for a few segments."""
        seg_sizes = [status["wal_seg_size"] for status in self.timelines.values()]
        needed_bytes = SEGMENTS_FREE_MIN * max(seg_sizes, default=16 << 20)
        return self.disk is not None and self.disk["free_bytes"] < needed_bytes

    @property
    def disk_text(self) -> str:
        """Without its page: ""."""
        if self.disk is None:
            return ""
        return f"{self.disk['free_bytes'] >> 20} of {self.disk['total_bytes'] >> 20} MB are free"

    def is_listed_as(self, listed: ListedMember) -> bool:
        """Whether it is that member; another disk under its id is another one."""
        instance = bytes.fromhex(self.instance) if self.instance else listed.instance
        return self.reachable and self.safekeeper_id == listed.id and listed.is_instance(instance)


@dataclass(frozen=True, slots=True)
class ProposerReport:
    """`page` is the JSON of its status, read at `read_at`; None when it did not answer."""

    http: str
    page: Mapping[str, Any] | None
    error: str
    read_at: datetime


@dataclass(frozen=True, slots=True)
class Discovery:
    """In the order of the addresses given, and then those whom memberships name besides; proposers
    by the address of their status page."""

    safekeepers: tuple[SafekeeperReport, ...]
    proposers: Mapping[str, ProposerReport]


def discover(addresses: Sequence[SafekeeperAddress], http_token: str = "") -> Discovery:
    """`http_token`: for their pages. Raises Refusal when two addresses lead to one safekeeper."""
    members = survey(addresses)
    check_members(members)
    members = follow(members, any_timeline)
    safekeepers = _reports(members, http_token)
    pages = {
        str(page): (page, PageAccess(member.client.address.conninfo, http_token))
        for member in members
        for status in member.timelines.values()
        for page in _proposer_pages(status)
    }
    with ThreadPoolExecutor(min(max(1, len(pages)), PAGES_MAX)) as pool:
        reports = pool.map(lambda asked: _read_proposer(*asked), pages.values())
        return Discovery(safekeepers, {report.http: report for report in reports})


def present_addresses(
    addresses: Sequence[SafekeeperAddress], timeline: TimelineId | None = None
) -> tuple[SafekeeperAddress, ...]:
    """Where the members of the timeline are now, as far as those given, and those whom they name,
    can tell: some of them may have moved, others been replaced. Where nobody knows better, and
    where there are several timelines and none is named, those given and those named besides.

    Raises Refusal when two of those given lead to one safekeeper.
    """
    members = survey(addresses, LATE_SECONDS)
    check_members(members)
    wanted = wanted_of(None, timeline)
    members = follow(members, wanted, LATE_SECONDS)
    known = [s for t, s in known_timelines(members).items() if wanted(t, s[0])]
    if len(known) != 1:
        return tuple(member.address for member in members)
    return addresses_of(greatest_membership(known[0]), members)


def check_any_tells(reports: Sequence[SafekeeperReport]) -> None:
    """Raises Refusal when none tells anything and one refused to, Unreachable when none answers."""
    if any(report.reachable for report in reports):
        return
    for report in reports:
        if report.hint:
            raise Refusal(f"safekeeper {report.address}: {report.error}", hint=report.hint)
    raise Unreachable(
        f"no safekeeper answers: {reports[0].error}", hint="Start them, or correct --safekeepers."
    )


def inspect_safekeepers(
    addresses: Sequence[SafekeeperAddress], http_token: str = ""
) -> tuple[SafekeeperReport, ...]:
    """The safekeepers alone, whatever is wrong with them."""
    return _reports(follow(survey(addresses), any_timeline), http_token)


def _reports(members: Sequence[Member], http_token: str) -> tuple[SafekeeperReport, ...]:
    with ThreadPoolExecutor(max(1, len(members))) as pool:
        return tuple(pool.map(lambda member: _report(member, http_token), members))


def _report(member: Member, http_token: str) -> SafekeeperReport:
    address = member.client.address
    if member.error is not None:
        return SafekeeperReport(
            str(address),
            error=str(member.error),
            safekeeper_id=member.safekeeper_id,
            http=member.http,
            hint=member.error.hint,
        )
    page: Mapping[str, Any] = {}
    page_error = ""
    try:
        located = PageAddress.parse(member.http, address.host)
        if demands_tls(address.conninfo):  # the page of a safekeeper has the TLS of its wire
            located = PageAddress(located.host, located.port, True)
        page = read_status_page(located, PageAccess(address.conninfo, http_token))
    except WalProposerError as error:
        page_error = str(error)
    return SafekeeperReport(
        str(address),
        safekeeper_id=member.safekeeper_id,
        version=page.get("version", ""),
        http=member.http,
        timelines=member.timelines,
        damaged=member.damaged,
        disk=page.get("disk"),
        scrub=page.get("scrub"),
        page_error=page_error,
        instance=member.instance,
        site=member.site,
        left=member.left,
    )


def proposer_pages(status: Mapping[str, Any]) -> Iterator[tuple[Mapping[str, Any], str]]:
    """The proposers that a timeline's status names, each with the address of its page."""
    for key in ("proposer", "last_proposer", "last_leader"):
        named = status.get(key)
        if named and named.get("http"):
            try:
                yield named, str(PageAddress.parse(named["http"], _host_of(named["address"])))
            except WalProposerError:
                continue  # it named no page: then there is none to read


def _proposer_pages(status: Mapping[str, Any]) -> Iterator[PageAddress]:
    for _, page in proposer_pages(status):
        yield PageAddress.parse(page, "")


def _read_proposer(page: PageAddress, access: PageAccess) -> ProposerReport:
    read_at = datetime.now(UTC)
    try:
        return ProposerReport(str(page), read_status_page(page, access), "", read_at)
    except WalProposerError as error:
        return ProposerReport(str(page), None, str(error), read_at)


def _host_of(address: str) -> str:
    return address.rpartition(":")[0].removeprefix("[").removesuffix("]")
