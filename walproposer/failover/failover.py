"""A failover: read the state, decide (`promotion.py`), do one step, and repeat.

    sk promote -> Failover.prepare -> Failover.run -> WalProposer.run, as for any other primary

`prepare` makes every check while the old primary still works. After the election only `sk attach`
can bring the old primary back.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import structlog

from quorum_wal.consensus.tli_history import first_difference
from quorum_wal.pgwal.history import TimelineHistory
from quorum_wal.pgwal.lsn import Lsn, format_lsn
from quorum_wal.walproposer.checks.finding import Level
from quorum_wal.walproposer.checks.preflight import check_primary
from quorum_wal.walproposer.config import ProposerConfig
from quorum_wal.walproposer.errors import Refusal, Unreachable
from quorum_wal.walproposer.failover.log_view import LogView, log_view
from quorum_wal.walproposer.failover.promotion import (
    FailoverState,
    Problem,
    Standby,
    Step,
    ahead_problem,
    fork_problem,
    is_at_or_past,
    next_step,
)
from quorum_wal.walproposer.failover.standby import StandbyServer, safekeepers_conninfo
from quorum_wal.walproposer.primary.log_marker import check_log
from quorum_wal.walproposer.primary.primary_settings import PrimarySettings, read_primary_settings
from quorum_wal.walproposer.primary.slot import PREDECESSOR_SECONDS
from quorum_wal.walproposer.qsync.prepared_setting import limbo_max
from quorum_wal.walproposer.safekeeper_client import SafekeeperAddress
from quorum_wal.walproposer.timelines.survey import LATE_SECONDS, statuses_of, survey
from quorum_wal.walproposer.timelines.timeline_creation import FoundTimeline, require_timeline

log = structlog.get_logger()

POLL_SECONDS = 0.03
# The standby follows the safekeepers but lacks WAL and receives none. It may be connected to a
# safekeeper that also lacks the end, since only a quorum must have it. The first retry comes soon,
# later ones at longer intervals.
STALL_SECONDS = 0.2
STALL_AGAIN_SECONDS = 5.0
PROMOTE_SECONDS = 60
# A configuration that was loaded this long ago is in effect.
SETTLED_SECONDS = 300.0
# If the checkpointer idles this long after a reload, it has applied it. If it does not idle for
# this long, it is in a restartpoint, and CHECKPOINT speeds it up.
SETTLE_SECONDS = 0.1
RESTARTPOINT_SECONDS = 1.0

#: Findings of the preflight that would prevent attaching. Other findings are only logged.
NEEDED_TO_ATTACH = (
    "version",
    "role",
    "wal_level",
    "max_wal_senders",
    "max_replication_slots",
    "slot",
)


class Failover:
    """`elect` holds an election and returns the end of the log. `began` is called at each step.
    `conninfo` has the libpq settings, other than addresses, with which the standby connects to a
    safekeeper. Every method raises WalProposerError."""

    def __init__(
        self,
        config: ProposerConfig,
        elect: Callable[[ProposerConfig, FoundTimeline], int],
        *,
        conninfo: str = "",
        timeout_seconds: float = 60.0,
        configures: bool = True,
        keeps_ahead: bool = False,
        began: Callable[[Step], None] = lambda step: None,
    ) -> None:
        """`configures`: commits of the new primary wait for the quorum. Otherwise
        synchronous_standby_names keeps the standby's value. `keeps_ahead`: promote a standby that
        has WAL beyond the end of the log, with that WAL. Otherwise it is refused."""
        self.config = config
        self._configures = configures
        self._keeps_ahead = keeps_ahead
        self.server = StandbyServer(config.primary)
        self._elect = elect
        self._conninfo = conninfo
        self._timeout_seconds = timeout_seconds
        self._began = began
        self._found: FoundTimeline | None = None
        self._log_end_lsn: int | None = None
        self._kept_lsn = 0
        self._progress_lsn = (0, 0)
        self._progress_at = 0.0
        self._stall_at = 0.0
        self._configured_at = 0.0
        self._is_settled = False
        self._is_closed = False

    # ---- checks, before anything changes

    def prepare(self, *, attaches: bool = True) -> tuple[FoundTimeline, LogView, FailoverState]:
        """The checks. Raises Refusal if this standby must not be promoted.

        A crash of `sk promote` can leave a primary that was promoted but not attached. With
        `attaches`, `server` may be any primary without a proposer: only attaching it remains.
        """
        standby = self.server.read()  # before the log: the log has all that the standby has now
        settings = read_primary_settings(self.config.primary)
        members, found = require_timeline(
            self.config.safekeepers, settings.system_id, self.config.timeline
        )
        _check_server(settings, found)
        check_log(settings.log_markers, found.timeline)
        view = log_view(statuses_of(found.timeline, members))
        if standby.in_recovery:
            _check_can_attach(settings, self.config)
            history, _ = self.server.read_history()
            _refuse(fork_problem(history, view.history, view.start_lsn, standby.end_lsn))
            self._check_ahead(standby, view.flush_lsn)
        else:
            self._check_promoted(self.server.read_history_of(settings), view, attaches=attaches)
        self._found = found
        self.config = replace(self.config, safekeepers=found.addresses)
        self._configured_at = time.monotonic()
        self._is_settled = standby.config_age_seconds > SETTLED_SECONDS
        return found, view, self._failover_state(standby)

    def _check_ahead(self, standby: Standby, log_end_lsn: int) -> None:
        problem = ahead_problem(standby, log_end_lsn)
        if problem is None or not self._keeps_ahead:
            _refuse(problem)
        elif self._kept_lsn != standby.end_lsn:
            self._kept_lsn = standby.end_lsn
            log.warning(f"{problem.text}: the standby keeps the WAL beyond that")

    def _check_promoted(self, history: TimelineHistory, log: LogView, *, attaches: bool) -> None:
        """The server is not a standby. Raises Refusal if the failover cannot continue from
        there."""
        fork_lsn = first_difference(history, log.history, log.start_lsn, log.flush_lsn)
        if fork_lsn is not None:
            raise Refusal(
                "the server is a deposed primary: it left the quorum's log at "
                f"{format_lsn(fork_lsn)}",
                hint="Stop it, then make it a standby with sk rejoin.",
            )
        proposer_pid = self._proposer_pid()
        if proposer_pid is not None:
            raise Refusal(
                "the server is a primary already, and its proposer is attached (pid "
                f"{proposer_pid}): there is nothing to promote",
                hint="See sk status. To replace the proposer, run sk attach.",
            )
        if not attaches and history.tli <= log.history.tli:
            raise Refusal(
                "the server is a primary already, and no proposer is attached to it: there is "
                "nothing to promote",
                hint="Run sk attach.",
            )

    def _proposer_pid(self) -> int | None:
        """The pid that uses our slot. The connection of a proposer that was just killed releases it
        within moments."""
        deadline = time.monotonic() + PREDECESSOR_SECONDS
        while (pid := self.server.proposer_pid()) is not None and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
        return pid

    def _failover_state(self, standby: Standby) -> FailoverState:
        now = time.monotonic()
        if standby.checkpointer_idle and now - self._configured_at > SETTLE_SECONDS:
            self._is_settled = True
        progress_lsn = (standby.received_lsn, standby.replayed_lsn)
        if progress_lsn > self._progress_lsn:
            self._progress_lsn, self._progress_at = progress_lsn, now
            self._stall_at = now + STALL_SECONDS
        end_lsn = self._log_end_lsn
        ours = (self.config.primary.application_name,)
        return FailoverState(
            standby=standby,
            safekeepers=tuple(map(str, self.config.safekeepers)),
            standby_names=ours if self._configures else standby.standby_names,
            log_end_lsn=end_lsn,
            is_settled=self._is_settled or not self._configures,
            is_stalled=end_lsn is not None and standby.end_lsn < end_lsn and now > self._stall_at,
            is_closed=self._is_closed,
        )

    # ---- the steps

    def run(self, until: Step = Step.ATTACH) -> None:
        """Run the steps until the proposer can be attached, or up to `until`, which the caller
        does, like those after it."""
        last: Step | None = None
        while True:
            state = self._failover_state(self.server.read())
            if self._log_end_lsn is not None:
                self._check_ahead(state.standby, self._log_end_lsn)
            step = next_step(state)
            if step is not last:
                log.info(step.value, step=step.name.lower())
                self._began(step)
            last = step
            if is_at_or_past(step, until):
                return
            self._do(step, state)

    def _do(self, step: Step, state: FailoverState) -> None:
        match step:
            case Step.ATTACH | Step.RESOLVE | Step.OPEN:
                raise AssertionError("the proposer does these steps")
            case Step.CONFIGURE:
                if not state.standby.in_recovery:
                    log.warning("the server was promoted before its commits waited for the quorum")
                self.server.configure()
                self._wait_configured()
            case Step.ELECT:
                self._hold_election()
            case Step.FOLLOW:
                self._follow(state.standby.sources)
            case Step.REPLAY:
                self._check_progress(state)
                time.sleep(POLL_SECONDS)
            case Step.SETTLE:
                self._wait_for_checkpointer()
            case Step.RESERVE:
                assert self._found is not None
                self.server.reserve(self._found.timeline)
            case Step.CLOSE:
                self.server.close()
                self._is_closed = True
            case Step.PROMOTE:
                if not self.server.promote(PROMOTE_SECONDS):
                    raise Unreachable(
                        f"the standby was not promoted within {PROMOTE_SECONDS} s",
                        hint="See its log, then run sk promote again.",
                    )

    def _wait_configured(self) -> None:
        """Wait until new sessions have the setting: the postmaster has then also signalled the
        checkpointer."""
        deadline = time.monotonic() + self._timeout_seconds
        ours = (self.config.primary.application_name,)
        while self.server.read().standby_names != ours:
            if time.monotonic() > deadline:
                raise Refusal(
                    "synchronous_standby_names does not take effect",
                    hint="Remove the option or configuration file entry that overrides it.",
                )
            time.sleep(POLL_SECONDS)
        self._configured_at = time.monotonic()
        self._is_settled = False

    def _wait_for_checkpointer(self) -> None:
        if time.monotonic() - self._configured_at > RESTARTPOINT_SECONDS:
            log.info("waiting for the end of a restartpoint")
            self.server.checkpoint()
            self._is_settled = True
        time.sleep(POLL_SECONDS)

    def _hold_election(self) -> None:
        assert self._found is not None
        self._log_end_lsn = self._elect(self.config, self._found)
        log.info("the log ends", lsn=format_lsn(self._log_end_lsn))
        self._progress_at = time.monotonic()
        self._stall_at = self._progress_at + STALL_SECONDS
        self.server.wake()

    def _follow(self, sources: tuple[str, ...]) -> None:
        """Point the standby at the safekeepers, first those that have the end of the log. A WAL
        receiver restarts only when the setting changes. So after a stall with the same list,
        safekeepers that lack the end are left out."""
        assert self._found is not None
        holders = self._holders()
        named = [*holders, *(a for a in self.config.safekeepers if a not in holders)]
        if tuple(map(str, named)) == sources:
            named = holders or named
        self.server.follow(safekeepers_conninfo(named, self._found.timeline, self._conninfo))
        log.info("the standby follows", safekeepers=",".join(map(str, named)))
        self._stall_at = time.monotonic() + STALL_AGAIN_SECONDS

    def _holders(self) -> list[SafekeeperAddress]:
        assert self._found is not None
        holders = []
        for member in survey(self.config.safekeepers, LATE_SECONDS):
            status = member.timelines.get(self._found.timeline)
            if status is not None and int(Lsn.parse(status["commit_lsn"])) >= (
                self._log_end_lsn or 0
            ):
                holders.append(member.client.address)
        return holders

    def _check_progress(self, state: FailoverState) -> None:
        """Raises Unreachable if the standby has made no progress for too long."""
        standby = state.standby
        waited_seconds = time.monotonic() - self._progress_at
        if waited_seconds <= self._timeout_seconds:
            return
        end = format_lsn(state.log_end_lsn or 0)
        raise Unreachable(
            f"the standby has replayed {format_lsn(standby.replayed_lsn)} of {end}, and nothing "
            f"more for {self._timeout_seconds:g} s",
            hint="Its replay is paused: run SELECT pg_wal_replay_resume(); there."
            if standby.is_paused
            else "See its log: can it connect to the safekeepers, do they still have the WAL it "
            "needs, does a query block replay? Then run sk promote again, for this or another one.",
        )


def _refuse(problem: Problem | None) -> None:
    if problem is not None:
        raise Refusal(problem.text, hint=problem.hint)


def _check_server(settings: PrimarySettings, found: FoundTimeline) -> None:
    theirs, version = found.server, settings.version
    if (settings.system_id, settings.major) != (theirs.system_id, theirs.pg_major):
        raise Refusal(
            f"the standby is Postgres {version // 10000} of system {settings.system_id}, the "
            f"timeline belongs to Postgres {theirs.pg_major} of system {theirs.system_id}",
            hint="Give a standby of the primary that this timeline was created for.",
        )


def _check_can_attach(settings: PrimarySettings, config: ProposerConfig) -> None:
    """Find problems that would prevent attaching before the old primary is fenced."""
    if not settings.is_superuser:
        raise Refusal(
            f'role "{settings.role}" is not a superuser on the standby',
            hint="ALTER SYSTEM and pg_promote() need one.",
        )
    if config.qsync is not None:
        limbo_max(config.qsync, config.primary)
    for finding in check_primary(settings, config.primary):
        if finding.check == "primary" or finding.level is not Level.FAIL:
            continue
        if finding.check in NEEDED_TO_ATTACH:
            raise Refusal(f"{finding.check}: {finding.text}", hint=finding.remedy)
        log.warning(finding.text, check=finding.check, remedy=finding.remedy)
