"""A replica: a stock client that streams the committed log, on one Postgres timeline.

Laws. Nothing beyond `committed_lsn` is sent or named: a client may treat every position that it
receives as durable. The end of a timeline is reported only after the log is committed beyond it:
until then another primary may continue the older timeline. A pageserver is a replica that sends its
suffix; it is disconnected when a newer one has connected. Its `apply` position: trim_rule.py.

Source: Postgres `walsender.c`, `StartReplication`, `ProcessRepliesIfAny`, `WalSndCheckTimeOut`.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import structlog

from quorum_wal.consensus.messages import NO_FEEDBACK, HotStandbyFeedback
from quorum_wal.pgwal.history import TimelineHistory
from quorum_wal.pgwal.lsn import format_lsn
from quorum_wal.pgwire import replication
from quorum_wal.pgwire.copy_stream import CopyStream
from quorum_wal.pgwire.errors import CopyEnd, CopyEnded
from quorum_wal.pgwire.replication import StandbyStatus, parse_standby_message
from quorum_wal.safekeeper.errors import SafekeeperError
from quorum_wal.safekeeper.send_wal import WalSender, check_active
from quorum_wal.safekeeper.slots import Slot, check_not_lost
from quorum_wal.safekeeper.timeline import Timeline
from quorum_wal.safekeeper.trim_rule import format_suffix

log = structlog.get_logger()

WAL_SENDER_TIMEOUT_SECONDS = 60.0
GATHER_SECONDS = 0.005


@dataclass(frozen=True, slots=True)
class Client:
    """The client of a stream. `timeout_seconds` is how long it may be silent; 0 means for ever."""

    number: int
    address: str
    application_name: str
    timeout_seconds: float = WAL_SENDER_TIMEOUT_SECONDS


def committed_lsn(timeline: Timeline) -> int:
    """The end of the WAL for replicas. Raises SafekeeperError if none may be served (57P03)."""
    check_active(timeline)
    positions = timeline.positions
    return min(positions.commit_lsn, positions.flush_lsn)


def committed_tli(history: TimelineHistory, committed_lsn: int) -> int:
    """The timeline of the last committed byte. Nothing is certain on a newer one yet."""
    return history.tli_at(max(committed_lsn - 1, 0))


def next_tli(history: TimelineHistory, tli: int) -> int:
    """The timeline that follows `tli` in the history."""
    tlis = [*(entry.tli for entry in history.entries), history.tli]
    return tlis[tlis.index(tli) + 1]


class ReplicaSender(WalSender):
    """One stream to a replica. Its positions and feedback are the last ones that the client sent.
    `suffix` is a pageserver's."""

    def __init__(
        self,
        timeline: Timeline,
        start_lsn: int,
        tli: int,
        client: Client,
        slot: Slot | None,
        suffix: int | None = None,
    ) -> None:
        super().__init__(timeline, start_lsn)
        self.suffix = suffix
        self.tli = tli
        self.client = client
        self.slot = slot
        self.status = StandbyStatus(0, 0, 0, 0)
        self.feedback = NO_FEEDBACK
        self._connected_at = datetime.now(UTC).isoformat()
        self._heard_at = time.monotonic()
        self._reply_requested = False
        self._gathered_lsn = start_lsn
        self._gather_until = 0.0

    def describe(self) -> dict[str, Any]:
        """A row of pg_stat_replication."""
        status, limit_lsn = self.status, self.timeline.positions.commit_lsn
        return {
            "application_name": self.client.application_name,
            "address": self.client.address,
            "connected_since": self._connected_at,
            "state": "streaming" if self.sent_lsn >= limit_lsn else "catchup",
            "slot": self.slot.name if self.slot is not None else None,
            "pageserver": format_suffix(self.suffix) if self.suffix is not None else None,
            "tli": self.tli,
            "sent_lsn": format_lsn(self.sent_lsn),
            "write_lsn": _reported(status.write_lsn),
            "flush_lsn": _reported(status.flush_lsn),
            "replay_lsn": _reported(status.apply_lsn),
            "xmin": self.feedback.xmin or None,
            "catalog_xmin": self.feedback.catalog_xmin or None,
        }

    # ---- limits

    def limit_lsn(self) -> int:
        if self.slot is not None:
            check_not_lost(self.slot)
        if self.suffix is not None:
            self.timeline.slots.check_newest(self.suffix)
        limit_lsn = committed_lsn(self.timeline)
        switch_lsn = self._switch_lsn()
        return limit_lsn if switch_lsn is None else min(limit_lsn, switch_lsn)

    def _switch_lsn(self) -> int | None:
        """The end of the timeline in the history, committed or not; None for the newest one."""
        return self.timeline.control.tli_history.switch_lsn_of(self.tli)

    def next_timeline(self) -> tuple[int, int] | None:
        """After the timeline's end: the next timeline and its start. Raises WalError."""
        switch_lsn = self._switch_lsn()
        if switch_lsn is None or not switch_lsn < committed_lsn(self.timeline):
            return None
        return next_tli(self.timeline.control.tli_history, self.tli), switch_lsn

    def is_over(self) -> bool:
        following = self.next_timeline()
        if following is not None and self.sent_lsn >= following[1]:
            return True
        return self.timeline.replicas.stopping and self.sent_lsn >= self.limit_lsn()

    def tli_to_name(self) -> int:
        return self.tli

    def wait(self, stream: CopyStream) -> None:
        """Gathers WAL that follows closely: no commit waits for a replica, but each wake-up of one
        delays the threads that commit. WAL that follows a pause is sent at once."""
        now = time.monotonic()
        if self.sent_lsn != self._gathered_lsn:
            self._gathered_lsn = self.sent_lsn
            self._gather_until = now + GATHER_SECONDS
        if now < self._gather_until:
            time.sleep(self._gather_until - now)
        super().wait(stream)

    # ---- messages of the client

    def take_answers(self, stream: CopyStream) -> None:
        heard, reply_requested = False, False
        while payloads := stream.drain(timeout=0):
            heard = True
            for payload in payloads:
                reply_requested = self._take(payload) or reply_requested
        if reply_requested:
            self.send_keepalive(stream)
        self._check_silence(stream, heard=heard)

    def _take(self, payload: memoryview) -> bool:
        """Takes one message; returns whether it requests a reply."""
        message = parse_standby_message(payload)
        if isinstance(message, StandbyStatus):
            self.status = message
            if self.slot is not None:
                # Never beyond the WAL sent, whatever the client reports.
                flush_lsn = min(message.flush_lsn, self.sent_lsn)
                self.timeline.slots.advance(self.slot, flush_lsn)
            if self.suffix is not None:
                self.timeline.slots.report(self.suffix, min(message.apply_lsn, self.sent_lsn))
            return message.reply_requested
        self._take_feedback(message)
        return False

    def _take_feedback(self, message: replication.HotStandbyFeedback) -> None:
        self.feedback = HotStandbyFeedback(
            message.time_us,
            message.xmin,
            message.xmin_epoch,
            message.catalog_xmin,
            message.catalog_xmin_epoch,
        )
        self.timeline.replicas.combine_feedback()

    def _check_silence(self, stream: CopyStream, *, heard: bool) -> None:
        """Requests a reply after half of the timeout, ends the stream after all of it."""
        now, timeout = time.monotonic(), self.client.timeout_seconds
        if heard:
            self._heard_at, self._reply_requested = now, False
        elif not timeout:
            return
        elif now - self._heard_at >= timeout:
            raise CopyEnded(CopyEnd.DISCONNECT, "replication timeout")
        elif now - self._heard_at >= timeout / 2 and not self._reply_requested:
            self._reply_requested = True
            self.send_keepalive(stream, reply_requested=True)


