"""The connection to the primary: its WAL stream, and the questions before that.

A physical replication client that acts as the only synchronous standby. It reports write = flush =
apply = commit_lsn and nothing else: a commit returns when a quorum has flushed it. Source: Postgres
`replication/walsender.c`, the protocol's "Streaming Replication Protocol".
"""

from __future__ import annotations

import time
from collections.abc import Callable

import psycopg
from psycopg import pq

from quorum_wal.consensus.messages import HotStandbyFeedback
from quorum_wal.consensus.tli_history import last_switch_lsn
from quorum_wal.pgclient.errors import UNDEFINED_FILE
from quorum_wal.pgclient.questions import identify_system, read_timeline_history
from quorum_wal.pgwal.lsn import Lsn, format_lsn
from quorum_wal.pgwire import replication
from quorum_wal.pgwire.commands import StartReplication, format_start_replication
from quorum_wal.pgwire.replication import Keepalive, StandbyStatus, postgres_time_us
from quorum_wal.walproposer.connection import converting_errors, open_connection
from quorum_wal.walproposer.errors import PrimaryLost, Refusal, Unreachable, WalProposerError
from quorum_wal.walproposer.primary.log_marker import mark_log
from quorum_wal.walproposer.primary.primary import Primary
from quorum_wal.walproposer.primary.primary_address import PrimaryAddress
from quorum_wal.walproposer.primary.server_facts import read_server_facts, read_start_us
from quorum_wal.walproposer.primary.slot import PREDECESSOR_SECONDS, end_predecessor, ensure_slot
from quorum_wal.walproposer.stream.copy_connection import CopyConnection
from quorum_wal.walproposer.stream.plain_copy import begin_copy
from quorum_wal.walproposer.timelines.timeline_creation import FoundTimeline

OBJECT_IN_USE = "55006"
SLOT_WAIT_SECONDS = 15
#: The greatest interval at which a used slot is tried. The first attempts are more frequent,
#: because commits wait.
SLOT_RETRY_SECONDS_MAX = 0.1
SLOT_RETRY_SECONDS_MIN = 0.005


def is_encrypted(questions: psycopg.Connection, pgconn: pq.abc.PGconn) -> bool:
    """Whether the replication connection uses TLS or GSSAPI encryption. libpq does not report
    GSSAPI, so ask the server. Raises psycopg.Error."""
    if pgconn.ssl_in_use:
        return True
    row = questions.execute(
        "SELECT encrypted FROM pg_stat_gssapi WHERE pid = %s", (pgconn.backend_pid,)
    ).fetchone()
    return row is None or bool(row[0])


