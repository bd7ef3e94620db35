"""Sources of a daisy chain that lie, hang, or do not exist: the chained member takes no WAL that
its leader did not name, ends the connection with the reason, and accepts the next source.

A test sends the leader's messages, so no Postgres is needed.
"""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from threading import Event
from typing import Any

import hand_written_proposer as by_hand
import pytest
from hand_written_proposer import HandWrittenProposer, create_timeline
from wire_server import LocalListener

from quorum_wal.consensus.ids import NodeId, TimelineId
from quorum_wal.consensus.membership import Stamp
from quorum_wal.consensus.messages import (
    Append,
    AppendResponse,
    Elected,
    Follow,
    ServerFacts,
    VoteRequest,
    VoteResponse,
)
from quorum_wal.pg_fixtures.safekeeper import SafekeeperProcess
from quorum_wal.pg_fixtures.waiting import wait_until
from quorum_wal.pgwal.history import TimelineHistory
from quorum_wal.pgwal.lsn import Lsn
from quorum_wal.pgwire.blocking import ServerConfig, Session, accept_connection
from quorum_wal.pgwire.commands import StartReplication, parse_command
from quorum_wal.pgwire.copy_stream import CopyStream
from quorum_wal.pgwire.errors import WireError
from quorum_wal.pgwire.replication import XLogData
from quorum_wal.safekeeper.named_ends import AHEAD_BYTES_MAX

SEG_SIZE = 1 << 20
START_LSN = 0x1100000
SERVER = ServerFacts(system_id=7, pg_version=150018, wal_seg_size=SEG_SIZE)
TIMEOUT = 60.0
LEADER = NodeId(3, b"written by hand!")
#: What the leader sends itself, and what the source is to send.
DIRECT_BYTES, NAMED_BYTES = 100, 200
PIECE_BYTES = 1 << 20

Tells = Callable[[Session, CopyStream, int], None]


class LyingSource(LocalListener):
    """It accepts every client, and sends `tells` to each reader."""

    def __init__(self, tells: Tells) -> None:
        super().__init__()
        self.commands: list[StartReplication] = []
        self.options: list[str] = []
        self._tells = tells
        self.start()

    def serve_client(self, sock: socket.socket) -> None:
        try:
            session = accept_connection(sock, ServerConfig(server_version="15.18"))
        except WireError:
            return
        if session is None:
            return
        with session:
            self.options.append(session.parameters.get("timeline_id", ""))
            try:
                while (text := session.read_command()) is not None:
                    command = parse_command(text)
                    assert isinstance(command, StartReplication)
                    self.commands.append(command)
                    self._tells(session, session.start_copy_both(), int(command.start_lsn))
            except (WireError, OSError):
                return  # the reader has disconnected, as it should


@dataclass
class Chained:
    """A member that one leader streams to."""

    safekeeper: SafekeeperProcess
    timeline: TimelineId

    def status(self) -> dict[str, Any]:
        status = self.safekeeper.timeline(self.timeline.timeline_id.hex())
        assert status is not None
        return status

    def led(self, node_id: NodeId = LEADER) -> HandWrittenProposer:
        """Led by a proposer that was elected, and continues at the end of the log."""
        proposer = HandWrittenProposer(self.safekeeper.address, self.timeline)
        membership = by_hand.membership_of(self.status())
        vote = proposer.ask(VoteRequest(Stamp(node_id, membership.generation), node_id))
        assert isinstance(vote, VoteResponse)
        terms = vote.term_history
        if terms.entries[-1].node_id != node_id:
            terms = terms.extended(node_id, vote.flush_lsn)
        elected = Elected(
            node_id,
            vote.flush_lsn,
            START_LSN,
            membership.stamped(Stamp(node_id, membership.generation)),
            terms,
            TimelineHistory(1),
        )
        answer = proposer.ask(elected)
        assert isinstance(answer, AppendResponse)
        assert answer.node_id == node_id
        return proposer

    def follow(self, proposer: HandWrittenProposer, port: int) -> int:
        """The leader sends some WAL, chains the member, and names the end of the log; returns that
        end."""
        begin_lsn = int(Lsn.parse(self.status()["written_lsn"]))
        end_lsn = begin_lsn + DIRECT_BYTES
        proposer.ask(append(begin_lsn, end_lsn, bytes(DIRECT_BYTES)))
        proposer.send(
            Follow(1, LEADER, "127.0.0.1", port),
            append(end_lsn, end_lsn + NAMED_BYTES, b""),
        )
        return end_lsn + NAMED_BYTES