def check_timeline(history: TimelineHistory, tli: int, start_lsn: int, committed: int) -> None:
    """Checks that `tli` may be streamed from `start_lsn`, as loosely as Postgres: a client may
    request the segment of a switch on the newer timeline from its first byte.

    Raises SafekeeperError.
    """
    newest = committed_tli(history, committed)
    entry = next((e for e in history.entries if e.tli == tli), None)
    if tli != newest and (entry is None or tli > newest):
        raise SafekeeperError(f"requested timeline {tli} is not in this server's history")
    if tli != newest and entry is not None and start_lsn > entry.switch_lsn:
        raise SafekeeperError(
            f"requested starting point {format_lsn(start_lsn)} on timeline {tli} is not in this "
            "server's history",
            hint=f"This server's history forked from timeline {tli} at "
            f"{format_lsn(entry.switch_lsn)}.",
        )


def first_lsn_of(history: TimelineHistory, tli: int, wal_seg_size: int) -> int:
    """The first byte that Postgres stores under the name of timeline `tli`."""
    switches = [int(e.switch_lsn) for e in history.entries if e.tli < tli]
    switch_lsn = switches[-1] if switches else 0
    return switch_lsn - switch_lsn % wal_seg_size


def _reported(lsn: int) -> str | None:
    return format_lsn(lsn) if lsn else None


def stop_replicas(timeline: Timeline) -> None:
    """Every stream to a replica ends after it has sent the committed WAL."""
    timeline.replicas.stopping = True
    timeline.watchers.notify()