class Upstream:
    """A replication connection. `identify` and `start` block; then `copy` is for the hot loop.

    `log`: the timeline that this primary must belong to; the slot of a primary of another log is
    not touched. None if it is not known yet. `shared`: an open connection for queries, if there is
    one.
    """

    def __init__(
        self,
        address: PrimaryAddress,
        log: FoundTimeline | None = None,
        shared: psycopg.Connection | None = None,
    ) -> None:
        self.address = address
        with (
            address.connected(shared) as questions,
            converting_errors("could not inspect the primary"),
        ):
            self.server = read_server_facts(questions)
            self._start_us = read_start_us(questions)
            if log is not None:
                log.check_server(self.server)
                mark_log(questions, log.timeline)
            slot = ensure_slot(questions, address)
            self._connection = open_connection(
                address.dsn,
                f"the primary ({address})",
                replication="true",
                application_name=address.application_name,
            )
            self._is_encrypted = is_encrypted(questions, self._connection.pgconn)
        self._slot_lsn = slot.restart_lsn
        self.copy: CopyConnection | None = None
        self.primary = self._identify()
        self.next_lsn = 0
        self.reported_lsn = 0
        self.primary_end_lsn = self.primary.flush_lsn

    def close(self) -> None:
        self._connection.close()

    def _identify(self) -> Primary:
        with converting_errors("could not identify the primary"):
            system = identify_system(self._connection.pgconn)
            history = read_timeline_history(self._connection.pgconn, system.tli)
        if system.system_id != self.server.system_id:
            raise Refusal(
                f"the DSN leads to two systems: {self.server.system_id} and {system.system_id}"
            )
        return Primary(
            server=self.server,
            tli_history=history,
            flush_lsn=system.flush_lsn,
            slot_lsn=self._slot_lsn,
            start_us=self._start_us,
        )

    def start(self, begin_lsn: int, changed: Callable[[], None]) -> int:
        """Request the WAL from `begin_lsn` on, if there is any. Returns the end of the WAL.

        Blocks while a predecessor still has the slot. Raises WalProposerError.
        """
        flush_lsn = self._identify().flush_lsn
        if flush_lsn < begin_lsn:
            return flush_lsn
        tli = self._timeline_to_ask(begin_lsn)
        command = format_start_replication(
            StartReplication(Lsn(begin_lsn), slot=self.address.slot, timeline=tli)
        )
        begun = time.monotonic()
        has_ended_holder = False
        while True:
            try:
                with converting_errors("the primary did not stream"):
                    copy = begin_copy(self._connection, command, is_encrypted=self._is_encrypted)
                break
            except Refusal as error:
                if error.sqlstate != OBJECT_IN_USE:
                    raise
                waited_seconds = time.monotonic() - begun
                if waited_seconds > SLOT_WAIT_SECONDS:
                    raise Unreachable(str(error), hint=error.hint) from error
                if waited_seconds > PREDECESSOR_SECONDS and not has_ended_holder:
                    has_ended_holder = True
                    end_predecessor(self.address)
                # The release of a slot is not announced.
                pause = max(SLOT_RETRY_SECONDS_MIN, waited_seconds / 2)
                time.sleep(min(pause, SLOT_RETRY_SECONDS_MAX))
        if copy is None:
            raise Unreachable("the primary did not start to stream")
        copy.on_change(changed)
        self.next_lsn = begin_lsn
        self.copy = copy
        return flush_lsn

    def _timeline_to_ask(self, lsn: int) -> int:
        """The timeline to request. A segment with a switch in it is complete only on the newer
        timeline, so from its start on that one is requested. Older timelines are streamed to their
        end, where the stream ends too."""
        history, seg_size = self.primary.tli_history, self.server.wal_seg_size
        switch_lsn = last_switch_lsn(history)
        is_newest = lsn >= switch_lsn - switch_lsn % seg_size
        return history.tli if is_newest else history.tli_at(lsn)

    # ---- on the hot loop

    def receive(self) -> tuple[list[bytes], bool]:
        """The WAL from `next_lsn` on that has arrived, and whether a reply is requested now."""
        assert self.copy is not None
        chunks: list[bytes] = []
        reply_requested = False
        for message in self.copy.receive_replication():
            self.primary_end_lsn = max(self.primary_end_lsn, message.end_lsn)
            if isinstance(message, Keepalive):
                reply_requested = reply_requested or message.reply_requested
                continue
            if message.start_lsn != self.next_lsn:
                raise PrimaryLost(
                    f"expected WAL at {format_lsn(self.next_lsn)} from the primary, "
                    f"got {format_lsn(message.start_lsn)}"
                )
            chunks.append(bytes(message.data))
            self.next_lsn += len(message.data)
        return chunks, reply_requested

    def advance(self, next_lsn: int, primary_end_lsn: int, reported_lsn: int) -> None:
        """Take over the positions of the steady path."""
        self.next_lsn, self.reported_lsn = next_lsn, max(self.reported_lsn, reported_lsn)
        self.primary_end_lsn = max(self.primary_end_lsn, primary_end_lsn)

    def report(self, commit_lsn: int, *, reply_requested: bool = False) -> None:
        """Commits up to here return. Also the answer to a keepalive, with the last position. With
        `reply_requested` the primary sends a keepalive."""
        assert self.copy is not None
        assert commit_lsn >= self.reported_lsn
        self.reported_lsn = commit_lsn
        now_us = postgres_time_us(time.time_ns())
        status = StandbyStatus(commit_lsn, commit_lsn, commit_lsn, now_us, reply_requested)
        self.copy.send(status.encode())

    def report_feedback(self, feedback: HotStandbyFeedback) -> None:
        """The primary keeps what the queries on replicas need, until the next feedback."""
        assert self.copy is not None
        message = replication.HotStandbyFeedback(
            postgres_time_us(time.time_ns()),
            feedback.xmin,
            feedback.xmin_epoch,
            feedback.catalog_xmin,
            feedback.catalog_xmin_epoch,
        )
        self.copy.send(message.encode())


def end_of_stream(end: WalProposerError) -> WalProposerError:
    """A primary that disconnected is expected back. WAL that it has removed is lost."""
    if end.sqlstate == UNDEFINED_FILE:
        return Refusal(
            f"the primary lacks WAL that the quorum's log needs next: {end}",
            hint="Raise wal_keep_size on every server that may become the primary.",
        )
    return PrimaryLost(str(end), orderly=isinstance(end, PrimaryLost) and end.orderly)
