"""A transaction from BEGIN to its outcome: the protocol, for both drivers. Pure.

    BEGIN                             1 round trip to the primary, as for any transaction
    its facts                         1
    PREPARE TRANSACTION               1, with SET LOCAL before it and the flush position after it
    WAIT_LSN of that position         1 to the coordinator, which answers when the quorum has it
    COMMIT PREPARED                   1, with the flush position after it
    WAIT_LSN of that position         1, with confirm="durable" only

ADMIT adds one for all transactions of a tenth of a second. A transaction that wrote nothing reads
its facts and commits. A handle may get a connection to another server, so it first reads which
server that is. A client does the same before ROLLBACK PREPARED.

Laws: COMMIT PREPARED runs only after the coordinator has confirmed PREPARE. RolledBack is reported
only for an error before the end of PREPARE, when the quorum has the ROLLBACK PREPARED record, or
when the coordinator reports it. A client that no longer finds the gid asks for its outcome.
ROLLBACK PREPARED runs only on the timeline on which the transaction was prepared, and never after a
verdict that confirmed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import psycopg
from psycopg.pq import TransactionStatus

from quorum_wal.qsync.coordinator_client import CoordinatorClient, Verdict
from quorum_wal.qsync.coordinator_connections import ANSWER_SECONDS, Row
from quorum_wal.qsync.errors import (
    CoordinatorError,
    NotCommitted,
    OutcomeUnknown,
    QsyncError,
    TransactionPending,
    TransactionRolledBack,
    UsageError,
    first_line,
    raise_not_committed,
)
from quorum_wal.qsync.failed_prepare import (
    DO_NOT_END,
    ENDED_INSIDE,
    PREPARE_HINTS,
    check_status,
    failed_statement,
    rolled_back_by,
)
from quorum_wal.qsync.gid import UUID_ENTROPY_BYTES, Gid, Policy, uuid7
from quorum_wal.qsync.options import Options
from quorum_wal.qsync.outcome import Committed, Outcome, Pending, RolledBack
from quorum_wal.qsync.statements import (
    BUSY,
    FACTS,
    IN_RECOVERY,
    MARK,
    NOT_OWNER,
    PREPARE_TAG,
    SESSION,
    Facts,
    Finish,
    Result,
    Session,
    begin,
    find_owner,
    find_prepared,
    first_error,
    parse_lsn,
    prepare,
)
from quorum_wal.qsync.steps import AnyConnection, Ask, Commit, Pause, Rollback, Steps

#: Time that a ROLLBACK PREPARED waits for its quorum, after the deadline.
ROLLBACK_SECONDS = 1.0
_BUSY_PAUSE_SECONDS = 0.01


class TwoPhase:
    """One transaction. `outcome` is the last known one; None before there is one.

    `clock` is time.monotonic, `entropy` os.urandom.
    """

    def __init__(
        self,
        coordinator: CoordinatorClient,
        options: Options,
        clock: Callable[[], float],
        entropy: Callable[[int], bytes],
    ) -> None:
        self.options = options
        self.gid: Gid | None = None
        self.outcome: Outcome | None = None
        self._coordinator = coordinator
        self._clock = clock
        self._entropy = entropy
        self._lsn = 0  # an upper bound of the end of PREPARE; 0 while it is unknown
        self._facts: Facts | None = None
        self._deadline = 0.0
        self._verdict: Verdict | None = None
        self._was_confirmed = False
        self._turn = deque([None])  # a token for wait(): only one thread can pop it

    @property
    def result(self) -> Committed:
        """Raises NotCommitted for every other outcome, UsageError before there is one."""
        if self.outcome is None:
            raise UsageError(
                "the transaction has no outcome",
                hint="It has one after its block, unless a statement in the block ended it.",
            )
        if isinstance(self.outcome, Committed):
            return self.outcome
        raise_not_committed(self.outcome)

    # ---- the block

    def begin(self, connection: AnyConnection) -> Steps[None]:
        """Raises psycopg.Error."""
        self.set_deadline()
        statement = begin(connection.isolation_level, connection.read_only, connection.deferrable)
        results = yield from self._ask(connection, statement)
        if (error := first_error(results)) is not None:
            raise error

    def end(self, connection: AnyConnection) -> Steps[None]:
        """End a block without an exception. Raises NotCommitted, UsageError."""
        self.set_deadline()
        try:
            yield from self._prepare(connection)
            if self.options.wait == "complete":
                yield from self.await_verdict()
                yield from self.conclude(connection, self._facts)
        except QsyncError as error:
            if isinstance(error, NotCommitted):
                self.outcome = error.outcome
            yield from self._roll_back(connection)
            raise

    def abandon(self, connection: AnyConnection, reason: BaseException) -> Steps[None]:
        """End a block with an exception. `outcome` stays None if a statement of the block had ended
        the transaction: its outcome is unknown."""
        if (yield from self._is_still_ours(connection)):
            self.outcome = RolledBack(first_line(reason))
        else:
            reason.add_note(f"{ENDED_INSIDE}. {DO_NOT_END}")
        yield from self._roll_back(connection)

    def suppresses(self, reason: BaseException) -> bool:
        """Like psycopg's transaction(): Rollback(other) applies to the other transaction."""
        is_here = isinstance(reason, psycopg.Rollback) and reason.transaction is None
        return is_here and isinstance(self.outcome, RolledBack)

    def _is_still_ours(self, connection: AnyConnection) -> Steps[bool]:
        """False if a COMMIT in the block ended the transaction. For a failed transaction, or a lost
        connection, the server cannot be asked whether such a COMMIT came before."""
        status = connection.info.transaction_status
        if status is not TransactionStatus.INTRANS:
            return status is not TransactionStatus.IDLE
        try:
            (result,) = yield from self._ask(connection, MARK)
        except psycopg.Error:
            return True
        return result.row in (None, ("on",))

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Only one task or thread at a time may wait on a handle. Raises UsageError."""
        try:
            self._turn.pop()
        except IndexError:
            raise UsageError(
                "another thread or task is waiting for this transaction",
                hint="Call wait() in one of them.",
            ) from None
        try:
            yield
        finally:
            self.release()
            self._turn.append(None)

    def set_deadline(self, timeout: float | None = None) -> None:
        """Set the deadline, from now on."""
        seconds = self.options.timeout if timeout is None else timeout
        self._deadline = self._clock() + seconds

    # ---- up to PREPARE

    def _prepare(self, connection: AnyConnection) -> Steps[None]:
        check_status(connection)
        if (yield from self._is_on_standby(connection)):
            yield from self._commit_nothing(connection)
            return
        facts = yield from self._read_facts(connection)
        if facts.xid is None:
            yield from self._commit_nothing(connection)
            return
        yield from self._coordinator.admit(self._deadline)
        self.gid = self._new_gid(facts, facts.xid)
        self.outcome = Pending(self.gid, 0)
        try:
            results = yield from self._ask(connection, prepare(self.gid))
        except psycopg.Error as error:
            yield from self._ask_outcome(first_line(error), error)
            return
        if first_error(results) is not None:
            yield from self._prepare_failed(connection, results)
        elif results[1].tag != PREPARE_TAG:
            # Postgres turned PREPARE of a failed transaction into ROLLBACK, without an error.
            raise failed_statement()
        else:
            self._note_prepared(results[2].value)

    def _is_on_standby(self, connection: AnyConnection) -> Steps[bool]:
        """Postgres 13 does not report the parameter; a pooler reports that of its first server."""
        if connection.pgconn.parameter_status(b"in_hot_standby") == b"off":
            return False
        return (yield from self._ask_before_prepare(connection, IN_RECOVERY)) == ("t",)

    def _ask_before_prepare(self, connection: AnyConnection, question: bytes) -> Steps[Row]:
        """An error here comes before PREPARE, so Postgres rolls back in every case."""
        try:
            (result,) = yield from self._ask(connection, question)
        except psycopg.Error as error:
            raise rolled_back_by(error) from error
        if result.error is not None:
            raise rolled_back_by(result.error) from result.error
        assert result.row is not None
        return result.row

    def _read_facts(self, connection: AnyConnection) -> Steps[Facts]:
        facts = self._facts = Facts.of((yield from self._ask_before_prepare(connection, FACTS)))
        if not facts.is_ours:
            raise UsageError(ENDED_INSIDE, hint=DO_NOT_END)
        return facts

    def _commit_nothing(self, connection: AnyConnection) -> Steps[None]:
        """Commit a transaction that wrote nothing. It can fail if it is serializable."""
        try:
            yield Commit(connection)
        except psycopg.Error as error:
            raise rolled_back_by(error) from error
        self.outcome = Committed(0)

    def _new_gid(self, facts: Facts, xid: int) -> Gid:
        deadline_ms = facts.now_ms + round(self.options.timeout * 1000)
        uuid = uuid7(facts.now_ms, self._entropy(UUID_ENTROPY_BYTES))
        place = (facts.tli, facts.lsn, xid, facts.server_start_us)
        return Gid(self.options.policy, deadline_ms, *place, uuid)

    def _note_prepared(self, flush_lsn: str) -> None:
        self._lsn = parse_lsn(flush_lsn)
        self.outcome = Pending(self._named, self._lsn)

    def _prepare_failed(self, connection: AnyConnection, results: Sequence[Result]) -> Steps[None]:
        """PREPARE failed. The transaction is nearly always rolled back, but the error may have come
        after the end of PREPARE. After the deadline another session may have finished it."""
        error = first_error(results)
        assert error is not None
        try:
            (found,) = yield from self._ask(connection, find_prepared(self._named))
        except psycopg.Error:
            yield from self._ask_outcome(first_line(error), error)
            return
        was_prepared = len(results) > 1 and results[1].tag == PREPARE_TAG
        if found.row is not None:
            self._note_prepared(found.value)
        elif found.error is not None or was_prepared or self._clock() >= self._deadline:
            yield from self._ask_outcome(first_line(error), error)
        else:
            raise rolled_back_by(error, PREPARE_HINTS.get(error.sqlstate or "", "")) from error

    def _roll_back(self, connection: AnyConnection) -> Steps[None]:
        """Roll back an open transaction. An error here does not replace an exception in
        progress."""
        status = connection.info.transaction_status
        if status in (TransactionStatus.INTRANS, TransactionStatus.INERROR):
            try:
                yield Rollback(connection)
            except psycopg.Error:
                connection.pgconn.finish()  # this also rolls back

    # ---- after PREPARE

    def await_verdict(self) -> Steps[None]:
        """Returns when conclude() must act, or the transaction is committed. Raises
        NotCommitted."""
        yield from self._recording_outcome(self._await_verdict())

    def _await_verdict(self) -> Steps[None]:
        if isinstance(self.outcome, Committed):
            return
        if not self._lsn:
            yield from self._ask_outcome("the answer of PREPARE was lost")
            return
        verdict = yield from self._coordinator.wait(self._lsn, self._named, self._deadline)
        self._verdict = verdict
        self._was_confirmed |= verdict.is_confirmed
        if not verdict.is_confirmed and not self._may_roll_back:
            raise self._pending(verdict.reason)

    @property
    def _may_roll_back(self) -> bool:
        """After a confirmation another session may have committed the transaction, and a client may
        have seen it."""
        return self._named.policy is Policy.ROLLBACK and not self._was_confirmed

    def release(self) -> None:
        """Call it last in every case: it closes a connection that holds an unfinished gid, so the
        coordinator knows that the client has left."""
        if self._verdict is not None:
            is_finished = isinstance(self.outcome, Committed)
            self._coordinator.release(self._verdict, is_finished=is_finished)
            self._verdict = None

    def conclude(
        self, connection: AnyConnection, session: Session | Facts | None = None
    ) -> Steps[Committed]:
        """`session`: the facts of this connection's session, if known. Raises NotCommitted."""
        if not isinstance(self.outcome, Committed):
            yield from self._recording_outcome(self._act_on_verdict(connection, session))
        return self.result

    def _recording_outcome(self, steps: Steps[None]) -> Steps[None]:
        """Also store the outcome of an exception in `outcome`."""
        try:
            yield from steps
        except NotCommitted as error:
            self.outcome = error.outcome
            raise

    def _act_on_verdict(
        self, connection: AnyConnection, session: Session | Facts | None
    ) -> Steps[None]:
        verdict = self._verdict
        assert verdict is not None, "await_verdict() was not called"
        if not verdict.is_confirmed:
            yield from self._roll_back_prepared(connection, verdict.reason)
            return
        if session is None:
            session = yield from self._read_session(connection)
        if session is not None:
            yield from self._commit_prepared(connection, session)

    def _read_session(self, connection: AnyConnection) -> Steps[Session | None]:
        """None: the session does not answer, and another session has committed the transaction."""
        try:
            (result,) = yield from self._ask(connection, SESSION)
        except psycopg.Error as error:
            result = Result(error=error)
        if result.error is None:
            assert result.row is not None
            return Session.of(result.row)
        yield from self._ask_outcome(first_line(result.error), result.error)
        return None

    def _commit_prepared(self, connection: AnyConnection, session: Session | Facts) -> Steps[None]:
        lsn = yield from self._finish(connection, session, is_commit=True)
        if lsn is None:
            return
        self.outcome = Committed(self._lsn)
        self.release()
        if self.options.confirm == "durable" and lsn:
            self._verdict = yield from self._coordinator.wait(lsn, self._named, self._deadline)
            if self._verdict.is_confirmed:
                self.outcome = Committed(lsn)

    def _roll_back_prepared(self, connection: AnyConnection, reason: str) -> Steps[None]:
        """At the deadline. Returns normally if the janitor has committed the transaction after all.

        Law: only on the timeline on which it was prepared. The previous primary may have committed
        it, and a client may have seen it. Then a new primary must commit it too.
        """
        self._deadline = max(self._deadline, self._clock() + ROLLBACK_SECONDS)
        session = yield from self._read_session(connection)
        if session is None:
            return
        if session.tli != self._named.tli:
            yield from self._ask_outcome(f"{reason}, and its primary has been replaced")
            return
        lsn = yield from self._finish(connection, session, is_commit=False)
        if lsn is not None:
            yield from self._ask_outcome(f"{reason}, and it was rolled back")

    def _finish(
        self, connection: AnyConnection, session: Session | Facts, *, is_commit: bool
    ) -> Steps[int | None]:
        """The flush position after the command. None: another session has finished it, by
        COMMIT."""
        returns_lsn = not is_commit or self.options.confirm == "durable"
        is_direct = session.backend_pid == connection.pgconn.backend_pid  # no pooler is between
        meanwhile: dict[str, str] = {}
        if session.has_standby_names and is_direct:
            meanwhile["synchronous_commit"] = "local"
        while True:
            command = Finish(self._named, is_commit, returns_lsn, tuple(meanwhile.items()))
            try:
                results = yield from self._ask(connection, *command.statements)
            except psycopg.Error as error:
                yield from self._ask_outcome(first_line(error), error)
                return None
            if not command.is_restored(results):
                connection.pgconn.finish()
            failure = command.error(results)
            if failure is None:
                return command.flush_lsn(results)
            if failure.sqlstate == NOT_OWNER and is_direct and "role" not in meanwhile:
                meanwhile["role"] = yield from self._owner(connection)
            elif failure.sqlstate == BUSY and self._clock() < self._deadline:
                yield Pause(_BUSY_PAUSE_SECONDS)
            else:
                yield from self._ask_outcome(first_line(failure), failure)
                return None

    def _owner(self, connection: AnyConnection) -> Steps[str]:
        """The role of a SET LOCAL ROLE, which has ended. There is none if the gid no longer
        exists."""
        try:
            (found,) = yield from self._ask(connection, find_owner(self._named))
        except psycopg.Error:
            return "none"  # the next statement reports the lost connection
        return "none" if found.error is not None or found.row is None else found.value

    def _ask_outcome(self, reason: str, error: psycopg.Error | None = None) -> Steps[None]:
        """Get the outcome of the gid from the coordinator if the primary cannot say, or not
        finally. Returns if it is committed. It releases the gid first; otherwise the janitor would
        leave it alone."""
        self.release()
        try:
            outcome = yield from self._coordinator.outcome(
                self._named, self._lsn, self._deadline, until_decided=True
            )
        except (CoordinatorError, OutcomeUnknown) as unknown:
            raise self._pending(f"{reason}; {unknown.message}") from error
        match outcome:
            case Committed():
                self.outcome = outcome
            case RolledBack():
                raise TransactionRolledBack(RolledBack(reason)) from error
            case Pending():
                raise self._pending(reason) from error

    # ---- errors

    @property
    def _named(self) -> Gid:
        assert self.gid is not None, "the transaction has not reached PREPARE"
        return self.gid

    def pool_failed(self, error: psycopg.Error) -> TransactionPending:
        """The error when the pool has no connection for conclude()."""
        return self._pending(f"the pool has no connection: {first_line(error)}")

    def _pending(self, reason: str) -> TransactionPending:
        return TransactionPending(Pending(self._named, self._lsn), reason)

    def _ask(self, connection: AnyConnection, *statements: bytes) -> Steps[list[Result]]:
        """Several statements are a pipeline. Raises psycopg.Error if no answer comes."""
        answer_by = max(self._deadline, self._clock()) + ANSWER_SECONDS
        results: list[Result] = yield Ask(connection, statements, answer_by)
        return results


def note_interruption(two_phase: TwoPhase, error: BaseException) -> None:
    """Add a note with the gid if an interruption left the transaction undecided."""
    if not isinstance(error, Exception) and isinstance(two_phase.outcome, Pending):
        error.add_note(f'transaction "{two_phase.gid}" may be prepared: ask for its outcome')
