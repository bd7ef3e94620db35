"""Reads the state of a set of safekeepers and of the proposers they know, all at once.

    safekeepers --wire--> identity, timelines --http--> disk
                              `--> proposers --http--> election, positions, quorum

It changes nothing. A service that does not answer is in the result, with the reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from quorum_wal.consensus.errors import MessageError
from quorum_wal.consensus.ids import TimelineId
from quorum_wal.consensus.membership import Member as ListedMember
from quorum_wal.walproposer.errors import Refusal, Unreachable, WalProposerError
from quorum_wal.walproposer.safekeeper_client import SafekeeperAddress
from quorum_wal.walproposer.timelines.reported_types import (
    SafekeeperPage,
    check_proposer,
    check_safekeeper,
    check_timeline,
)
from quorum_wal.walproposer.timelines.status_page import (
    PROPOSER_LIMITS,
    PageAccess,
    PageAddress,
    demands_tls,
    read_status_page,
)
from quorum_wal.walproposer.timelines.survey import (
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

#: Pages read at once. With many timelines some proposers do not answer, and each costs a timeout.
PAGES_MAX = 64
#: With less free space a timeline does not grow or restart: safekeeper/room.py.
SEGMENTS_FREE_MIN = 3


@dataclass(frozen=True, slots=True)
class SafekeeperReport:
    """`error` is why it did not answer, `page_error` why its status page did not; else "". A
    safekeeper that answered and refused has its id, if it may be known, and a `hint`.

    `timelines` are the JSON objects of its status, `left` those of timelines that it has left.
    `damaged` maps the folders of timelines that it cannot open to the reasons, and `unusable_files`
    the changed files that are not in force. `instance` (8 bytes in hex) identifies its data
    directory. `certificate_until` is an ISO time.
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
    unusable_files: Mapping[str, str] = field(default_factory=dict)
    certificate_until: str | None = None

    @property
    def reachable(self) -> bool:
        return not self.error

    @property
    def is_short_of_disk(self) -> bool:
        """Whether its timelines will stop soon, because there is no room for a few segments."""
        seg_sizes = [status["wal_seg_size"] for status in self.timelines.values()]
        needed_bytes = SEGMENTS_FREE_MIN * max(seg_sizes, default=16 << 20)
        return self.disk is not None and self.disk["free_bytes"] < needed_bytes

    @property
    def disk_text(self) -> str:
        """Empty if the page was not read."""
        if self.disk is None:
            return ""
        return f"{self.disk['free_bytes'] >> 20} of {self.disk['total_bytes'] >> 20} MB are free"

    def is_listed_as(self, listed: ListedMember) -> bool:
        """Whether it is that member. Another disk with its id is another safekeeper."""
        instance = bytes.fromhex(self.instance) if self.instance else listed.instance
        return self.reachable and self.safekeeper_id == listed.id and listed.is_instance(instance)


@dataclass(frozen=True, slots=True)
class ProposerReport:
    """`page` is the JSON of its status, read at `read_at`; None if it did not answer."""

    http: str
    page: Mapping[str, Any] | None
    error: str
    read_at: datetime


@dataclass(frozen=True, slots=True)
class Discovery:
    """The safekeepers in the order of the given addresses, then others that memberships name; the
    proposers by the address of their status page."""

    safekeepers: tuple[SafekeeperReport, ...]
    proposers: Mapping[str, ProposerReport]


def discover(addresses: Sequence[SafekeeperAddress], http_token: str = "") -> Discovery:
    """`http_token`: for their pages. Raises Refusal if two addresses lead to one safekeeper."""
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
        reports = pool.map(lambda asked: read_proposer(*asked), pages.values())
        return Discovery(safekeepers, {report.http: report for report in reports})


def present_addresses(
    addresses: Sequence[SafekeeperAddress], timeline: TimelineId | None = None
) -> tuple[SafekeeperAddress, ...]:
    """The current addresses of the timeline's members, as far as the given safekeepers, and those
    that they name, know them: some may have moved, others been replaced. If they know none, or
    there are several timelines and none is named: the given and named addresses.

    Raises Refusal if two of the given addresses lead to one safekeeper.
    """
    members = survey(addresses, LATE_SECONDS)
    check_members(members)
    wanted = wanted_of(None, timeline)
    members = follow(members, wanted, LATE_SECONDS)
    known = [s for t, s in known_timelines(members).items() if wanted(t, s[0])]
    if len(known) != 1:
        return tuple(member.address for member in members)
    return addresses_of(greatest_membership(known[0]), members)


def check_any_answers(reports: Sequence[SafekeeperReport]) -> None:
    """Raises Refusal if none answers and one refused, Unreachable if none answers."""
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
    """Only the safekeepers, whatever their errors."""
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
    for status in (*member.timelines.values(), *member.left.values()):
        try:
            check_timeline(status)
        except (ValueError, MessageError) as error:
            return SafekeeperReport(
                str(address),
                error=f"its status of a timeline is invalid: {error}",
                hint="Check that it is a safekeeper of this release.",
            )
    page: Mapping[str, Any] = {}
    page_error = ""
    try:
        located = PageAddress.parse(member.http, address.host)
        if demands_tls(address.conninfo):  # the page of a safekeeper uses TLS as its wire does
            located = PageAddress(located.host, located.port, True)
        page_access = PageAccess(address.conninfo, http_token)
        page = read_status_page(located, page_access, kind=SafekeeperPage)
        check_safekeeper(page)
    except WalProposerError as error:
        page_error = str(error)
    except ValueError as error:
        page, page_error = {}, f"its status page is invalid: {error}"
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
        unusable_files=page.get("unusable_files", {}),
        certificate_until=page.get("certificate_until"),
    )


def proposer_pages(status: Mapping[str, Any]) -> Iterator[tuple[Mapping[str, Any], str]]:
    """The proposers that a timeline's status names, each with the address of its page."""
    for key in ("proposer", "last_proposer", "last_leader"):
        named = status.get(key)
        if named and named.get("http"):
            try:
                yield named, str(PageAddress.parse(named["http"], _host_of(named["address"])))
            except WalProposerError:
                continue  # it named no page, so there is none to read


def _proposer_pages(status: Mapping[str, Any]) -> Iterator[PageAddress]:
    for _, page in proposer_pages(status):
        yield PageAddress.parse(page, "")


def read_proposer(page: PageAddress, access: PageAccess) -> ProposerReport:
    """Its report has an error if the page does not answer, or is not that of a proposer."""
    read_at = datetime.now(UTC)
    try:
        status = read_status_page(page, access, PROPOSER_LIMITS)
        check_proposer(status)
    except WalProposerError as error:
        return ProposerReport(str(page), None, str(error), read_at)
    except ValueError as error:
        invalid = f"status page {page} is not that of a proposer: {error}"
        return ProposerReport(str(page), None, invalid, read_at)
    return ProposerReport(str(page), status, "", read_at)


def _host_of(address: str) -> str:
    return address.rpartition(":")[0].removeprefix("[").removesuffix("]")