def append(begin_lsn: int, end_lsn: int, wal: bytes) -> Append:
    at = end_lsn if not wal else begin_lsn
    return Append(1, LEADER, at, end_lsn, end_lsn, 0, 0, wal)


@pytest.fixture(scope="module")
def safekeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SafekeeperProcess]:
    root = tmp_path_factory.mktemp("sources")
    with SafekeeperProcess(1, root / "safekeeper-1") as safekeeper:
        yield safekeeper


@pytest.fixture
def chained(safekeeper: SafekeeperProcess) -> Chained:
    timeline = TimelineId(bytes(16), secrets.token_bytes(16))
    create_timeline(safekeeper.address, timeline, SERVER, members=(1, 2, 3), start_lsn=START_LSN)
    return Chained(safekeeper, timeline)


@pytest.fixture
def source_of() -> Iterator[Callable[[Tells], LyingSource]]:
    sources: list[LyingSource] = []

    def make(tells: Tells) -> LyingSource:
        sources.append(LyingSource(tells))
        return sources[-1]

    yield make
    for source in sources:
        source.stop()


# ---- messages of a lying source


def piece(start_lsn: int, size: int) -> bytes:
    return XLogData(start_lsn, start_lsn + size, 0, bytes(size)).encode()


def tell(*payloads: Callable[[int], bytes]) -> Tells:
    """These messages, from the position where the reader begins; then nothing until it
    disconnects."""

    def tells(_: Session, stream: CopyStream, start_lsn: int) -> None:
        for payload in payloads:
            stream.send(payload(start_lsn))
        while True:
            stream.drain()

    return tells


def tell_without_end(_: Session, stream: CopyStream, start_lsn: int) -> None:
    """Far more WAL than the leader has; it stops when the reader disconnects."""
    lsn = start_lsn
    while lsn < start_lsn + 4 * AHEAD_BYTES_MAX:
        stream.send(piece(lsn, PIECE_BYTES))
        lsn += PIECE_BYTES
    raise AssertionError("all of it was taken")


def end_at_once(_: Session, stream: CopyStream, __: int) -> None:
    stream.end_copy()


def fail(session: Session, _: CopyStream, __: int) -> None:
    session.send_error("XX001", "WAL is damaged here")


