"""The proposer process: one incarnation after another, until it is fenced, refused or stopped.

    wait for the primary -> incarnation -> primary lost -> wait for the primary -> ...

This file connects all parts. A new incarnation of the same process yields to a proposer with a
greater promise than its predecessor. A new process, which an operator starts, takes the term over.
"""

from __future__ import annotations

import gc
import os
import secrets
import socket
import sys
from collections.abc import Sequence
from contextlib import closing
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

import psycopg
import structlog

from quorum_wal.consensus.ids import NodeId
from quorum_wal.consensus.membership_page import membership_of_page
from quorum_wal.consensus.messages import VoteResponse
from quorum_wal.consensus.term_history import TermHistory, TermStart
from quorum_wal.pgwal.history import TimelineHistory
from quorum_wal.pgwal.lsn import Lsn, format_lsn
from quorum_wal.telemetry.status_server import Pages
from quorum_wal.telemetry.stop_signal import StopSignal
from quorum_wal.walproposer.change_requests import ChangeRequests
from quorum_wal.walproposer.checks.commit_watch import CommitWatch
from quorum_wal.walproposer.config import ProposerConfig
from quorum_wal.walproposer.errors import Fenced, PrimaryLost, Refusal, Unreachable
from quorum_wal.walproposer.failover.completion import FailoverCompletion
from quorum_wal.walproposer.locks.lease import Lease, open_lock
from quorum_wal.walproposer.primary.log_marker import mark_log
from quorum_wal.walproposer.primary.primary import Primary
from quorum_wal.walproposer.primary.slot_guard import slot_dropped_on_failure
from quorum_wal.walproposer.primary.synchronous_standby import configure_when_streaming
from quorum_wal.walproposer.qsync.prepared_setting import limbo_max
from quorum_wal.walproposer.safekeeper_client import SafekeeperAddress
from quorum_wal.walproposer.segment_repair import SegmentRepair
from quorum_wal.walproposer.status import (
    HEALTHY_WAITS,
    STARTING,
    STATE_NAMES,
    WAITING_FOR_LOCK,
    WAITING_FOR_PRIMARY,
    hung_reason,
    incarnation_status,
)
from quorum_wal.walproposer.stream.candidacy import Candidacy
from quorum_wal.walproposer.stream.election import behind_problem, fork_problem
from quorum_wal.walproposer.stream.events import Outcome, Stop
from quorum_wal.walproposer.stream.incarnation import Incarnation
from quorum_wal.walproposer.stream.upstream import Upstream
from quorum_wal.walproposer.timelines.primary_log import read_primary_log, warn_of_promotion
from quorum_wal.walproposer.timelines.survey import (
    LATE_SECONDS,
    Member,
    check_members,
    follow,
    statuses_of,
    survey,
    wanted_of,
)
from quorum_wal.walproposer.timelines.timeline_creation import (
    FoundTimeline,
    create_timeline,
    find_timeline,
    members_of,
    warn_of_strangers,
)

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from quorum_wal.walproposer.qsync.coordination import Coordination

log = structlog.get_logger()

PRIMARY_RETRY_SECONDS = 0.5
RESTART_SECONDS = 0.5
# A thread that wakes up with WAL waits at most this long for a computing thread.
SWITCH_INTERVAL_SECONDS = 0.0005


