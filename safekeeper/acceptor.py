"""The acceptor of one timeline on one safekeeper: the safekeeper's rules of `docs/protocol.md`.

Pure: `step(event) -> list[Action]` is the only mutator. The caller executes the list in order,
under one lock, and throws this object away when an action fails; so what others may see (published
after the execution) is never ahead of the disk.

Invariants, at rest:
    flush_lsn <= record_end_lsn <= written_lsn, durable_lsn <= written_lsn, flush_lsn <= durable_lsn
    control.promised, commit_lsn and truncate_lsn never go back
    at most one connection streams, and it streams for the promised NodeId
"""

from __future__ import annotations

from dataclasses import replace
from typing import assert_never

from consensus.codec import append_head, encode_append_response
from consensus.errors import HistoryError
from consensus.ids import NodeId
from consensus.membership import Membership
from consensus.messages import (
    NO_FEEDBACK,
    PROTOCOL_VERSION,
    Append,
    AppendResponse,
    Elected,
    ProposerGreeting,
    SafekeeperGreeting,
    VoteRequest,
    VoteResponse,
)
from consensus.term_history import highest_common_point
from consensus.tli_history import first_difference
from pgwal.history import TimelineHistory
from pgwal.lsn import format_lsn
from safekeeper.control_state import ControlState
from safekeeper.events import (
    Action,
    BatchEnded,
    CloseConnection,
    Disconnected,
    Event,
    FeedbackChanged,
    FlushWal,
    HolesChanged,
    PersistControl,
    Received,
    Refuse,
    Reply,
    TruncateWal,
    WriteWal,
)

PROTOCOL_VIOLATION = "08P01"
WRONG_STATE = "55000"
DATA_CORRUPTED = "XX001"
MISMATCH = "42P17"


