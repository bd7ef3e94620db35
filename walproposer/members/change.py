"""`change_members`: changes the members of a timeline through its proposer.

    its proposer runs:   POST /members, then GET /members until it is done
    no proposer runs:    an incarnation without a primary, which only makes this change

If it is interrupted, the same request continues the change: it finds it done, in progress or not
begun. Law: a proposer that may be alive is never fenced here, because commits of its primary would
wait.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from http import HTTPStatus
from threading import Thread
from typing import Any

import msgspec

from quorum_wal.consensus.ids import TimelineId
from quorum_wal.walproposer.change_requests import CHANGE_PATH, OUTSIDE_PATH, PATH
from quorum_wal.walproposer.config import ProposerConfig
from quorum_wal.walproposer.errors import Refusal, Unreachable, WalProposerError
from quorum_wal.walproposer.request_page import request_page
from quorum_wal.walproposer.safekeeper_client import SafekeeperAddress
from quorum_wal.walproposer.service import without_primary
from quorum_wal.walproposer.status import change_status
from quorum_wal.walproposer.stream.events import ChangeRequest, ChangeState, Outcome, Stop
from quorum_wal.walproposer.stream.incarnation import Incarnation
from quorum_wal.walproposer.timelines.discovery import Discovery, discover
from quorum_wal.walproposer.timelines.status_page import PageAccess, PageAddress, ask_page
from quorum_wal.walproposer.timelines.timeline_creation import FoundTimeline, require_timeline

#: Time for a starting proposer or a failover to appear before this process becomes the proposer.
APPEAR_SECONDS = 2.0
#: Interval at which the progress of a change is read.
POLL_SECONDS = 0.2
#: Time to retry if a proposer does not answer, or has no term at the moment.
RETRY_SECONDS_MAX = 60.0

ENDS = {state.value for state in (ChangeState.DONE, ChangeState.REFUSED, ChangeState.GONE_BACK)}

Progress = Callable[[str], None]


def change_members(
    config: ProposerConfig,
    request: ChangeRequest,
    on_progress: Progress = lambda line: None,
    *,
    http_token: str = "",
) -> None:
    """Returns when the change is complete. `on_progress` is called with each new progress line.
    Raises Refusal if the change was refused or cancelled, Unreachable if no proposer that could
    make it answers, and any other WalProposerError."""
    log = _ProgressLog(on_progress)
    may_be_starting = True
    while True:
        _, found = require_timeline(config.safekeepers, None, config.timeline)
        proposer = running_proposer(config, found.timeline, http_token)
        if proposer is None and may_be_starting:
            may_be_starting = False
            log.report("no proposer runs: this process will make the change, unless one appears")
            time.sleep(APPEAR_SECONDS)
            continue
        try:
            if proposer is None:
                _change_without_proposer(config, found, request, log)
            else:
                proposer.change(request, log)
            return
        except _TryAgain as error:
            if time.monotonic() - log.heard_at > RETRY_SECONDS_MAX:
                raise Unreachable(str(error), hint="sk status shows what is missing.") from error
            log.report(f"{error}; retrying")
            time.sleep(POLL_SECONDS)


def cancel_change(config: ProposerConfig, *, http_token: str = "") -> None:
    """Cancel the change of the running proposer. Raises Refusal if it is too late, or there is
    nothing to cancel: without a proposer no change is in progress."""
    _, found = require_timeline(config.safekeepers, None, config.timeline)
    proposer = running_proposer(config, found.timeline, http_token)
    if proposer is None:
        raise Refusal("no proposer runs, so no change is under way")
    proposer.cancel()


class _TryAgain(Exception):
    """Temporary; the caller retries."""


class _ProgressLog:
    """Reports each line once. `heard_at`: when a proposer last reported the state of the change."""

    def __init__(self, on_progress: Progress) -> None:
        self.heard_at = time.monotonic()
        self._on_progress = on_progress
        self._last_line = ""

    def report(self, line: str) -> None:
        if line != self._last_line:
            self._last_line = line
            self._on_progress(line)

    def report_change(self, change: Mapping[str, Any]) -> None:
        self.heard_at = time.monotonic()
        details = [change[key] for key in ("waits_for", "error") if change[key]]
        self.report(": ".join([change["state"], *details]))


def _check_end(change: Mapping[str, Any]) -> bool:
    """Returns whether the change is complete. Raises Refusal if it was refused or cancelled."""
    if change["state"] == ChangeState.DONE.value:
        return True
    if change["state"] in ENDS:
        raise Refusal(f"the members stay as they were: {change['error'] or change['state']}")
    return False


# ---- a running proposer


@dataclass(frozen=True, slots=True)
class RunningProposer:
    page: PageAddress
    access: PageAccess

    def change(self, request: ChangeRequest, log: _ProgressLog) -> None:
        """Raises _TryAgain if the proposer ended, or another one leads."""
        body = msgspec.json.encode(request_page(request))
        answer = self._ask("POST", PATH, body)
        wanted = list(request.ids)
        while True:
            change = answer["change"]
            if change is None or change["wanted"] != wanted:
                if self._has(request, answer):
                    return
                raise _TryAgain(f"proposer {self.page} has no such change")
            log.report_change(change)
            if _check_end(change):
                return
            time.sleep(POLL_SECONDS)
            answer = self._ask("GET", PATH)

    def cancel(self) -> None:
        try:
            self._ask("DELETE", CHANGE_PATH)
        except _TryAgain as error:
            raise Unreachable(str(error)) from error

    def name_outsider(self, place: SafekeeperAddress) -> None:
        """The safekeeper at `place` is in no set: the leader connects to it and sends it the order
        to leave. Raises Unreachable."""
        try:
            self._ask("POST", OUTSIDE_PATH, msgspec.json.encode({"address": str(place)}))
        except _TryAgain as error:
            hint = "Run the command again when a proposer leads."
            raise Unreachable(str(error), hint=hint) from error

    def _has(self, request: ChangeRequest, answer: Mapping[str, Any]) -> bool:
        """Whether the change was already done and in force before the request."""
        wanted = {(m.id, m.instance.hex(), m.address, m.site) for m in request.members}
        present = {
            (m["id"], m["instance"], m["address"], m["site"])
            for m in answer["members"]
            if m["sets"]
        }
        return wanted == present and not answer["is_joint"] and bool(answer["in_force"])

    def _ask(self, method: str, path: str, body: bytes | None = None) -> dict[str, Any]:
        try:
            code, answer = ask_page(self.page, self.access, method, path, body)
        except Unreachable as error:
            raise _TryAgain(str(error)) from error
        if code in (HTTPStatus.OK, HTTPStatus.ACCEPTED):
            return answer
        problem = answer.get("error") or f"proposer {self.page} answers {code}"
        if code == HTTPStatus.SERVICE_UNAVAILABLE:
            raise _TryAgain(problem)
        raise Refusal(problem, hint=answer.get("hint") or "")


def running_proposer(
    config: ProposerConfig, timeline: TimelineId, http_token: str
) -> RunningProposer | None:
    """The newest proposer that answers for this timeline; None if none streams. Raises Unreachable
    if a proposer may be alive but its page cannot be reached."""
    discovery = discover(config.safekeepers, http_token)
    answering = [
        (report.page["node_id"]["term"] if report.page.get("node_id") else 0, report.http)
        for report in discovery.proposers.values()
        if report.page is not None and _is_of(report.page, timeline)
    ]
    streaming = _streaming(discovery, timeline)
    if answering:
        _, http = max(answering)
        conninfo = config.safekeepers[0].conninfo
        return RunningProposer(PageAddress.parse(http, ""), PageAccess(conninfo, http_token))
    if streaming:
        raise Unreachable(
            f"a proposer ({streaming}) streams to the timeline, but its HTTP port is not reachable",
            hint="Run this on its machine, or start it with an --http address that can be reached, "
            "--tls-cert and --admin-token-file.",
        )
    return None


def _is_of(page: Mapping[str, Any], timeline: TimelineId) -> bool:
    named = (page.get("tenant_id"), page.get("timeline_id"))
    return named == (timeline.tenant_id.hex(), timeline.timeline_id.hex())


def _streaming(discovery: Discovery, timeline: TimelineId) -> str:
    for report in discovery.safekeepers:
        proposer = report.timelines.get(timeline, {}).get("proposer")
        if proposer is not None:
            return str(proposer["address"])
    return ""


# ---- no running proposer


def _change_without_proposer(
    config: ProposerConfig, found: FoundTimeline, request: ChangeRequest, log: _ProgressLog
) -> None:
    """Raises _TryAgain, WalProposerError."""
    config = replace(config, safekeepers=found.addresses, http="")
    incarnation = without_primary(config, found)
    incarnation.request(request)
    results: list[Stop | BaseException | None] = []
    thread = Thread(target=_run, args=(incarnation, results), name="members", daemon=True)
    thread.start()
    try:
        while thread.is_alive():
            thread.join(POLL_SECONDS)
            if incarnation.core.change is not None:
                log.report_change(change_status(incarnation.core.change))
    finally:
        incarnation.ask_to_stop()
        thread.join()
    _check_result(incarnation, results[0])


def _run(incarnation: Incarnation, results: list[Stop | BaseException | None]) -> None:
    try:
        results.append(incarnation.run())
    except BaseException as error:
        results.append(error)


def _check_result(incarnation: Incarnation, result: Stop | BaseException | None) -> None:
    if isinstance(result, BaseException):
        raise result
    if result is not None and result.outcome in (Outcome.RESTART, Outcome.FENCED):
        raise _TryAgain(result.message)  # the proposer that fenced us can make the change
    if result is not None and result.outcome is Outcome.REFUSED:
        raise Refusal(result.message, hint=result.hint)
    change = incarnation.core.change
    if change is None or not _check_end(change_status(change)):
        raise WalProposerError("the change was interrupted", hint="Run the same command again.")
