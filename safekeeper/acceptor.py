"""The acceptor of one timeline on one safekeeper: the safekeeper's rules of `docs/protocol.md`.

Pure: `step(event) -> list[Action]` is the only mutator. The caller executes the list in order,
under one lock, and discards this object if an action fails. Positions are published after the
execution, so a published position is never ahead of the disk.

Invariants between steps:
    flush_lsn <= record_end_lsn <= written_lsn, durable_lsn <= written_lsn, flush_lsn <= durable_lsn
    control.promised, the membership's stamp, commit_lsn and truncate_lsn never decrease
    the membership's author is at most control.promised; while a leader streams, it is that leader
    at most one connection streams, for the promised NodeId; only that connection may be chained
"""

from __future__ import annotations

from dataclasses import replace
from typing import assert_never

from quorum_wal.consensus.codec import append_head, encode_append_response
from quorum_wal.consensus.ids import NodeId
from quorum_wal.consensus.messages import (
    NO_FEEDBACK,
    Append,
    AppendResponse,
    Configure,
    Elected,
    Follow,
    ProposerGreeting,
    SafekeeperGreeting,
    VoteRequest,
    VoteResponse,
)
from quorum_wal.pgwal.lsn import format_lsn
from quorum_wal.safekeeper.control_state import ControlState
from quorum_wal.safekeeper.events import (
    Action,
    BatchEnded,
    ChainedWal,
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
    SteadyTaken,
    TakeWal,
    TruncateWal,
    WriteWal,
)
from quorum_wal.safekeeper.named_ends import NamedEnds
from quorum_wal.safekeeper.refusals import (
    PROTOCOL_VIOLATION,
    WRONG_STATE,
    Refusal,
    absence,
    author_refusal,
    elected_refusal,
    greeting_refusal,
    membership_refusal,
)


