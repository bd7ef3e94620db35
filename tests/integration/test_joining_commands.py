"""JOIN_TIMELINE and LEAVE_TIMELINE over the wire, on a real safekeeper, and its status
afterwards."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import hand_written_proposer as by_hand
import pytest
from hand_written_proposer import HandWrittenProposer, command, named
from replication_client import ReplicationClient, ServerError

from quorum_wal.consensus.ids import NodeId, TimelineId
from quorum_wal.consensus.join import TimelineOffer, encode_offer
from quorum_wal.consensus.membership import Member, Membership, Stamp
from quorum_wal.consensus.membership_codec import encode_membership
from quorum_wal.consensus.messages import (
    AppendResponse,
    Configure,
    Elected,
    SafekeeperGreeting,
    ServerFacts,
    VoteRequest,
    VoteResponse,
)
from quorum_wal.consensus.term_history import TermHistory
from quorum_wal.pg_fixtures.safekeeper import SafekeeperProcess
from quorum_wal.pg_fixtures.standby import replica_conninfo
from quorum_wal.pgclient.connection import OWN_CLIENT
from quorum_wal.pgwal.history import TimelineHistory
from quorum_wal.walproposer.errors import Refusal, WalProposerError
from quorum_wal.walproposer.safekeeper_client import SafekeeperAddress
from quorum_wal.walproposer.stream import joining

SEG_SIZE = 1 << 20
START_LSN, JOIN_LSN = SEG_SIZE, 3 * SEG_SIZE
TIMELINE = TimelineId(bytes(16), b"joined".ljust(16))
LEADER = NodeId(5, b"leader".ljust(16))
ROSTER = tuple(Member(i, bytes([i]) * 8, f"10.0.0.{i}", 5454, "here") for i in (1, 2, 3))
OUTSIDE = Membership(Stamp(LEADER, 2), (1, 2, 3), (), ROSTER)
OFFER = TimelineOffer(
    server=ServerFacts(7_123_456, 150_018, SEG_SIZE),
    start_lsn=JOIN_LSN,
    timeline_start_lsn=START_LSN,
    node_id=LEADER,
    membership=OUTSIDE,
    term_history=TermHistory.initial(START_LSN).extended(LEADER, START_LSN),
    tli_history=TimelineHistory(1),
)


@pytest.fixture
def safekeeper(tmp_path: Path) -> Iterator[SafekeeperProcess]:
    with SafekeeperProcess(4, tmp_path / "sk", arguments=("--site", "caf\u00e9")) as running:
        yield running


def join(safekeeper: SafekeeperProcess, offer: TimelineOffer = OFFER) -> None:
    text = encode_offer(offer).hex()
    command(safekeeper.address, "JOIN_TIMELINE", **named(TIMELINE), offer=text)


def leave(safekeeper: SafekeeperProcess, membership: Membership = OUTSIDE) -> None:
    text = encode_membership(membership).hex()
    command(safekeeper.address, "LEAVE_TIMELINE", **named(TIMELINE), membership=text)


def greeted(safekeeper: SafekeeperProcess, proposer: HandWrittenProposer) -> SafekeeperGreeting:
    status = safekeeper.timeline()
    assert status is not None
    answer = proposer.ask(by_hand.lawful_greeting(status))
    assert isinstance(answer, SafekeeperGreeting)
    return answer


def test_it_reports_its_identity(safekeeper: SafekeeperProcess) -> None:
    (row,) = command(safekeeper.address, "IDENTIFY_SAFEKEEPER")
    page = safekeeper.status()
    assert (row["safekeeper_id"], row["site"]) == ("4", "caf\u00e9")
    assert (row["instance"], row["site"]) == (page["instance"], page["site"])
    identity = json.loads((safekeeper.data_dir / "safekeeper.json").read_text())
    assert row["instance"] == identity["instance"]
    safekeeper.restart()
    assert safekeeper.status()["instance"] == row["instance"]


def test_a_safekeeper_joins_follows_leaves_and_names_the_members(
    safekeeper: SafekeeperProcess,
) -> None:
    join(safekeeper)
    status = safekeeper.timeline()
    assert status is not None
    assert (status["state"], status["has_left"]) == ("active", False)
    assert (status["flush_lsn"], status["local_start_lsn"]) == ("0/300000", "0/300000")
    assert by_hand.membership_of(status) == OUTSIDE
    joint = OUTSIDE.joint_with(Stamp(LEADER, 3), (*ROSTER, Member(4, bytes(8), "10.0.0.4", 1)))
    with HandWrittenProposer(safekeeper.address, TIMELINE) as proposer:
        assert not greeted(safekeeper, proposer).has_left
        vote = proposer.ask(VoteRequest(OUTSIDE.stamp, LEADER))
        assert isinstance(vote, VoteResponse)
        assert (vote.granted, vote.flush_lsn, vote.membership) == (True, JOIN_LSN, OUTSIDE)
        elected = Elected(
            LEADER, JOIN_LSN, START_LSN, OUTSIDE, OFFER.term_history, OFFER.tli_history
        )
        for message, generation in ((elected, 2), (Configure(LEADER, joint), 3)):
            answer = proposer.ask(message)
            assert isinstance(answer, AppendResponse)
            assert (answer.generation, answer.flush_lsn) == (generation, JOIN_LSN)
        with pytest.raises(WalProposerError, match="is older than"):
            leave(safekeeper)
        gone = joint.left_to(Stamp(LEADER, 4), (1, 2, 3))
        leave(safekeeper, gone)
        with pytest.raises(WalProposerError):
            proposer.receive()  # its connection is closed
    safekeeper.restart()
    assert not list((safekeeper.data_dir / "timelines").rglob("wal/*"))
    with HandWrittenProposer(safekeeper.address, TIMELINE) as proposer:
        answer = greeted(safekeeper, proposer)
        assert (answer.has_left, answer.promised, answer.membership) == (True, LEADER, gone)
        refusal = proposer.refusal(VoteRequest(Stamp(LEADER, 9), NodeId(9, bytes(16))))
        assert (refusal.sqlstate, "1 at 10.0.0.1:5454" in refusal.hint) == ("55000", True)
    status = safekeeper.timeline()
    assert status is not None
    assert (status["state"], status["has_left"]) == ("left", True)


def test_another_safekeeper_at_the_address_does_not_leave(
    safekeeper: SafekeeperProcess,
) -> None:
    """The safekeeper that the leader means has moved. The one at its address now may be a learner,
    which would lose its log."""
    join(safekeeper)
    address = SafekeeperAddress.parse(safekeeper.address)
    instance = bytes.fromhex(safekeeper.status()["instance"])
    for who in ((4, bytes(8)), (3, instance)):
        with pytest.raises(Refusal, match=f"safekeeper 4 .* answers at .*, expected {who[0]} of"):
            joining.leave(address, TIMELINE, *who, OUTSIDE)
    status = safekeeper.timeline()
    assert status is not None
    assert (status["state"], status["has_left"]) == ("active", False)
    joining.leave(address, TIMELINE, 4, instance, OUTSIDE)
    assert (safekeeper.timeline() or {})["has_left"] is True


def test_readers_get_the_addresses_of_the_members(safekeeper: SafekeeperProcess) -> None:
    """Each command names the members to clients that can use them; stock clients go to the next
    host of their conninfo."""
    join(safekeeper)
    leave(safekeeper)
    present = "2 at 10.0.0.2:5454, 3 at 10.0.0.3:5454"
    conninfo = replica_conninfo([safekeeper.address])
    for asked in ("IDENTIFY_SYSTEM", "SHOW wal_segment_size", "START_REPLICATION 0/300000"):
        with ReplicationClient(conninfo, options=OWN_CLIENT) as client:
            with pytest.raises(ServerError, match="has left timeline") as caught:
                client.command(asked)
            assert caught.value.sqlstate == "55000"
            assert present in caught.value.hint
    with pytest.raises(AssertionError, match=r"FATAL: .* has left timeline") as refused:
        ReplicationClient(conninfo)
    assert present in str(refused.value)


@pytest.mark.parametrize(
    ("name", "options", "sqlstate", "problem"),
    [
        ("JOIN_TIMELINE", {}, "22023", 'option "offer" is missing'),
        ("JOIN_TIMELINE", {"offer": "xyz"}, "22023", 'option "offer" is "xyz", expected bytes'),
        ("JOIN_TIMELINE", {"offer": "00"}, "08P01", "ends inside a field"),
        ("JOIN_TIMELINE", {"offers": "00"}, "22023", 'unrecognized option "offers"'),
        ("LEAVE_TIMELINE", {"membership": "00"}, "08P01", "ends inside a field"),
        (
            "LEAVE_TIMELINE",
            {"membership": encode_membership(OUTSIDE).hex()},
            "42704",
            "no such timeline",
        ),
        (
            "JOIN_TIMELINE",
            {"offer": encode_offer(replace(OFFER, start_lsn=JOIN_LSN + 8)).hex()},
            "22023",
            "is not a segment's start",
        ),
    ],
)
def test_what_cannot_be_done_is_refused(
    safekeeper: SafekeeperProcess, name: str, options: dict[str, str], sqlstate: str, problem: str
) -> None:
    with pytest.raises(WalProposerError, match=problem) as caught:
        command(safekeeper.address, name, **named(TIMELINE), **options)
    assert caught.value.sqlstate == sqlstate
    assert safekeeper.status()["timelines"] == []