class Acceptor:
    """`flush_lsn` is the end of the last whole record on disk, found by decoding after a start.

    An end below what was flushed before is damage, not a torn tail. Then `control.lost_lsn` says
    so, what lies behind the end is left on disk, and this member follows without a vote until a
    leader has brought back what it lost.
    """

    def __init__(self, safekeeper_id: int, control: ControlState, flush_lsn: int) -> None:
        assert flush_lsn >= control.horizon_lsn or control.lost_lsn >= control.horizon_lsn
        self.safekeeper_id = safekeeper_id
        self.control = control
        #: End of the bytes handed to the OS; behind a damaged end, of those that were flushed.
        self.written_lsn = max(flush_lsn, control.horizon_lsn)
        #: End of the bytes that are fsynced; may be inside a record.
        self.durable_lsn = self.written_lsn
        #: What lies behind the damaged end is still on disk: evidence, and not to be forgotten.
        self._is_end_damaged = flush_lsn < control.horizon_lsn
        #: Greatest record boundary <= written_lsn that a proposer named.
        self.record_end_lsn = flush_lsn
        #: End of the last complete record that is fsynced.
        self.flush_lsn = flush_lsn
        self.commit_lsn = min(control.commit_lsn, flush_lsn)
        self.truncate_lsn = control.truncate_lsn
        #: The leader's commit_lsn as last sent; ours follows as the flush allows.
        self.sent_commit_lsn = 0
        #: The connection that has processed Elected for the promised NodeId.
        self.streaming: int | None = None
        #: It has brought an Append, and so the leader's commit_lsn.
        self._has_append = False
        #: Of the replicas here, for the primary.
        self.feedback = NO_FEEDBACK
        #: Committed segments are damaged: what was acknowledged above them counts, a vote does not.
        self.has_holes = False

    # ---- the only mutator

    def step(self, event: Event) -> list[Action]:
        # The two of every commit come first, and by their type: a class pattern costs five times
        # as much.
        if type(event) is Received:
            if type(event.message) is Append:
                return self._append(event.connection, event.message)
            return self._received(event.connection, event.message)
        if type(event) is BatchEnded:
            return self._batch_ended(event.connection)
        match event:
            case Disconnected(connection):
                if self.streaming == connection:
                    self.streaming = None
                return self._flush()
            case FeedbackChanged(feedback):
                self.feedback = feedback
                return []
            case HolesChanged(has_holes):
                self.has_holes = has_holes
                return []
            case _:
                assert_never(event)

    def _received(
        self, connection: int, message: ProposerGreeting | VoteRequest | Elected
    ) -> list[Action]:
        match message:
            case ProposerGreeting():
                return self._greeting(connection, message)
            case VoteRequest():
                return self._vote(connection, message)
            case Elected():
                return self._elected(connection, message)
            case _:
                assert_never(message)

    # ---- messages

    def _greeting(self, connection: int, greeting: ProposerGreeting) -> list[Action]:
        problem = self._greeting_problem(greeting)
        if problem:
            return [Refuse(connection, MISMATCH, *problem)]
        control = self.control
        return [
            Reply(
                connection,
                SafekeeperGreeting(self.safekeeper_id, control.promised, control.membership),
            )
        ]

    def _greeting_problem(self, greeting: ProposerGreeting) -> tuple[str, str] | None:
        control = self.control
        ours, theirs = control.server, greeting.server
        if greeting.protocol_version != PROTOCOL_VERSION:
            return (
                f"proposer speaks protocol version {greeting.protocol_version}, "
                f"this safekeeper {PROTOCOL_VERSION}",
                "Run the same release on both sides.",
            )
        if greeting.timeline != control.timeline:
            return f"greeting for timeline {greeting.timeline} on {control.timeline}", ""
        if not control.active:
            return _inactive_problem(control)
        if theirs.system_id != ours.system_id:
            return (
                f"primary has system identifier {theirs.system_id}, "
                f"the timeline belongs to {ours.system_id}",
                "Attach the primary this timeline was created for, or create another timeline.",
            )
        if theirs.pg_major != ours.pg_major or theirs.wal_seg_size != ours.wal_seg_size:
            return (
                f"primary is Postgres {theirs.pg_major} with {theirs.wal_seg_size} byte segments, "
                f"the timeline was created for {ours.pg_major} with {ours.wal_seg_size}",
                "A major upgrade needs a new timeline.",
            )
        return _membership_problem(greeting.membership, control.membership)

    def _vote(self, connection: int, request: VoteRequest) -> list[Action]:
        """Rule 2. Flush, then persist the promise and how far was flushed, then answer: a vote
        outlives a power loss, and rot is seen. A member that lost a part of its log promises as any
        other, but gives no vote (rule 9)."""
        if not self.control.active:
            return [self._inactive(connection)]
        if request.generation != self.control.membership.generation:
            return [self._wrong_generation(connection, request.generation)]
        actions: list[Action] = []
        promises = request.node_id >= self.control.promised
        if promises:
            # The positions in the answer must stay true, so whoever streamed until now is revoked.
            # With an equal NodeId that is the same proposer's older connection.
            if self.streaming not in (None, connection):
                assert self.streaming is not None
                actions.append(CloseConnection(self.streaming, f"vote given to {request.node_id}"))
            self.streaming = None
            actions += self._flush()
            actions += self._promise(request.node_id)
        granted = promises and not self.control.lost_lsn and not self.has_holes
        actions.append(Reply(connection, self._vote_response(granted)))
        return actions

    def _vote_response(self, granted: bool) -> VoteResponse:
        control = self.control
        return VoteResponse(
            generation=control.membership.generation,
            granted=granted,
            promised=control.promised,
            flush_lsn=self.flush_lsn,
            commit_lsn=self.commit_lsn,
            truncate_lsn=self.truncate_lsn,
            timeline_start_lsn=control.timeline_start_lsn,
            term_history=control.term_history.clipped(self.flush_lsn),
            tli_history=control.tli_history,
        )

    def _elected(self, connection: int, elected: Elected) -> list[Action]:
        """Rule 3. Promise and lower the saved flush_lsn, truncate, adopt the whole history: in this
        order on disk."""
        if not self.control.active:
            return [self._inactive(connection)]
        if elected.generation != self.control.membership.generation:
            return [self._wrong_generation(connection, elected.generation)]
        if elected.node_id < self.control.promised:
            return []  # the answer to its first Append will carry the promise
        start_lsn = elected.start_streaming_at
        problem = self._elected_problem(elected)
        if problem:
            return [Refuse(connection, DATA_CORRUPTED, problem)]
        actions: list[Action] = []
        if self.streaming not in (None, connection):
            assert self.streaming is not None
            actions.append(CloseConnection(self.streaming, "replaced by a newer connection"))
        assert self.commit_lsn <= start_lsn <= self.written_lsn
        is_lowered = start_lsn < self.flush_lsn or self._is_end_damaged
        self.flush_lsn, self._is_end_damaged = start_lsn, False
        if is_lowered or elected.node_id > self.control.promised:
            actions += self._promise(elected.node_id)
        if start_lsn != self.written_lsn:
            actions.append(TruncateWal(start_lsn))
        self.written_lsn = self.durable_lsn = self.record_end_lsn = start_lsn
        self.streaming = connection
        self.sent_commit_lsn, self._has_append = 0, False
        adopted = replace(
            self.control, term_history=elected.term_history, tli_history=elected.tli_history
        )
        if adopted != self.control:
            self.control = adopted
            actions.append(PersistControl(adopted))
        return actions

    def _elected_problem(self, elected: Elected) -> str:
        """Why this Elected cannot be obeyed, or "". It may follow unflushed WAL: none is lost,
        since a proposer that was elected by our vote got the flushed position."""
        control, start_lsn = self.control, elected.start_streaming_at
        if elected.timeline_start_lsn != control.timeline_start_lsn:
            return (
                f"timeline starts at {format_lsn(control.timeline_start_lsn)}, proposer says "
                f"{format_lsn(elected.timeline_start_lsn)}"
            )
        ballots = [entry.node_id for entry in elected.term_history.entries]
        if ballots[-1:] != [elected.node_id]:
            return (
                f"term history {elected.term_history} of proposer {elected.node_id} does not end "
                "with it"
            )
        if problem := self._other_history_problem(elected):
            return problem
        history = control.term_history.clipped(self.flush_lsn)
        try:
            common_lsn = highest_common_point(elected.term_history, history, self.flush_lsn)
        except HistoryError as error:
            return str(error)
        if start_lsn != common_lsn:
            return (
                f"proposer {elected.node_id} wants to stream from {format_lsn(start_lsn)}, "
                f"the logs part at {format_lsn(common_lsn)}"
            )
        if start_lsn < self.commit_lsn:
            return (
                f"proposer {elected.node_id} would truncate to {format_lsn(start_lsn)}, "
                f"below the committed {format_lsn(self.commit_lsn)}"
            )
        difference = first_difference(
            control.tli_history, elected.tli_history, control.timeline_start_lsn, start_lsn
        )
        if difference is not None:
            return (
                f"Postgres timelines differ at {format_lsn(difference)}: "
                f"{control.tli_history.tli_at(difference)} here, "
                f"{elected.tli_history.tli_at(difference)} at the proposer"
            )
        return ""

    def _other_history_problem(self, elected: Elected) -> str:
        """A ballot has one history, also of what lies above the end of the log here."""
        ours = (self.control.term_history, self.control.tli_history)
        theirs = (elected.term_history, elected.tli_history)
        if ours[0].entries[-1].node_id != elected.node_id or ours == theirs:
            return ""
        return (
            f"proposer {elected.node_id} was elected with term history {ours[0]} and Postgres "
            f"timelines {_brief(ours[1])}, now it says {theirs[0]} and {_brief(theirs[1])}"
        )

    def _append(self, connection: int, append: Append) -> list[Action]:
        """Rule 4. The hot path: a few comparisons, one WriteWal; BatchEnded brings the answer."""
        control = self.control
        if connection != self.streaming or append.node_id != control.promised:
            if append.node_id < control.promised:
                return [Reply(connection, self._append_response())]
            return [
                Refuse(
                    connection,
                    PROTOCOL_VIOLATION,
                    f"append of {append.node_id} without Elected on this connection",
                )
            ]
        if append.generation != control.membership.generation:
            return [self._wrong_generation(connection, append.generation)]
        if append.begin_lsn != self.written_lsn:
            return [
                Refuse(
                    connection,
                    PROTOCOL_VIOLATION,
                    f"append begins at {format_lsn(append.begin_lsn)}, "
                    f"expected {format_lsn(self.written_lsn)}",
                )
            ]
        if append.record_end_lsn > append.end_lsn:
            return [
                Refuse(
                    connection,
                    PROTOCOL_VIOLATION,
                    f"append ends at {format_lsn(append.end_lsn)} before its record end "
                    f"{format_lsn(append.record_end_lsn)}",
                )
            ]
        self._take_append(
            append.end_lsn, append.record_end_lsn, append.commit_lsn, append.truncate_lsn
        )
        return [WriteWal(append.begin_lsn, append.wal)] if append.wal else []

    def _batch_ended(self, connection: int) -> list[Action]:
        if connection != self.streaming:
            return []
        actions = self._flush()
        if self.control.lost_lsn:
            actions += self._maybe_whole()
        actions.append(Reply(connection, self._append_response()))
        return actions

    # ---- the steady state: Appends of the leader, one after the other

    def steady_state(self) -> tuple[bytes, bytes] | None:
        """How an Append begins that needs nothing but to be written, flushed and answered, and the
        answer to one that says nothing new, encoded; None while it may need more, or be refused."""
        is_flushed = self.durable_lsn == self.written_lsn and self.flush_lsn == self.record_end_lsn
        if self.streaming is None or self.control.lost_lsn or not is_flushed:
            return None
        head = append_head(self.control.membership.generation, self.control.promised)
        return head, encode_append_response(self._append_response())

    def take_steady(
        self, end_lsn: int, record_end_lsn: int, commit_lsn: int, truncate_lsn: int
    ) -> None:
        """Rule 4 for all that was taken in a steady state: Appends from `written_lsn` to `end_lsn`,
        by the greatest positions that they named, are written and flushed."""
        assert end_lsn >= self.written_lsn
        self._take_append(end_lsn, record_end_lsn, commit_lsn, truncate_lsn)
        self._flush()

    # ---- parts

    def _take_append(
        self, end_lsn: int, record_end_lsn: int, commit_lsn: int, truncate_lsn: int
    ) -> None:
        """What the leader sent from `written_lsn` to `end_lsn`, and what it said with it."""
        self.written_lsn = end_lsn
        self.record_end_lsn = max(self.record_end_lsn, record_end_lsn)
        self.truncate_lsn = max(self.truncate_lsn, truncate_lsn)
        self._has_append = True
        if commit_lsn > self.sent_commit_lsn:
            self.sent_commit_lsn = commit_lsn
            self._advance_commit()

    def _flush(self) -> list[Action]:
        """Everything written becomes durable; the record boundary below it becomes flush_lsn."""
        dirty = self.durable_lsn != self.written_lsn
        self.durable_lsn = self.written_lsn
        self.flush_lsn = self.record_end_lsn
        self._advance_commit()
        return [FlushWal()] if dirty else []

    def _advance_commit(self) -> None:
        """Rule 5: commit_lsn := max(own, min(sent, flush_lsn))."""
        self.commit_lsn = max(self.commit_lsn, min(self.sent_commit_lsn, self.flush_lsn))

    def _promise(self, node_id: NodeId) -> list[Action]:
        """Raise the promise durably, and say how far the log is flushed, or will be when a
        truncation has cut it; nothing to do when both were said already."""
        assert node_id >= self.control.promised
        promised = replace(self.control, promised=node_id)
        if not self._is_end_damaged:
            promised = replace(promised, flush_lsn=self.flush_lsn)
        if promised == self.control:
            return []
        self.control = promised
        return [PersistControl(promised)]

    def _maybe_whole(self) -> list[Action]:
        """Rule 9: the leader's log is here up to the start of its term, which has all that older
        ballots committed, and up to the leader's own commit, which may have counted on what was
        lost, but no longer does."""
        term_start_lsn = self.control.term_history.entries[-1].start_lsn
        if not self._has_append or self.flush_lsn < max(term_start_lsn, self.sent_commit_lsn):
            return []
        self.control = replace(self.control, lost_lsn=0, flush_lsn=self.flush_lsn)
        return [PersistControl(self.control)]

    def _append_response(self) -> AppendResponse:
        return AppendResponse(
            self.control.membership.generation,
            self.control.promised,
            self.flush_lsn,
            self.durable_lsn,
            self.commit_lsn,
            0,
            self.feedback,
        )

    def _inactive(self, connection: int) -> Refuse:
        return Refuse(connection, MISMATCH, *_inactive_problem(self.control))

    def _wrong_generation(self, connection: int, generation: int) -> Refuse:
        ours = self.control.membership.generation
        return Refuse(
            connection,
            WRONG_STATE,
            f"proposer is at membership generation {generation}, not {ours}",
        )


def _brief(history: TimelineHistory) -> str:
    """`1 to 0/3000110, 2`: which timeline wrote the log up to where."""
    left = [f"{entry.tli} to {format_lsn(entry.switch_lsn)}" for entry in history.entries]
    return ", ".join([*left, str(history.tli)])


def _inactive_problem(control: ControlState) -> tuple[str, str]:
    return (
        f"timeline {control.timeline} is not active: its creation did not finish",
        "Run 'sk timeline create' (or 'sk attach') again.",
    )


def _membership_problem(theirs: Membership, ours: Membership) -> tuple[str, str] | None:
    if theirs == ours:
        return None
    return (
        f"proposer has members {theirs.all_members} of generation {theirs.generation}, the "
        f"timeline {ours.all_members} of generation {ours.generation}",
        "Attach with exactly the safekeepers the timeline was created on.",
    )
