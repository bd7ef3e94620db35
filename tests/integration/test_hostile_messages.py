"""Well-formed messages that break a law: each is refused with the reason, and changes nothing.

They can come from any client of the port; authentication is tested in test_listener_security.py.
One message is lawful for every client: a vote request with a greater term. It fences the running
proposer, and is how a new one takes over.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from typing import Any

import hand_written_proposer as by_hand
import pytest
from hand_written_proposer import HandWrittenProposer, command, create_timeline, named
from msgspec import structs

from quorum_wal.consensus.ids import NodeId, TimelineId
from quorum_wal.consensus.membership import Membership, Stamp
from quorum_wal.consensus.messages import (
    Append,
    AppendResponse,
    Configure,
    Elected,
    ProposerMessage,
    SafekeeperGreeting,
    ServerFacts,
    VoteRequest,
    VoteResponse,
)
from quorum_wal.consensus.term_history import TermHistory, TermStart
from quorum_wal.pg_fixtures.cluster import QuorumCluster
from quorum_wal.pg_fixtures.ledger import Ledger
from quorum_wal.pgclient.errors import ServerError
from quorum_wal.pgclient.questions import ask
from quorum_wal.pgwal.history import TimelineHistory, TimelineSwitch
from quorum_wal.pgwal.lsn import Lsn
from quorum_wal.walproposer.errors import Unreachable, WalProposerError
from quorum_wal.walproposer.safekeeper_client import SafekeeperAddress
from quorum_wal.walproposer.stream.peer import read_tail

SEG_SIZE = 1 << 20
START_LSN = 0x1100000
SERVER = ServerFacts(system_id=7, pg_version=150018, wal_seg_size=SEG_SIZE)
TIMEOUT = 120.0
UUID = b"written by hand!"
FAR_LSN = Lsn(1 << 40)  # above the end of every log here
GREATEST = NodeId((1 << 64) - 1, b"\xff" * 16)

Status = dict[str, Any]


def state_of(cluster: QuorumCluster) -> dict[str, Any]:
    """The state that only the running proposer may change; it continues to move the positions."""
    status = cluster.safekeepers[0].timeline()
    assert status is not None
    del status["proposer"]["silent_seconds"]
    proposer = cluster.proposer.status()
    return {
        **{
            key: status[key]
            for key in (
                "state", "membership", "promised", "last_log_node_id", "tli_history", "proposer",
                "timeline_id", "start_lsn",
            )
        },
        "leader": proposer["node_id"],
        "following": [peer["id"] for peer in proposer["safekeepers"] if peer["connected"]],
    }  # fmt: skip


# ---- messages of a proposer


def lawful_append(status: Status) -> Append:
    """A message that the running proposer could send next."""
    written_lsn = int(Lsn.parse(status["written_lsn"]))
    return Append(
        generation=status["membership"]["generation"],
        node_id=by_hand.node_id(status["promised"]),
        begin_lsn=written_lsn,
        end_lsn=written_lsn + 8,
        record_end_lsn=written_lsn + 8,
        commit_lsn=0,
        truncate_lsn=0,
        wal=bytes(8),
    )


def elected(status: Status, node_id: NodeId, start_lsn: int) -> Elected:
    """A history that diverges from the safekeeper's at `start_lsn`, and declares it."""
    timeline_start_lsn = int(Lsn.parse(status["start_lsn"]))
    generation = status["membership"]["generation"]
    return Elected(
        membership=by_hand.membership_of(status).stamped(Stamp(node_id, generation)),
        node_id=node_id,
        start_streaming_at=start_lsn,
        timeline_start_lsn=timeline_start_lsn,
        term_history=TermHistory.initial(timeline_start_lsn).extended(node_id, start_lsn),
        tli_history=TimelineHistory(1),
    )


def promised(status: Status) -> NodeId:
    """The running proposer."""
    return by_hand.node_id(status["promised"])


def rival(status: Status) -> NodeId:
    """A greater proposer of the promised term, which never asked for a vote."""
    return NodeId(status["promised"]["term"], b"\xff" * 16)


def renamed(elected: Elected, stamp: Stamp) -> Elected:
    """The same election, with a membership of another stamp."""
    return replace(elected, membership=elected.membership.stamped(stamp))


def other_sets(status: Status) -> Membership:
    """A membership with the present stamp and other sets."""
    return Membership(by_hand.membership_of(status).stamp, (1, 2))


def start_lsn(status: Status) -> int:
    return int(Lsn.parse(status["start_lsn"]))


def greeting_of(**changes: Any) -> Callable[[Status], ProposerMessage]:
    return lambda status: by_hand.lawful_greeting(status, **changes)