LIES: dict[str, tuple[Tells, str]] = {
    "WAL from further on": (tell(lambda lsn: piece(lsn + 8, 8)), "expected WAL at"),
    "WAL from before": (tell(lambda lsn: piece(lsn - 8, 8)), "expected WAL at"),
    "WAL from the end of all": (tell(lambda _: piece((1 << 64) - 9, 8)), "expected WAL at"),
    "a piece twice": (tell(*[lambda lsn: piece(lsn, 8)] * 2), "expected WAL at"),
    "a gap": (tell(lambda lsn: piece(lsn, 8), lambda lsn: piece(lsn + 16, 8)), "expected WAL at"),
    "what is no message": (tell(lambda _: b"zzz"), ""),
    "an empty message": (tell(lambda _: b""), ""),
    "half a header": (tell(lambda lsn: piece(lsn, 8)[:12]), ""),
    "WAL without end": (tell_without_end, "the leader's log ends at"),
    "the end of the stream": (end_at_once, "the stream ended"),
    "an error": (fail, "WAL is damaged here"),
    "nothing": (tell(), "no message was received for 5 s"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_lying_source_is_reported_and_no_longer_used(
    chained: Chained, source_of: Callable[[Tells], LyingSource], lie: str
) -> None:
    tells, why = LIES[lie]
    source = source_of(tells)
    with chained.led() as proposer:
        named_lsn = chained.follow(proposer, source.port)
        refusal = proposer.refusal()
    assert refusal.sqlstate in ("55000", "08P01"), refusal
    assert f"could not take WAL from safekeeper 127.0.0.1:{source.port}: " in str(refusal)
    assert why in str(refusal)
    (command,) = source.commands
    assert command.options == {"node_id": str(LEADER), "chained": "true"}
    assert source.options == [chained.timeline.timeline_id.hex()]
    assert_at_most_named(chained, named_lsn)
    assert_the_next_leader_is_followed(chained)


def assert_at_most_named(chained: Chained, named_lsn: int) -> None:
    """Nothing beyond the WAL that the leader named counts, and no process has stopped."""
    status = chained.status()
    assert status["state"] == "active"
    assert Lsn.parse(status["flush_lsn"]) <= named_lsn
    assert "Traceback" not in chained.safekeeper.log_text()


def assert_the_next_leader_is_followed(chained: Chained) -> None:
    """WAL of the source beyond the leader's position is cut off, and the log continues with the
    leader's WAL."""
    with chained.led() as proposer:
        begin_lsn = int(Lsn.parse(chained.status()["written_lsn"]))
        answer = proposer.ask(append(begin_lsn, begin_lsn + 8, bytes(8)))
        assert isinstance(answer, AppendResponse)
        assert answer.flush_lsn == begin_lsn + 8


def test_wal_that_arrives_after_the_leader_disconnected_is_ignored(
    chained: Chained, source_of: Callable[[Tells], LyingSource]
) -> None:
    may_tell, has_told = Event(), Event()

    def late(_: Session, stream: CopyStream, start_lsn: int) -> None:
        may_tell.wait(TIMEOUT)
        stream.send(piece(start_lsn, 64))
        has_told.set()

    source = source_of(late)
    with chained.led() as proposer:
        chained.follow(proposer, source.port)
        wait_until(lambda: source.commands, TIMEOUT, "the member to read")
    wait_until(lambda: chained.status()["proposer"] is None, TIMEOUT, "the leader to be gone")
    written = chained.status()["written_lsn"]
    may_tell.set()
    assert has_told.wait(TIMEOUT)
    assert_the_next_leader_is_followed(chained)
    assert Lsn.parse(chained.status()["written_lsn"]) == Lsn.parse(written) + 8


# ---- safekeepers that are no source


def refused_source(chained: Chained, port: int) -> str:
    with chained.led() as proposer:
        named_lsn = chained.follow(proposer, port)
        refusal = str(proposer.refusal())
    assert_at_most_named(chained, named_lsn)
    assert_the_next_leader_is_followed(chained)
    return refusal


def test_a_safekeeper_of_another_cluster_is_no_source(
    chained: Chained, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """It has no such timeline, or one of that name that another proposer leads."""
    with SafekeeperProcess(2, tmp_path_factory.mktemp("other") / "safekeeper-2") as other:
        port = int(other.address.rpartition(":")[2])
        assert "no such timeline" in refused_source(chained, port)
        create_timeline(
            other.address, chained.timeline, SERVER, members=(1, 2, 3), start_lsn=START_LSN
        )
        assert "it still follows" in refused_source(chained, port)
        theirs = Chained(other, chained.timeline)
        stranger = NodeId(LEADER.term, b"somebody else is")
        with theirs.led(stranger):
            assert f"it still follows {stranger}" in refused_source(chained, port)


def test_a_member_that_is_its_own_source(chained: Chained) -> None:
    """Its own address is that of its source, by mistake. It waits for itself, and the leader
    streams to it again."""
    port = int(chained.safekeeper.address.rpartition(":")[2])
    with chained.led() as proposer:
        named_lsn = chained.follow(proposer, port)
        wait_until(lambda: (chained.status()["proposer"] or {}).get("wal_from"), TIMEOUT, "it")
        answer = proposer.receive()
        assert isinstance(answer, AppendResponse)
        assert answer.flush_lsn == START_LSN + DIRECT_BYTES
    assert_at_most_named(chained, named_lsn)
    assert_the_next_leader_is_followed(chained)


def test_no_safekeeper_at_the_address_of_the_source(chained: Chained, free_port: int) -> None:
    assert "Connection refused" in refused_source(chained, free_port)
