"""Well-formed messages that break a law: each is refused by name, and changes nothing.

They come from whoever reaches the port; who may is the authentication's business (see
test_listener_security.py). One thing is lawful for anybody who may connect: to ask for a vote with
a greater term. That fences the running proposer, and is how a new one takes over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import hand_written_proposer as by_hand
import pytest
from hand_written_proposer import HandWrittenProposer, command, create_timeline, named

from consensus.ids import NodeId, TimelineId
from consensus.membership import Membership
from consensus.messages import (
    Append,
    AppendResponse,
    Elected,
    ProposerMessage,
    SafekeeperGreeting,
    ServerFacts,
    VoteRequest,
    VoteResponse,
)
from consensus.term_history import TermHistory, TermStart
from pg_fixtures.binaries import PostgresBinaries
from pg_fixtures.cluster import QuorumCluster
from pg_fixtures.ledger import Ledger
from pgwal.history import TimelineHistory
from pgwal.lsn import Lsn
from walproposer.errors import WalProposerError
from walproposer.peer import open_donor, read_tail
from walproposer.safekeeper_client import SafekeeperAddress

SEG_SIZE = 1 << 20
TIMEOUT = 60.0
UUID = b"written by hand!"
GREATEST = NodeId((1 << 64) - 1, b"\xff" * 16)

Status = dict[str, Any]


@pytest.fixture(scope="module")
def cluster(
    pg_binaries: PostgresBinaries,
    initdb_template: Callable[..., Any],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[QuorumCluster]:
    with QuorumCluster(
        tmp_path_factory.mktemp("hostile") / "cluster",
        binaries=pg_binaries,
        wal_seg_size=SEG_SIZE,
        template=initdb_template(pg_binaries, SEG_SIZE),
    ) as cluster:
        cluster.postgres.execute("CREATE TABLE before AS SELECT generate_series(1, 1000)")
        yield cluster


def state_of(cluster: QuorumCluster) -> dict[str, Any]:
    """What nobody but the running proposer may change; it goes on moving the positions."""
    status = cluster.safekeepers[0].timeline()
    assert status is not None
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
    """What the running proposer might send next."""
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
    """A history that parts from the safekeeper's at `start_lsn`, and says so."""
    timeline_start_lsn = int(Lsn.parse(status["start_lsn"]))
    return Elected(
        generation=status["membership"]["generation"],
        node_id=node_id,
        start_streaming_at=start_lsn,
        timeline_start_lsn=timeline_start_lsn,
        term_history=TermHistory.initial(timeline_start_lsn).extended(node_id, start_lsn),
        tli_history=TimelineHistory(1),
    )


def rival(status: Status) -> NodeId:
    """Of the promised term, but greater: the running proposer's equal, who never stood for it."""
    return NodeId(status["promised"]["term"], b"\xff" * 16)


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
        greeting_of(protocol_version=2), "42P17", "proposer speaks protocol version 2, this"
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
    "a greeting of other members": (
        greeting_of(membership=Membership(1, (1, 2))), "42P17", "proposer has members (1, 2)"
    ),
    "a greeting of another generation": (
        greeting_of(membership=Membership(2, (1, 2, 3))), "42P17", "of generation 2, the timeline"
    ),
    "a vote request of another generation": (
        lambda _: VoteRequest(2, GREATEST), "55000", "proposer is at membership generation 2, not 1"
    ),
    "an election of another generation": (
        lambda s: replace(elected(s, GREATEST, start_lsn(s)), generation=7),
        "55000", "proposer is at membership generation 7, not 1",
    ),
    "an election that would truncate what is committed": (
        lambda s: elected(s, rival(s), start_lsn(s)), "XX001", "below the committed"
    ),
    "an election whose start is not where the logs part": (
        lambda s: replace(elected(s, rival(s), start_lsn(s)), start_streaming_at=start_lsn(s) + 8),
        "XX001", "the logs part at",
    ),
    "an election with a history of another log": (
        lambda s: replace(
            elected(s, rival(s), start_lsn(s)),
            term_history=TermHistory((TermStart(NodeId(1, UUID), start_lsn(s)),)),
        ),
        "XX001", "term histories have nothing in common",
    ),
    "an election of a timeline with another start": (
        lambda s: replace(elected(s, rival(s), start_lsn(s)), timeline_start_lsn=SEG_SIZE),
        "XX001", "timeline starts at",
    ),
    "an append without an election": (lawful_append, "08P01", "without Elected on this connection"),
    "an append in a term that nobody voted for": (
        lambda s: replace(lawful_append(s), node_id=GREATEST),
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
    """The running proposer was not harmed."""
    with Ledger(cluster.postgres.dsn(), clients=2, table="after_the_attack") as ledger:
        ledger.wait_for_progress(10, TIMEOUT)
    cluster.postgres.execute("DROP TABLE after_the_attack")


def test_an_append_in_a_lost_term_is_answered_by_the_promise(cluster: QuorumCluster) -> None:
    """That is how a proposer learns that it is fenced; nothing is written."""
    safekeeper = cluster.safekeepers[0]
    status = safekeeper.timeline()
    assert status is not None
    before = state_of(cluster)
    with HandWrittenProposer(safekeeper.address, by_hand.timeline_id(status)) as intruder:
        answer = intruder.ask(replace(lawful_append(status), node_id=NodeId(0, UUID)))
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
        refused_vote = visitor.ask(VoteRequest(1, NodeId(0, UUID)))
        assert isinstance(refused_vote, VoteResponse)
        assert not refused_vote.granted
        assert refused_vote.promised == answer.promised
    assert state_of(cluster) == before