class WalProposer:
    """`run` returns when stopped, and raises WalProposerError if it cannot continue."""

    def __init__(self, config: ProposerConfig, stopping: StopSignal) -> None:
        self.config = config
        self._stopping = stopping
        stopping.on_set(self._stop_incarnation)
        self._incarnation: Incarnation | None = None
        #: The running incarnation, or else the one before it, so that metrics continue.
        self._measured: Incarnation | None = None
        self._commit_watch = CommitWatch(config.primary, stopping, self._is_streaming)
        self._found: FoundTimeline | None = None
        #: The addresses of the members, as the last incarnation knew them; before the first one,
        #: those given.
        self._addresses = config.safekeepers
        #: For the first incarnation, from `prepare`.
        self._upstream: Upstream | None = None
        self._waiting_for = STARTING
        self._primary_error = ""
        self._configured: Event | None = None
        self._lease: Lease | None = None
        self._completion: FailoverCompletion | None = None
        self._limbo_max = 0
        self._coordination: Coordination | None = None
        if config.qsync is not None:
            # Imported here, because a start without --qsync then imports a tenth less.
            from quorum_wal.walproposer.qsync.coordination import Coordination

            self._coordination = Coordination(config, stopping)

    def _stop_incarnation(self) -> None:
        if self._incarnation is not None:
            self._incarnation.ask_to_stop()

    def _is_streaming(self) -> bool:
        incarnation = self._incarnation
        return incarnation is not None and incarnation.primary_silent_seconds is not None

    def is_starting(self) -> bool:
        """Whether commits should begin but have not yet."""
        incarnation = self._incarnation
        if incarnation is None:
            return self._waiting_for not in HEALTHY_WAITS
        return not incarnation.has_caught_up

    # ---- status

    def pages(self) -> Pages:
        requests = ChangeRequests(lambda: self._incarnation)
        return Pages(self.status, self.health, self._registry, requests.routes)

    def _registry(self) -> CollectorRegistry:
        from quorum_wal.walproposer.metrics import ProposerCollector  # slow: not at the start

        collector = ProposerCollector(
            lambda: self.state, lambda: self._measured, self._coordination, self._commit_watch
        )
        return collector.registry

    @property
    def state(self) -> str:
        """One of STATES, as the status page has it."""
        incarnation = self._incarnation
        return self._waiting_for if incarnation is None else STATE_NAMES[incarnation.core.state]

    def status(self) -> dict[str, Any]:
        """The JSON of /status."""
        incarnation, completion = self._incarnation, self._completion
        if incarnation is not None:
            return {
                **incarnation_status(incarnation),
                "commit_problems": self._commit_watch.problems,
                "configured": self._is_configured(),
                "failover": completion.status if completion is not None else None,
                "lock": self._lock_status(),
                **self._qsync_status(),
            }
        return {
            "state": self._waiting_for,
            **_timeline_status(self._found),
            "lock": self._lock_status(),
            **self._qsync_status(),
            "primary": {
                "dsn": str(self.config.primary),
                "connected": False,
                "error": self._primary_error or None,
            },
            "quorum": {"ok": False, "connected": 0},
            "safekeepers": [{"address": str(a)} for a in self._addresses],
        }

    def health(self) -> str:
        incarnation = self._incarnation
        if incarnation is None:
            return "" if self._waiting_for in HEALTHY_WAITS else self._waiting_for
        if not incarnation.is_leading:
            return "no term won yet"
        if not incarnation.quorum_watch.ok:
            return "the quorum is lost, commits wait"
        if self._completion is not None and self._completion.error:
            return f"clients cannot write: {self._completion.error}"
        qsync_error = self._coordination.error if self._coordination is not None else ""
        return hung_reason(incarnation) or qsync_error

    @property
    def stalled_seconds(self) -> float:
        """The delay of the loop that commits go through; 0 while there is none."""
        incarnation = self._incarnation
        return incarnation.stalled_seconds if incarnation is not None else 0.0

    def waits_for(self, state: str) -> None:
        """The state in the status until there is an incarnation."""
        self._waiting_for = state

    def _is_configured(self) -> bool | None:
        """Whether --configure has taken effect, once; None without it."""
        if not self.config.configure:
            return None
        return self._configured is not None and self._configured.is_set()

    def _lock_status(self) -> dict[str, Any] | None:
        lease = self._lease
        if lease is None:
            return None
        return {
            "url": lease.lock.url,
            "held": lease.is_held,
            "holder": lease.lock.holder or None,
            "error": lease.error or None,
        }

    def _qsync_status(self) -> dict[str, Any]:
        coordination = self._coordination
        return {"qsync": coordination.status} if coordination is not None else {}

    # ---- run

    def wait_for_lock(self) -> bool:
        """Wait until we hold the configured lock; returns at once without one. Returns False if
        stopped meanwhile. Raises Refusal."""
        if self.config.lock is None:
            return True
        if self._lease is None:
            holder = self.config.http or f"{socket.gethostname()}:{os.getpid()}"
            lock = open_lock(self.config.lock, self.config.lock_seconds)
            self._lease = Lease(lock, holder, self.config.lock_seconds, self._stop_incarnation)
        if not self._lease.is_held:
            self._measured = None  # another proposer's metrics describe the timeline now
        self._waiting_for = WAITING_FOR_LOCK
        return self._lease.is_held or self._lease.wait(self._stopping)

    def close(self) -> None:
        """Release the lock."""
        if self._coordination is not None:
            self._coordination.close()
        self.close_upstream()
        if self._lease is not None:
            self._lease.close()

    def prepare(self) -> FoundTimeline:
        """Make all checks before anything changes.

        Raises WalProposerError.
        """
        address = self.config.primary
        with (
            closing(address.connect()) as questions,
            slot_dropped_on_failure(address, questions),
        ):
            found = self._prepare(questions)
        self._found, self._addresses = found, found.addresses
        return found

    def _prepare(self, questions: psycopg.Connection) -> FoundTimeline:
        """Leaves the connection for the first incarnation in `_upstream`."""
        address, named = self.config.primary, self.config.timeline
        members = survey(self.config.safekeepers, LATE_SECONDS)
        check_members(members)
        log_of_primary = read_primary_log(address, questions)
        system_id = log_of_primary.server.system_id
        members = follow(members, wanted_of(system_id, named), LATE_SECONDS)
        found = find_timeline(members, system_id, named)
        log_of_primary.check(found, members, named)
        if self.config.qsync is not None:
            self._limbo_max = limbo_max(self.config.qsync, address)
        self.close_upstream()  # of an earlier call
        upstream = Upstream(address, shared=questions)
        try:
            primary = upstream.primary
            if found is None:
                found = create_timeline(members, primary, named)
                log.info("timeline created", timeline=str(found.timeline))
                warn_of_promotion(primary.tli_history.tli)
            else:
                _check_fit(found, members_of(found, members), primary)
                warn_of_strangers(found, members)
            mark_log(questions, found.timeline)
        except BaseException:
            upstream.close()
            raise
        self._upstream = upstream
        return found

    def close_upstream(self) -> None:
        """Drop the answers of `prepare`, which may be out of date by the time of `run`. `run` then
        reads them again."""
        if self._upstream is not None:
            self._upstream.close()
            self._upstream = None

    def run(self) -> None:
        """Raises WalProposerError; returns when told to stop."""
        sys.setswitchinterval(SWITCH_INTERVAL_SECONDS)
        found = self._found or self.prepare()
        if self.config.configure:
            self._configured = configure_when_streaming(self.config.primary, self._stopping)
        self._commit_watch.start()
        if self._coordination is not None:
            self._coordination.start(self._limbo_max)
        repair = SegmentRepair(
            self.known_safekeepers, found.timeline, found.server.wal_seg_size, self._leader
        )
        Thread(target=repair.run, args=(self._stopping,), name="repair", daemon=True).start()
        predecessor: NodeId | None = None
        while not self._stopping.is_set:
            if self._lease is not None and not self._lease.is_held:
                predecessor = None  # the holder of the lock takes the term over, like a new process
                if not self.wait_for_lock():
                    return
            upstream, self._upstream = self._upstream or self._wait_for_primary(found), None
            if upstream is None:
                return
            candidacy = candidacy_of(self.config, found, self._addresses, predecessor)
            incarnation = Incarnation(self.config, candidacy, upstream)
            stop = self._run_incarnation(incarnation, upstream)
            predecessor = incarnation.core.node_id or predecessor
            self._handle_stop(stop)

    def known_safekeepers(self) -> Sequence[SafekeeperAddress]:
        """Where the members are, for any thread; those given until they have told more."""
        incarnation = self._incarnation
        return self._addresses if incarnation is None else incarnation.known_addresses

    def _leader(self) -> NodeId | None:
        incarnation = self._incarnation
        if incarnation is None or not incarnation.is_leading:
            return None
        return incarnation.core.node_id

    def _run_incarnation(self, incarnation: Incarnation, upstream: Upstream) -> Stop | None:
        self._incarnation = self._measured = incarnation
        completion = self._completion = FailoverCompletion.of(
            self.config.primary, upstream.primary, incarnation
        )
        completion.start()
        if self._coordination is not None:
            self._coordination.begin(incarnation)
        # The previous one may hold tens of MB of WAL, in reference cycles. Without this call it
        # would stay until enough objects have been made: the collector does not count bytes.
        gc.collect()
        reason = "the incarnation has ended"
        try:
            return incarnation.run()
        except PrimaryLost as error:
            core, reason = incarnation.core, str(error)
            end_lsn = core.leader.window.end_lsn if core.leader is not None else 0
            log.warning(
                "primary lost",
                reason=str(error),
                commit_lsn=format_lsn(core.commit_lsn),
                unconfirmed_bytes=max(0, end_lsn - core.commit_lsn) if core.commit_lsn else 0,
            )
            return None
        finally:
            completion.end()
            if self._coordination is not None:
                self._coordination.end(incarnation, reason)
            self._addresses = incarnation.known_addresses
            self._incarnation = None
            self._waiting_for = WAITING_FOR_PRIMARY
            upstream.close()

    def _handle_stop(self, stop: Stop | None) -> None:
        if stop is None:
            return
        if stop.outcome is Outcome.FENCED:
            if self._lease is None:
                raise Fenced(stop.message, hint=stop.hint)
            self._lease.close()  # the other proposer should have it, and we wait for our turn
        if stop.outcome is Outcome.REFUSED:
            raise Refusal(stop.message, hint=stop.hint)
        log.warning("new incarnation", reason=stop.message)
        self._stopping.wait(RESTART_SECONDS)

    def _wait_for_primary(self, found: FoundTimeline) -> Upstream | None:
        """Wait until the primary answers as a primary. Returns None if stopped meanwhile."""
        self._waiting_for = WAITING_FOR_PRIMARY
        last_reason = ""
        while not self._stopping.is_set:
            try:
                return Upstream(self.config.primary, found)
            except Unreachable as error:
                if str(error) != last_reason:
                    log.info("waiting for the primary", reason=str(error))
                last_reason = self._primary_error = str(error)
                self._stopping.wait(PRIMARY_RETRY_SECONDS)
        return None