class Acceptor:
    """`flush_lsn` is the end of the last whole record on disk, found by decoding after a start.

    An end below the position flushed before is damage, not a torn tail. Then `control.lost_lsn` is
    set, and the bytes behind the end stay on disk. This member follows without a vote until a
    leader has sent the lost WAL again.

    The rules are the same for members and other safekeepers: the proposer decides which answers
    count. A safekeeper that has left answers greetings only. `instance` is the data directory's.
    """

    def __init__(
        self, safekeeper_id: int, instance: bytes, control: ControlState, flush_lsn: int
    ) -> None:
        assert flush_lsn >= control.horizon_lsn or control.lost_lsn >= control.horizon_lsn
        self.safekeeper_id = safekeeper_id
        self.instance = instance
        self.control = control
        #: End of the bytes handed to the OS; if the end is damaged, of the bytes flushed before.
        self.written_lsn = max(flush_lsn, control.horizon_lsn)
        #: End of the bytes that are fsynced; may be inside a record.
        self.durable_lsn = self.written_lsn
        #: The bytes behind the damaged end are still on disk, as evidence.
        self._is_end_damaged = flush_lsn < control.horizon_lsn
        #: Greatest record boundary <= written_lsn that a proposer named.
        self.record_end_lsn = flush_lsn
        #: End of the last complete record that is fsynced.
        self.flush_lsn = flush_lsn
        self.commit_lsn = min(control.commit_lsn, flush_lsn)
        self.truncate_lsn = control.truncate_lsn
        #: The commit_lsn that the leader sent last; ours follows as far as the log is flushed.
        self.sent_commit_lsn = 0
        #: The connection that has processed Elected for the promised NodeId.
        self.streaming: int | None = None
        #: Set when chained: another safekeeper sends the WAL, the leader names the record ends.
        self._ends: NamedEnds | None = None
        #: The streaming connection has sent an Append, and with it the leader's commit_lsn.
        self._has_append = False
        #: Feedback of the replicas connected here, for the primary.
        self.feedback = NO_FEEDBACK
        #: Committed segments are damaged. Acknowledgements still count; votes are not granted.
        self.has_holes = False

    # ---- the only mutator

    def step(self, event: Event) -> list[Action]:
        # The two events of every commit come first. They are tested by type: a class pattern costs
        # five times as much.
        if type(event) is Received:
            if type(event.message) is Append:
                return self._append(event.connection, event.message)
            return self._received(event.connection, event.message)
        if type(event) is BatchEnded:
            return self._batch_ended(event.connection)
        match event:
            case ChainedWal():
                return self._chained_wal(event)
            case Disconnected(connection):
                if self.streaming == connection:
                    self.streaming = self._ends = None
                return self._flush()
            case FeedbackChanged(feedback):
                self.feedback = feedback
                return []
            case HolesChanged(has_holes):
                self.has_holes = has_holes
                return []
            case SteadyTaken():
                return self._steady_taken(event)
            case _:
                assert_never(event)

    def _received(
        self,
        connection: int,
        message: ProposerGreeting | VoteRequest | Elected | Configure | Follow,
    ) -> list[Action]:
        match message:
            case ProposerGreeting():
                return self._greeting(connection, message)
            case VoteRequest():
                return self._vote(connection, message)
            case Elected():
                return self._elected(connection, message)
            case Configure():
                return self._configure(connection, message)
            case Follow():
                return self._follow(connection, message)
            case _:
                assert_never(message)

    # ---- messages

    def _greeting(self, connection: int, greeting: ProposerGreeting) -> list[Action]:
        if refusal := greeting_refusal(self.control, greeting):
            return [_refuse(connection, refusal)]
        control = self.control
        answer = SafekeeperGreeting(
            self.safekeeper_id,
            self.instance,
            control.has_left,
            control.promised,
            control.membership,
        )
        return [Reply(connection, answer)]

    def _vote(self, connection: int, request: VoteRequest) -> list[Action]:
        """Rule 2. Flush, persist the promise and flush_lsn, then answer. So a vote survives a power
        loss, and later damage is detected. A member that lost a part of its log promises, but does
        not grant its vote (rule 9). A request with a membership older than the one here gets
        neither vote nor promise (condition V1). A vote never adopts a newer membership."""
        if refusal := absence(self.control):
            return [_refuse(connection, refusal)]
        actions: list[Action] = []
        promises = (
            request.node_id >= self.control.promised
            and request.stamp >= self.control.membership.stamp
        )
        if promises:
            # The positions in the answer must stay true, so the connection that streams is closed.
            # If its NodeId is equal, it is an older connection of the same proposer.
            if self.streaming not in (None, connection):
                assert self.streaming is not None
                actions.append(CloseConnection(self.streaming, f"vote given to {request.node_id}"))
            self.streaming = self._ends = None
            actions += self._flush()
            actions += self._promise(request.node_id)
        granted = promises and not self.control.lost_lsn and not self.has_holes
        actions.append(Reply(connection, self._vote_response(granted)))
        return actions

    def _vote_response(self, granted: bool) -> VoteResponse:
        control = self.control
        return VoteResponse(
            granted=granted,
            promised=control.promised,
            flush_lsn=self.flush_lsn,
            commit_lsn=self.commit_lsn,
            truncate_lsn=self.truncate_lsn,
            timeline_start_lsn=control.timeline_start_lsn,
            membership=control.membership,
            term_history=control.term_history.clipped(self.flush_lsn),
            tli_history=control.tli_history,
        )

    def _elected(self, connection: int, elected: Elected) -> list[Action]:
        """Rule 3. On disk, in this order: promise and lower the saved flush_lsn, truncate, adopt
        the whole history and the membership."""
        if refusal := absence(self.control):
            return [_refuse(connection, refusal)]
        if elected.node_id < self.control.promised:
            return []  # the answer to this proposer's first Append will carry the promise
        refusal = elected_refusal(self.control, elected, self.flush_lsn, self.commit_lsn)
        if refusal:
            return [_refuse(connection, refusal)]
        start_lsn = elected.start_streaming_at
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
        self.streaming, self._ends = connection, None
        self.sent_commit_lsn, self._has_append = 0, False
        return actions + self._adopt(
            replace(
                self.control,
                term_history=elected.term_history,
                tli_history=elected.tli_history,
                membership=elected.membership,
            )
        )

    def _configure(self, connection: int, configure: Configure) -> list[Action]:
        """Rule 11. The leader wrote another membership. It is durable before BatchEnded sends the
        answer. It is accepted only from the connection that streams (condition M3); a deposed
        leader gets the promise as its answer."""
        own, membership = self.control.membership, configure.membership
        if connection != self.streaming or configure.node_id != self.control.promised:
            return [self._answer_not_streaming(connection, configure.node_id, "configure")]
        refusal = author_refusal(configure.node_id, membership)
        refusal = refusal or membership_refusal(own, membership)
        if refusal:
            return [_refuse(connection, refusal)]
        return self._adopt(replace(self.control, membership=membership))

    def _adopt(self, control: ControlState) -> list[Action]:
        """Persists nothing if all of it is on disk already."""
        if control == self.control:
            return []
        # The flushed position has grown since the last promise; it must not be saved as less.
        self.control = replace(control, flush_lsn=self.flush_lsn)
        return [PersistControl(self.control)]

    def _answer_not_streaming(self, connection: int, node_id: NodeId, what: str) -> Action:
        """The answer to a message on a connection that does not stream."""
        if refusal := absence(self.control):
            return _refuse(connection, refusal)
        if node_id < self.control.promised:
            return Reply(connection, self._append_response())
        problem = f"{what} of {node_id} without Elected on this connection"
        return Refuse(connection, PROTOCOL_VIOLATION, problem)

    def _append(self, connection: int, append: Append) -> list[Action]:
        """Rule 4. The hot path: a few comparisons and one WriteWal. BatchEnded sends the answer."""
        control = self.control
        if connection != self.streaming or append.node_id != control.promised:
            return [self._answer_not_streaming(connection, append.node_id, "append")]
        if append.generation != control.membership.generation:
            return [self._wrong_generation(connection, append.generation)]
        if self._ends is not None:
            return self._chained_append(connection, append, self._ends)
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

    # ---- the daisy chain

    @property
    def is_chained(self) -> bool:
        return self._ends is not None

    def _follow(self, connection: int, follow: Follow) -> list[Action]:
        """Rule 15. All WAL received on this connection is written, so chained WAL begins at
        `written_lsn`. The chain ends with a vote, another Elected, or the end of the connection."""
        if connection != self.streaming or follow.node_id != self.control.promised:
            return [self._answer_not_streaming(connection, follow.node_id, "follow")]
        if follow.generation != self.control.membership.generation:
            return [self._wrong_generation(connection, follow.generation)]
        if self._ends is not None or not follow.host or not follow.port:
            problem = f"follow of {follow.host}:{follow.port}, expected one address, once"
            return [Refuse(connection, PROTOCOL_VIOLATION, problem)]
        self._ends = NamedEnds(self.written_lsn)
        return [
            TakeWal(connection, follow.node_id, follow.host, follow.port, self.written_lsn),
        ]

    def _chained_append(self, connection: int, append: Append, ends: NamedEnds) -> list[Action]:
        """Takes the leader's positions. They may be above the WAL that has arrived from the
        source."""
        if append.wal:
            problem = "append brings WAL that is taken from another safekeeper"
            return [Refuse(connection, PROTOCOL_VIOLATION, problem)]
        ends.name(append.record_end_lsn, append.end_lsn)
        record_end_lsn = ends.reached(self.written_lsn)
        self._take_append(self.written_lsn, record_end_lsn, append.commit_lsn, append.truncate_lsn)
        return []

    def _chained_wal(self, chained: ChainedWal) -> list[Action]:
        """Takes bytes of the promised ballot's log at `written_lsn`, from any source. Ignores bytes
        that were read for a chain that has ended."""
        connection, ends = chained.connection, self._ends
        if connection != self.streaming or ends is None:
            return []
        if chained.node_id != self.control.promised:
            return []
        if chained.begin_lsn != self.written_lsn:
            problem = (
                f"chained WAL begins at {format_lsn(chained.begin_lsn)}, "
                f"expected {format_lsn(self.written_lsn)}"
            )
            return [Refuse(connection, PROTOCOL_VIOLATION, problem)]
        end_lsn = self.written_lsn + len(chained.wal)
        if not ends.allow(end_lsn):
            problem = (
                f"chained WAL goes to {format_lsn(end_lsn)}, "
                f"the leader's log ends at {format_lsn(ends.log_end_lsn)}"
            )
            return [Refuse(connection, PROTOCOL_VIOLATION, problem)]
        self.written_lsn = end_lsn
        self.record_end_lsn = max(self.record_end_lsn, ends.reached(self.written_lsn))
        return [WriteWal(chained.begin_lsn, chained.wal)] if chained.wal else []

    def _batch_ended(self, connection: int) -> list[Action]:
        """Rule 6: one answer for a batch, however many messages it has. The proposer relies on
        one."""
        if connection != self.streaming:
            return []
        actions = self._flush()
        if self.control.lost_lsn:
            actions += self._clear_lost_lsn()
        actions.append(Reply(connection, self._append_response()))
        return actions

    # ---- the steady state: Appends of the leader, one after the other

    def steady_state(self) -> tuple[bytes, bytes] | None:
        """Returns, both encoded, the first bytes of an Append that needs only a write, a flush and
        an answer, and the answer to an Append that moves no position. Returns None while an Append
        may need more than that, or be refused."""
        is_flushed = self.durable_lsn == self.written_lsn and self.flush_lsn == self.record_end_lsn
        is_whole = not self.control.lost_lsn and not self.control.is_unproven
        if self.streaming is None or not is_whole or not is_flushed or self.is_chained:
            return None
        head = append_head(self.control.membership.generation, self.control.promised)
        return head, encode_append_response(self._append_response())

    def _steady_taken(self, taken: SteadyTaken) -> list[Action]:
        """Rule 4 for all of these Appends at once; their flush has been done."""
        assert taken.end_lsn >= self.written_lsn
        self._take_append(taken.end_lsn, taken.record_end_lsn, taken.commit_lsn, taken.truncate_lsn)
        self._flush()
        return []

    # ---- parts

    def _take_append(
        self, end_lsn: int, record_end_lsn: int, commit_lsn: int, truncate_lsn: int
    ) -> None:
        """Takes the positions that the leader sent with the WAL from `written_lsn` to `end_lsn`."""
        self.written_lsn = end_lsn
        self.record_end_lsn = max(self.record_end_lsn, record_end_lsn)
        self.truncate_lsn = max(self.truncate_lsn, truncate_lsn)
        self._has_append = True
        if commit_lsn > self.sent_commit_lsn:
            self.sent_commit_lsn = commit_lsn
            self._advance_commit()

    def _flush(self) -> list[Action]:
        """Makes everything written durable; flush_lsn becomes the record boundary below it."""
        dirty = self.durable_lsn != self.written_lsn
        self.durable_lsn = self.written_lsn
        self.flush_lsn = self.record_end_lsn
        self._advance_commit()
        actions: list[Action] = [FlushWal()] if dirty else []
        return actions + self._persist_first_record() if self.control.is_unproven else actions

    def _advance_commit(self) -> None:
        """Rule 5: commit_lsn := max(own, min(sent, flush_lsn))."""
        self.commit_lsn = max(self.commit_lsn, min(self.sent_commit_lsn, self.flush_lsn))

    def _promise(self, node_id: NodeId) -> list[Action]:
        """Persist the promise and the flushed position, which a truncation that follows may have
        lowered. Persists nothing if both are on disk already."""
        assert node_id >= self.control.promised
        promised = replace(self.control, promised=node_id)
        if not self._is_end_damaged:
            promised = replace(promised, flush_lsn=self.flush_lsn)
        if promised == self.control:
            return []
        self.control = promised
        return [PersistControl(promised)]

    def _clear_lost_lsn(self) -> list[Action]:
        """Rule 9. The log is repaired when it reaches the start of the leader's term, which covers
        all commits of older ballots, and the leader's own commit_lsn. That commit may have counted
        on the lost WAL before, but does so no longer."""
        term_start_lsn = self.control.term_history.entries[-1].start_lsn
        if not self._has_append or self.flush_lsn < max(term_start_lsn, self.sent_commit_lsn):
            return []
        self.control = replace(self.control, lost_lsn=0, flush_lsn=self.flush_lsn)
        return [PersistControl(self.control)]

    def _persist_first_record(self) -> list[Action]:
        """A log that was joined has flushed its first whole record. That is made durable before
        the record is acknowledged or served. A later start then trusts the log."""
        if self.flush_lsn <= self.control.local_start_lsn:
            return []
        self.control = replace(self.control, flush_lsn=self.flush_lsn)
        return [PersistControl(self.control)]

    def _append_response(self) -> AppendResponse:
        control = self.control
        # After a promise alone there is no membership written by the promised NodeId.
        is_of_promised = control.membership.stamp.author == control.promised
        return AppendResponse(
            control.membership.generation if is_of_promised else 0,
            self.control.promised,
            self.flush_lsn,
            self.durable_lsn,
            self.commit_lsn,
            0,
            self.feedback,
        )

    def _wrong_generation(self, connection: int, generation: int) -> Refuse:
        ours = self.control.membership.generation
        return Refuse(
            connection,
            WRONG_STATE,
            f"proposer is at membership generation {generation}, not {ours}",
        )


def _refuse(connection: int, refusal: Refusal) -> Refuse:
    return Refuse(connection, refusal.sqlstate, refusal.message, refusal.hint)
