"""The coordinator's sessions on the primary, while one incarnation leads. They run on threads that
may wait, so that the coordinator's own thread does not.

    read, ask, write_wal --> one reader      finish --> one finisher per database
    one stream per database that recently had transactions of qsync, or has a slot of ours

Law: each event from here has the NodeId of its incarnation, and the core drops late ones. Closing
does not wait. A bug in a thread is reported, and the coordinator then ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import structlog

from quorum_wal.consensus.ids import NodeId
from quorum_wal.qsync.gid import Gid
from quorum_wal.walproposer.errors import WalProposerError
from quorum_wal.walproposer.primary.primary import Primary
from quorum_wal.walproposer.primary.primary_address import PrimaryAddress
from quorum_wal.walproposer.qsync.finisher import Finisher
from quorum_wal.walproposer.qsync.limbo_events import (
    Decoded,
    Finish,
    FinishEnded,
    LimboEntry,
    LimboRead,
)
from quorum_wal.walproposer.qsync.limbo_reader import LimboReader, PrimaryEvidence, Reading
from quorum_wal.walproposer.qsync.limbo_stream import STREAMING, LimboStream
from quorum_wal.walproposer.qsync.outcome_answer import XidStatus, is_of_server
from quorum_wal.walproposer.qsync.prepare_search import has_prepare, search_end_lsn
from quorum_wal.walproposer.qsync.primary_session import PrimarySession
from quorum_wal.walproposer.qsync.worker import Failed, Worker

log = structlog.get_logger()

IDLE_SECONDS = 60.0

Told = Decoded | LimboRead | FinishEnded


@dataclass(frozen=True, slots=True)
class PrimaryUnavailable:
    """The primary could not be asked."""

    reason: str


class PrimarySessions:
    """`tell` takes an event of the core from any thread, `failed` a bug."""

    def __init__(
        self,
        address: PrimaryAddress,
        primary: Primary,
        node_id: NodeId,
        tell: Callable[[Told], None],
        failed: Failed,
    ) -> None:
        self._address = address
        self._primary = primary
        self._node_id = node_id
        self._tell = tell
        self._failed = failed
        self._limbo_reader = LimboReader(self._session())
        self._reader = Worker("qsync-read", self._limbo_reader.close, IDLE_SECONDS, failed)
        self._finisher = Finisher(self._session, self._finished, failed)
        self._streams: dict[str, LimboStream] = {}
        self._is_reading = False
        self._reads_again = False
        self._slot_databases: tuple[str, ...] = ()
        self._last_reason = ""

    def _session(self, database: str = "") -> PrimarySession:
        return PrimarySession(self._address, self._primary, database)

    # ---- for the coordinator's thread

    def read(self) -> None:
        """Read the limbo; if a reading is in progress, once more after it."""
        self._reads_again = self._is_reading
        if not self._is_reading:
            self._is_reading = True
            self._reader.put(self._read)

    def was_read(self, entries: Iterable[LimboEntry]) -> None:
        """Called when the coordinator takes the result of `read`."""
        self._is_reading = False
        used = {entry.database for entry in entries if Gid.is_ours(entry.gid)}
        for database in used:
            self.watch(database).use()
        for database in self._slot_databases:
            if database not in self._streams:
                self.watch(database)  # otherwise its slot would hold WAL
        self._close_unneeded(used.union(self._slot_databases))
        if self._reads_again:
            self.read()

    def watch(self, database: str) -> LimboStream:
        """Start a stream for the database, if there is none."""
        stream = self._streams.get(database)
        if stream is None or stream.is_over:
            stream = self._streams[database] = LimboStream(
                self._address, self._session(database), database, self._decoded, self._failed
            )
        return stream

    def _close_unneeded(self, needed: set[str]) -> None:
        """The other databases have no slot. It may have been dropped, perhaps with its database; or
        it is not created yet."""
        for database in self._streams.keys() - needed:
            stream = self._streams[database]
            has_lost_slot = stream.has_streamed and stream.state != STREAMING
            if stream.is_unused or has_lost_slot:
                stream.close()
                del self._streams[database]

    def ask(
        self,
        gid: Gid,
        lsn: int | None,
        done: Callable[[PrimaryEvidence | PrimaryUnavailable], None],
    ) -> None:
        """`done` is called on another thread. `lsn`: the end of PREPARE that its client knows, or
        0; None if the log is known to have it."""

        def ask() -> None:
            try:
                evidence = self._limbo_reader.ask(gid)
                if lsn is not None:
                    evidence = replace(evidence, is_in_log=self._search_prepare(gid, lsn, evidence))
            except WalProposerError as error:
                done(PrimaryUnavailable(str(error)))
            else:
                done(evidence)

        self._reader.put(ask)

    def _search_prepare(self, gid: Gid, lsn: int, evidence: PrimaryEvidence) -> bool | None:
        """Search the log for its PREPARE. Only if its xid has committed, and may belong to another
        transaction."""
        primary = self._primary
        history, server = primary.tli_history, (primary.tli_history.tli, primary.start_us)
        if evidence.is_prepared or evidence.xid_status is not XidStatus.COMMITTED:
            return None
        end_lsn = search_end_lsn(gid, lsn, history, evidence.flushed_lsn)
        if end_lsn is None or is_of_server(gid, lsn, server):
            return None
        session = PrimarySession(self._address, primary, replicates=True)
        try:
            return has_prepare(session, primary, gid, end_lsn)
        except WalProposerError as error:
            log.info("could not read the log of a transaction", gid=str(gid), reason=str(error))
            return None

    def write_wal(self) -> None:
        """Write WAL that the safekeepers must acknowledge, if the primary accepts it."""

        def write() -> None:
            try:
                self._limbo_reader.write_wal()
            except WalProposerError as error:
                self._log_failure(error)

        self._reader.put(write)

    def finish(self, order: Finish) -> None:
        self._finisher.finish(order)

    @property
    def stream_states(self) -> dict[str, str]:
        """By database."""
        streams = self._streams.items()
        return {database: stream.state for database, stream in streams if not stream.is_over}

    def close(self) -> None:
        self._reader.close()
        self._finisher.close()
        for stream in self._streams.values():
            stream.close()

    # ---- on other threads

    def _read(self) -> None:
        reading = self._try_to_read()
        if reading is not None:
            self._slot_databases = reading.slot_databases
            self._tell(
                LimboRead(
                    self._node_id,
                    reading.entries,
                    reading.flushed_before_lsn,
                    reading.flushed_after_lsn,
                    reading.server_now_ms,
                )
            )
        else:
            self._is_reading = False  # the core asks again

    def _try_to_read(self) -> Reading | None:
        try:
            reading = self._limbo_reader.read()
        except WalProposerError as error:
            self._log_failure(error)
            return None
        self._last_reason = ""
        return reading

    def _log_failure(self, error: WalProposerError) -> None:
        if str(error) != self._last_reason:
            log.warning("qsync could not query the primary", reason=str(error))
        self._last_reason = str(error)

    def _decoded(self, database: str, message: object) -> None:
        self._tell(Decoded(self._node_id, database, message))  # type: ignore[arg-type]

    def _finished(self, order: Finish, sqlstate: str | None, end_lsn: int) -> None:
        self._tell(FinishEnded(self._node_id, order.gid, sqlstate, end_lsn))