def _timeline_status(found: FoundTimeline | None) -> dict[str, Any]:
    """The timeline of this process, once it is known."""
    if found is None:
        return {}
    timeline = found.timeline
    return {"tenant_id": timeline.tenant_id.hex(), "timeline_id": timeline.timeline_id.hex()}


def without_primary(config: ProposerConfig, found: FoundTimeline) -> Incarnation:
    """An incarnation that completes the tail of the log on a quorum, does what it was asked for,
    and stops."""
    return Incarnation(config, candidacy_of(config, found, found.addresses), None)


def candidacy_of(
    config: ProposerConfig,
    found: FoundTimeline,
    addresses: Sequence[SafekeeperAddress],
    predecessor: NodeId | None = None,
) -> Candidacy:
    """Addresses that the operator gave are never dropped, others may be."""
    known = [(address.host, address.port) for address in addresses]
    given = {(address.host, address.port) for address in config.safekeepers}
    return Candidacy(
        timeline=found.timeline,
        server=found.server,
        addresses=tuple(address for address in known if address in given),
        learnt=tuple(address for address in known if address not in given),
        proposer_uuid=secrets.token_bytes(16),
        predecessor=predecessor,
    )


def elect(config: ProposerConfig, found: FoundTimeline) -> int:
    """Hold an election without a primary: completes the tail on a quorum, returns the end of the
    log.

    Raises WalProposerError.
    """
    incarnation = without_primary(config, found)
    stop = incarnation.run()
    assert stop is not None
    if stop.outcome is Outcome.COMPLETED:
        return incarnation.core.commit_lsn
    raise Refusal(stop.message, hint=stop.hint)