def another_server(**changes: int) -> Callable[[Status], ProposerMessage]:
    def make(status: Status) -> ProposerMessage:
        lawful = by_hand.lawful_greeting(status)
        return replace(lawful, server=replace(lawful.server, **changes))

    return make


HOSTILE: dict[str, tuple[Callable[[Status], ProposerMessage], str, str]] = {
    "a greeting of another protocol version": (
        greeting_of(protocol_version=1), "42P17", "proposer uses protocol version 1, this"
    ),
    "a greeting for another timeline": (
        greeting_of(timeline=TimelineId(bytes(16), UUID)), "42P17", "greeting for timeline 0000"
    ),
    "a greeting of another system": (
        another_server(system_id=42), "42P17", "primary has system identifier 42, the timeline"
    ),
    "a greeting of another major version": (
        another_server(pg_version=130001), "42P17", "primary is Postgres 13 with 1048576 byte"
    ),
    "a greeting of another segment size": (
        another_server(wal_seg_size=SEG_SIZE * 2), "42P17", "with 2097152 byte segments"
    ),
    "an election with a membership that somebody else wrote": (
        lambda s: renamed(elected(s, GREATEST, start_lsn(s)), Stamp(NodeId(1, UUID), 7)),
        "08P01", "sends a membership that 1/",
    ),
    "an election with an older membership": (
        lambda s: renamed(elected(s, promised(s), start_lsn(s)), Stamp(promised(s), 0)),
        "55000", "is older than",
    ),
    "an election with other members under the stamp that is there": (
        lambda s: replace(elected(s, promised(s), start_lsn(s)), membership=other_sets(s)),
        "XX001", "but was sent with other sets or addresses",
    ),
    "a membership without an election": (
        lambda s: Configure(promised(s), by_hand.membership_of(s)),
        "08P01", "without Elected on this connection",
    ),
    "a membership of one that nobody voted for": (
        lambda s: Configure(GREATEST, Membership(Stamp(GREATEST, 9), (1,))),
        "08P01", "without Elected on this connection",
    ),
    "an election that would truncate what is committed": (
        lambda s: elected(s, rival(s), start_lsn(s)), "XX001", "below the committed"
    ),
    "an election whose start is not where the logs part": (
        lambda s: replace(elected(s, rival(s), start_lsn(s)), start_streaming_at=start_lsn(s) + 8),
        "XX001", "the logs diverge at",
    ),
    "an election with a history of another log": (
        lambda s: replace(
            elected(s, rival(s), start_lsn(s)),
            term_history=TermHistory((
                TermStart(NodeId(0, UUID), start_lsn(s)), TermStart(rival(s), start_lsn(s))
            )),
        ),
        "XX001", "term histories have nothing in common",
    ),
    "an election of a timeline with another start": (
        lambda s: replace(elected(s, rival(s), start_lsn(s)), timeline_start_lsn=SEG_SIZE),
        "XX001", "timeline starts at",
    ),
    "a second election of a ballot with another term history": (
        lambda s: elected(s, by_hand.node_id(s["promised"]), start_lsn(s) + 8),
        "XX001", "was elected with term history",
    ),
    "a second election of a ballot with other Postgres timelines": (
        lambda s: replace(
            elected(s, by_hand.node_id(s["promised"]), start_lsn(s)),
            tli_history=TimelineHistory(2, (TimelineSwitch(1, FAR_LSN),)),
        ),
        "XX001", "and Postgres timelines 1, but now sends",
    ),
    "an append without an election": (lawful_append, "08P01", "without Elected on this connection"),
    "an append in a term that nobody voted for": (
        lambda s: structs.replace(lawful_append(s), node_id=GREATEST),
        "08P01", "without Elected on this connection",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", HOSTILE)
def test_an_unlawful_message_is_refused_and_changes_nothing(
    cluster: QuorumCluster, what: str
) -> None:
    make, sqlstate, sentence = HOSTILE[what]
    safekeeper = cluster.safekeepers[0]
    status = safekeeper.timeline()
    assert status is not None
    before = state_of(cluster)
    with HandWrittenProposer(safekeeper.address, by_hand.timeline_id(status)) as intruder:
        refusal = intruder.refusal(make(status))
    assert (refusal.sqlstate, sentence in str(refusal)) == (sqlstate, True), refusal
    assert state_of(cluster) == before
    assert sentence in safekeeper.log_text()
    assert_commits_go_on(cluster)


def assert_commits_go_on(cluster: QuorumCluster) -> None:
    """The running proposer continues."""
    with Ledger(cluster.postgres.dsn(), clients=2, table="after_the_attack") as ledger:
        ledger.wait_for_progress(10, TIMEOUT)
    cluster.postgres.execute("DROP TABLE after_the_attack")


def test_an_append_in_a_lost_term_is_answered_by_the_promise(cluster: QuorumCluster) -> None:
    """This is how a proposer learns that it is fenced; nothing is written."""
    safekeeper = cluster.safekeepers[0]
    status = safekeeper.timeline()
    assert status is not None
    before = state_of(cluster)
    with HandWrittenProposer(safekeeper.address, by_hand.timeline_id(status)) as intruder:
        answer = intruder.ask(structs.replace(lawful_append(status), node_id=NodeId(0, UUID)))
    assert isinstance(answer, AppendResponse)
    assert answer.node_id == by_hand.node_id(status["promised"])
    assert state_of(cluster) == before
    cluster.wait_flushed(cluster.postgres.flush_lsn())
    cluster.compare_wal()


def test_a_greeting_alone_changes_nothing(cluster: QuorumCluster) -> None:
    safekeeper = cluster.safekeepers[0]
    status = safekeeper.timeline()
    assert status is not None
    before = state_of(cluster)
    with HandWrittenProposer(safekeeper.address, by_hand.timeline_id(status)) as visitor:
        answer = visitor.ask(by_hand.lawful_greeting(status))
        assert isinstance(answer, SafekeeperGreeting)
        assert answer.promised == by_hand.node_id(status["promised"])
        refused_vote = visitor.ask(VoteRequest(Stamp.FIRST, NodeId(0, UUID)))
        assert isinstance(refused_vote, VoteResponse)
        assert not refused_vote.granted
        assert refused_vote.promised == answer.promised
    assert state_of(cluster) == before


# ---- a timeline that no proposer uses, on one safekeeper


@pytest.fixture
def lone_timeline(cluster: QuorumCluster) -> TimelineId:
    """A timeline that no other process reads or writes."""
    timeline = TimelineId(bytes(16), secrets.token_bytes(16))
    create_timeline(
        cluster.safekeepers[0].address, timeline, SERVER, members=(1, 2, 3), start_lsn=START_LSN
    )
    return timeline


def status_of(cluster: QuorumCluster, timeline: TimelineId) -> Status:
    status = cluster.safekeepers[0].timeline(timeline.timeline_id.hex())
    assert status is not None
    del status["last_proposer"], status["last_leader"]  # connected
    return status


def win_term(cluster: QuorumCluster, timeline: TimelineId, term: int) -> HandWrittenProposer:
    """A proposer that was elected on an empty log, and has appended nothing."""
    proposer = HandWrittenProposer(cluster.safekeepers[0].address, timeline)
    status = status_of(cluster, timeline)
    stamp = by_hand.membership_of(status).stamp
    vote = proposer.ask(VoteRequest(stamp, NodeId(term, UUID)))
    assert isinstance(vote, VoteResponse)
    assert vote.granted
    election = elected(status, NodeId(term, UUID), vote.flush_lsn)
    answer = proposer.ask(election)
    assert isinstance(answer, AppendResponse)
    return proposer


def test_only_the_next_byte_is_appended(cluster: QuorumCluster, lone_timeline: TimelineId) -> None:
    refused = {
        "begins at 0/1100008, expected 0/1100000": (START_LSN + 8, START_LSN + 16, START_LSN + 16),
        "begins at 0/10FFFF8, expected 0/1100000": (START_LSN - 8, START_LSN + 8, START_LSN + 8),
        "ends at 0/1100008 before its record end 0/1100010": (
            START_LSN, START_LSN + 8, START_LSN + 16,
        ),
    }  # fmt: skip
    for sentence, (begin_lsn, end_lsn, record_end_lsn) in refused.items():
        with win_term(cluster, lone_timeline, 1) as proposer:
            append = structs.replace(
                lawful_append(status_of(cluster, lone_timeline)),
                begin_lsn=begin_lsn,
                end_lsn=end_lsn,
                record_end_lsn=record_end_lsn,
                wal=bytes(end_lsn - begin_lsn),
            )
            refusal = proposer.refusal(append)
        assert (refusal.sqlstate, sentence in str(refusal)) == ("08P01", True), refusal
        assert status_of(cluster, lone_timeline)["written_lsn"] == str(Lsn(START_LSN))


def test_a_greater_vote_fences_and_is_lawful(
    cluster: QuorumCluster, lone_timeline: TimelineId
) -> None:
    with win_term(cluster, lone_timeline, 1) as old:
        status = status_of(cluster, lone_timeline)
        append, stamp = lawful_append(status), by_hand.membership_of(status).stamp
        with HandWrittenProposer(cluster.safekeepers[0].address, lone_timeline) as new:
            vote = new.ask(VoteRequest(stamp, NodeId(2, UUID)))
            assert isinstance(vote, VoteResponse)
            assert vote.granted
        assert isinstance(old.refusal(append), Unreachable)  # its connection was closed
    status = status_of(cluster, lone_timeline)
    assert status["promised"] == {"term": 2, "uuid": UUID.hex()}
    assert status["written_lsn"] == str(Lsn(START_LSN))


def test_the_newest_connection_of_a_term_wins(
    cluster: QuorumCluster, lone_timeline: TimelineId
) -> None:
    with win_term(cluster, lone_timeline, 1) as older:
        append = lawful_append(status_of(cluster, lone_timeline))
        with win_term(cluster, lone_timeline, 1) as newer:
            assert isinstance(older.refusal(append), Unreachable)
            answer = newer.ask(append)
    assert isinstance(answer, AppendResponse)
    assert answer.flush_lsn == append.end_lsn


def test_an_election_must_name_its_own_ballot(
    cluster: QuorumCluster, lone_timeline: TimelineId
) -> None:
    """Otherwise the log would be attributed to an older ballot than the one that wrote it."""
    status = status_of(cluster, lone_timeline)
    nameless = replace(
        elected(status, NodeId(1, UUID), START_LSN), term_history=TermHistory.initial(START_LSN)
    )
    with HandWrittenProposer(cluster.safekeepers[0].address, lone_timeline) as intruder:
        refusal = intruder.refusal(nameless)
    assert refusal.sqlstate == "XX001"
    assert "does not end with" in str(refusal)
    assert status_of(cluster, lone_timeline) == status


def test_a_timeline_whose_creation_is_unfinished_never_votes(cluster: QuorumCluster) -> None:
    timeline = TimelineId(bytes(16), secrets.token_bytes(16))
    address = cluster.safekeepers[0].address
    create_timeline(
        address, timeline, SERVER, members=(1, 2, 3), start_lsn=START_LSN, activate=False
    )
    status = status_of(cluster, timeline)
    assert status["state"] == "creating"
    messages: tuple[ProposerMessage, ...] = (
        by_hand.lawful_greeting(status),
        VoteRequest(Stamp.FIRST, NodeId(1, UUID)),
        elected(status, NodeId(1, UUID), START_LSN),
    )
    for message in messages:
        with HandWrittenProposer(address, timeline) as intruder:
            refusal = intruder.refusal(message)
        assert "is not active: its creation did not finish" in str(refusal)
        assert refusal.sqlstate == "42P17"
        assert status_of(cluster, timeline) == status
    command(address, "DELETE_TIMELINE", **named(timeline))


def test_a_timeline_is_deleted_under_its_proposer(
    cluster: QuorumCluster, lone_timeline: TimelineId
) -> None:
    address = cluster.safekeepers[0].address
    with win_term(cluster, lone_timeline, 1) as proposer:
        append = lawful_append(status_of(cluster, lone_timeline))
        command(address, "DELETE_TIMELINE", **named(lone_timeline))
        refusal = proposer.refusal(append)
    assert isinstance(refusal, WalProposerError)
    assert cluster.safekeepers[0].timeline(lone_timeline.timeline_id.hex()) is None
    with pytest.raises(WalProposerError, match="no such timeline") as gone:
        HandWrittenProposer(address, lone_timeline)
    assert gone.value.sqlstate == "42704"
    assert "Traceback" not in cluster.safekeepers[0].log_text()


# ---- readers


def test_a_reader_is_refused_what_it_may_not_have(cluster: QuorumCluster) -> None:
    safekeeper = cluster.safekeepers[0]
    status = safekeeper.timeline()
    assert status is not None
    timeline = by_hand.timeline_id(status)
    address = SafekeeperAddress.parse(safekeeper.address)
    promised = by_hand.node_id(status["promised"])
    flush_lsn = int(Lsn.parse(status["flush_lsn"]))
    before = state_of(cluster)
    for node_id, lsn, sqlstate, sentence in (
        (NodeId(promised.term, UUID), flush_lsn, "55000", "log is read for"),
        (promised, flush_lsn + (64 << 20), "XX000", "is ahead of the WAL flush position"),
        (promised, start_lsn(status) - 8, "58P01", "has already been removed"),
    ):
        with pytest.raises(WalProposerError) as refusal:
            read_tail(address, timeline, node_id, lsn, lsn + 8)
        assert (refusal.value.sqlstate, sentence in str(refusal.value)) == (sqlstate, True)
    for nonsense in ("9" * 5000 + "/" + "00" * 16, "1/00", "one/" + "00" * 16):
        with closing(address.connect(timeline)) as connection:
            with pytest.raises(ServerError, match=r"invalid (node id|proposer uuid)") as refused:
                ask(connection.pgconn, f"START_REPLICATION PHYSICAL 0/0 (node_id '{nonsense}')")
            assert refused.value.sqlstate == "08P01"
    assert state_of(cluster) == before