def _check_fit(found: FoundTimeline, members: list[Member], primary: Primary) -> None:
    """The safekeepers' present state proves nothing, but a mismatch seen here avoids the cost of a
    term.

    Raises Refusal.
    """
    found.check_server(primary.server)
    votes = [_as_vote(status) for status in statuses_of(found.timeline, members)]
    best = max(votes, key=lambda vote: (vote.last_log_node_id, vote.flush_lsn))
    problem = fork_problem(primary, best) or behind_problem(primary.flush_lsn, best.flush_lsn)
    if problem is not None:
        raise Refusal(problem.message, hint=problem.hint)


def _as_vote(status: dict[str, Any]) -> VoteResponse:
    node_id = status["last_log_node_id"]
    last = NodeId(node_id["term"], bytes.fromhex(node_id["uuid"]))
    start_lsn = int(Lsn.parse(status["start_lsn"]))
    return VoteResponse(
        granted=False,
        promised=last,
        flush_lsn=int(Lsn.parse(status["flush_lsn"])),
        commit_lsn=int(Lsn.parse(status["commit_lsn"])),
        truncate_lsn=int(Lsn.parse(status["truncate_lsn"])),
        timeline_start_lsn=start_lsn,
        membership=membership_of_page(status["membership"]),
        term_history=TermHistory((TermStart(last, start_lsn),)),
        tli_history=TimelineHistory.parse(status["tli"], status["tli_history"]),
    )
