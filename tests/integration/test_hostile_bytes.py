"""Random bytes on all ports: the ports survive them, and commits are not affected.

The push conversations are those of a real proposer, changed to timelines that no test uses. On the
timeline in use, a mutation that requests a greater term would lawfully fence its proposer.
"""

from __future__ import annotations

import os
import random
import secrets
import socket
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import hand_written_proposer as by_hand
import pytest
from hand_written_proposer import command, create_timeline, named
from hostile_streams import copy_data, mutate, mutate_bytes, split_packets, throw
from msgspec import structs
from reckoning import assert_nothing_lost
from recording_proxy import RecordingProxy

from quorum_wal.access.admission import DEFAULT_LIMITS
from quorum_wal.consensus.codec import APPEND_RESPONSE, decode_proposer_message, encode
from quorum_wal.consensus.ids import NodeId, TimelineId
from quorum_wal.consensus.membership import Membership, Stamp
from quorum_wal.consensus.messages import (
    Append,
    Configure,
    Elected,
    ProposerGreeting,
    ServerFacts,
    VoteRequest,
)
from quorum_wal.consensus.term_history import TermHistory
from quorum_wal.pg_fixtures.cluster import QuorumCluster
from quorum_wal.pg_fixtures.http_status import is_healthy
from quorum_wal.pg_fixtures.ledger import Ledger
from quorum_wal.pg_fixtures.postgres import Postgres
from quorum_wal.pg_fixtures.proposer import ProposerProcess
from quorum_wal.pg_fixtures.safekeeper import SafekeeperProcess
from quorum_wal.pg_fixtures.waiting import wait_until
from quorum_wal.pgwal.lsn import Lsn
from quorum_wal.pgwire.replication import StandbyStatus
from quorum_wal.pgwire.startup import StartupMessage
from quorum_wal.walproposer.errors import Unreachable
from quorum_wal.walproposer.safekeeper_client import SafekeeperAddress, SafekeeperClient
from quorum_wal.walproposer.stream.copy_connection import CopyConnection
from quorum_wal.walproposer.stream.peer import open_donor

SEED_VARIABLE = "SK_HOSTILE_SEED"
COUNT_VARIABLE = "SK_HOSTILE_STREAMS"
STREAMS = int(os.environ.get(COUNT_VARIABLE) or 1_500)
HTTP_STREAMS = STREAMS // 3
TIMEOUT = 120.0
# 24 connections at once, with buffers of 2 MiB and more, and the reserve of the allocator.
RSS_GROWTH_BYTES_MAX = 192 << 20
STRANGERS_MAX = DEFAULT_LIMITS.unauthenticated_max

START_LSN = 0x1100000
STRANGERS = 20  # timelines that no test uses
APPENDS = 6
ANSWER_TO_APPEND = b"d" + struct.pack("!I", 4 + APPEND_RESPONSE.size) + b"A"


@dataclass(frozen=True, slots=True)
class Recorded:
    """Packets that real clients sent. `push` is from a proposer that was elected."""

    push: list[bytes]
    others: list[list[bytes]]


@pytest.fixture
def generator() -> random.Random:
    seed = int(os.environ.get(SEED_VARIABLE) or secrets.randbits(32))
    print(f"{SEED_VARIABLE}={seed}")
    return random.Random(seed)


# ---- recording


def record(cluster: QuorumCluster, primary: Postgres, log_path: Path) -> Recorded:
    """Attach another primary, which knows one safekeeper by the address of the recorder; attach it
    again, commit, read, query. The second proposer finds a timeline that has its members."""
    first, *rest = (safekeeper.address for safekeeper in cluster.safekeepers)
    with RecordingProxy(first) as recorder:
        addresses = [recorder.address, *rest]
        proposer = ProposerProcess(primary.dsn(), addresses, log_path=log_path, configure=True)
        with proposer:
            proposer.wait_streaming()
        earlier = len(recorder.conversations)
        with proposer:
            proposer.wait_streaming()
            wait_until(lambda: streams_to_all(proposer), TIMEOUT, "all safekeepers to be current")
            with Ledger(primary.dsn(), clients=2) as ledger:
                ledger.wait_for_progress(50, TIMEOUT)
            address = SafekeeperAddress.parse(recorder.address)
            status = cluster.safekeepers[0].timeline(proposer.status()["timeline_id"])
            assert status is not None
            read_as_a_donors_reader(address, status)
            ask_everything(address)
        conversations = list(map(split_packets, recorder.conversations[earlier:]))
    forget_strangers(cluster, cluster.safekeepers[0])
    is_push = [any(b"START_WAL_PUSH" in packet for packet in c) for c in conversations]
    push = max((c for c, yes in zip(conversations, is_push, strict=True) if yes), key=len)
    others = [c for c, yes in zip(conversations, is_push, strict=True) if not yes]
    assert len(push) > 5
    assert len(others) > 5
    return Recorded(push, others)


def streams_to_all(proposer: ProposerProcess) -> bool:
    """From then on a commit is an Append of its own to each."""
    return all(each["state"] == "streaming" for each in proposer.status()["safekeepers"])


def read_as_a_donors_reader(address: SafekeeperAddress, status: dict[str, Any]) -> None:
    """A replication client that reads the log and reports its position."""
    begin_lsn = int(Lsn.parse(status["start_lsn"]))
    node_id = by_hand.node_id(status["promised"])
    copy = CopyConnection(open_donor(address, by_hand.timeline_id(status), node_id, begin_lsn))
    with closing(copy):
        for _ in range(3):
            wait_until(copy.receive, TIMEOUT, "some WAL")
            copy.send(StandbyStatus(begin_lsn, begin_lsn, begin_lsn, 0, True).encode())


def ask_everything(address: SafekeeperAddress) -> None:
    client = SafekeeperClient(address)
    client.identify()
    status, *_ = client.timelines()
    client.command("TIMELINE_STATUS", named(by_hand.timeline_id(status)))
    create_timeline(str(address), new_timeline(), SERVER, members=(1, 2, 3), start_lsn=START_LSN)


SERVER = ServerFacts(system_id=7, pg_version=150018, wal_seg_size=1 << 20)


def new_timeline() -> TimelineId:
    return TimelineId(bytes(16), secrets.token_bytes(16))


# ---- changing a conversation


def retell(push: list[bytes], timeline: TimelineId, term: int) -> list[bytes]:
    """The same conversation about another timeline, whose log it writes from the start."""
    node_id = NodeId(term, b"retold retold!!!")
    packets: list[bytes] = []
    lsn = START_LSN
    for packet in push:
        if packet[:1] != b"d":
            packets.append(about(packet, timeline))
            continue
        message = decode_proposer_message(packet[5:])
        match message:
            case ProposerGreeting():
                message = replace(message, timeline=timeline, server=SERVER)
            case VoteRequest():
                message = VoteRequest(Stamp(node_id, message.stamp.generation), node_id)
            case Configure():
                message = Configure(node_id, restamped(message.membership, node_id))
            case Elected():
                history = TermHistory.initial(START_LSN).extended(node_id, START_LSN)
                message = replace(
                    message, node_id=node_id, start_streaming_at=START_LSN,
                    timeline_start_lsn=START_LSN, term_history=history,
                    membership=restamped(message.membership, node_id),
                )  # fmt: skip
            case Append():
                end_lsn = lsn + len(message.wal)
                message = structs.replace(
                    message, node_id=node_id, begin_lsn=lsn, end_lsn=end_lsn,
                    record_end_lsn=end_lsn, commit_lsn=0, truncate_lsn=0,
                )  # fmt: skip
                lsn = end_lsn
        packets.append(copy_data(encode(message)))
    return packets


def restamped(membership: Membership, node_id: NodeId) -> Membership:
    """The same, written by that proposer."""
    return membership.stamped(Stamp(node_id, membership.generation))


def about(packet: bytes, timeline: TimelineId) -> bytes:
    """A startup packet or command that names a timeline, with another name."""
    before, name, after = packet.partition(b"timeline_id=")
    return before + name + timeline.timeline_id.hex().encode() + after[32:] if name else packet


def first_appends(push: list[bytes]) -> list[bytes]:
    """The conversation up to its first few small Appends, without larger ones."""
    kept: list[bytes] = []
    appends = 0
    for packet in push:
        is_append = packet[:1] == b"d" and packet[5:6] == b"a"
        if not is_append or len(packet) < 16384:
            kept.append(packet)
            appends += is_append
            if appends == APPENDS:
                return kept
    raise AssertionError(f"{appends} small Appends of {len(push)} packets")


# ---- the attack


def streams(
    generator: random.Random, recorded: Recorded, timelines: list[TimelineId]
) -> Iterator[bytes]:
    push = first_appends(recorded.push)
    for number in range(STREAMS):
        dice = generator.random()
        if dice < 0.1:
            yield generator.randbytes(1 << generator.randrange(14))
        elif dice < 0.6:
            yield mutate(generator, generator.choice(recorded.others), recorded.others)
        else:
            retold = retell(push, generator.choice(timelines), number + 1)
            yield mutate(generator, retold, recorded.others)


def test_hostile_streams(
    cluster: QuorumCluster,
    generator: random.Random,
    ledger_of: Callable[[QuorumCluster], Ledger],
    postgres_factory: Callable[..., Postgres],
    tmp_path: Path,
) -> None:
    safekeeper = cluster.safekeepers[0]
    primary = postgres_factory("recorded", fresh=True)
    recorded = record(cluster, primary, tmp_path / "proposer.log")
    timelines = [new_timeline() for _ in range(STRANGERS)]
    for timeline in timelines:
        create_timeline(
            safekeeper.address, timeline, SERVER, members=(1, 2, 3), start_lsn=START_LSN
        )
    control = [
        b"".join(retell(first_appends(recorded.push), timelines[0], 1)),
        *(b"".join(conversation) for conversation in recorded.others),
    ]
    assert any(ANSWER_TO_APPEND in answer for answer in throw(safekeeper.address, control))

    pid, rss_bytes, lines = safekeeper.pid, safekeeper.rss_bytes(), log_lines(safekeeper)
    ledger = ledger_of(cluster)
    leader = cluster.proposer.status()["node_id"]
    answers = appended = 0
    for answer in throw(safekeeper.address, streams(generator, recorded, timelines)):
        answers += bool(answer)
        appended += ANSWER_TO_APPEND in answer
    print(f"{answers} streams were answered, {appended} reached the log")
    growth = safekeeper.rss_bytes() - rss_bytes
    print(f"the safekeeper has grown by {growth >> 10} KiB")

    assert safekeeper.alive
    assert safekeeper.pid == pid
    assert answers > STREAMS / 2
    assert appended > STREAMS / 50
    assert "Traceback" not in "\n".join(safekeeper.log_text().splitlines()[lines:])
    assert growth < RSS_GROWTH_BYTES_MAX
    assert cluster.proposer.status()["node_id"] == leader

    forget_strangers(cluster, safekeeper)
    assert_nothing_lost(cluster, ledger)
    safekeeper.restart()
    ledger.resume()
    assert_nothing_lost(cluster, ledger)


def log_lines(safekeeper: SafekeeperProcess) -> int:
    return len(safekeeper.log_text().splitlines())


def forget_strangers(cluster: QuorumCluster, safekeeper: SafekeeperProcess) -> None:
    """Delete what the attack has created or damaged."""
    used = cluster.proposer.status()["timeline_id"]
    for status in safekeeper.status()["timelines"]:
        if status["timeline_id"] != used:
            timeline = by_hand.timeline_id(status)
            command(safekeeper.address, "DELETE_TIMELINE", **named(timeline))


# ---- the HTTP port

#: `sk` for a name that the port answers for without a token.
_REQUESTS = [
    b"GET /status HTTP/1.1\r\nHost: sk\r\nConnection: close\r\n\r\n",
    b"GET /metrics HTTP/1.1\r\nHost: sk\r\nAccept-Encoding: gzip\r\nConnection: close\r\n\r\n",
    b"GET /healthz HTTP/1.0\r\n\r\n",
    b"GET /status HTTP/1.1\r\nHost: sk\r\nAuthorization: Basic c2s6c2s=\r\n\r\n",
    b"HEAD /status?x=1 HTTP/1.1\r\nHost: sk\r\n\r\nGET /metrics HTTP/1.1\r\nHost: sk\r\n\r\n",
    b"POST /status HTTP/1.1\r\nHost: sk\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nh\r\n0\r\n\r\n",
    b"PUT /healthz HTTP/1.1\r\nHost: sk\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\nhello",
    b"GET /../../etc/passwd HTTP/1.1\r\nHost: sk\r\n\r\n",
    b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\nHost: sk\r\n\r\n",
]
REQUESTS = [request.replace(b"Host: sk", b"Host: localhost") for request in _REQUESTS]


def test_hostile_streams_at_the_http_port(
    cluster: QuorumCluster, generator: random.Random, ledger: Ledger
) -> None:
    safekeeper = cluster.safekeepers[0]
    lines = log_lines(safekeeper)
    codes: Counter[bytes] = Counter()
    for answer in throw(safekeeper.http_address, http_streams(generator), patience=0.1):
        codes[answer[9:12]] += 1
    print(dict(codes))
    assert codes[b"200"] >= 4
    assert codes[b"400"] > 10
    assert "Traceback" not in "\n".join(safekeeper.log_text().splitlines()[lines:])
    assert is_healthy(safekeeper.http_address)
    assert_nothing_lost(cluster, ledger)


def http_streams(generator: random.Random) -> Iterator[bytes]:
    yield from REQUESTS
    for _ in range(HTTP_STREAMS - len(REQUESTS)):
        if generator.random() < 0.1:
            yield generator.randbytes(1 << generator.randrange(14))
        else:
            stream = bytearray(generator.choice(REQUESTS))
            for _ in range(generator.randint(1, 3)):
                mutate_bytes(generator, stream)
            yield bytes(stream)


# ---- clients that send nothing, or stop in the middle


def test_half_open_connections_delay_no_other_client(
    cluster: QuorumCluster, generator: random.Random, ledger: Ledger
) -> None:
    """More than the limit of unauthenticated connections. They end with resets."""
    safekeeper = cluster.safekeepers[0]
    threads = threads_count(safekeeper)
    startup, noise = startup_packet(), generator.randbytes(7)
    with ExitStack() as slow:
        for number in range(2 * STRANGERS_MAX):
            sock = slow.enter_context(dial(safekeeper.address))
            sock.sendall([b"", startup[:1], startup[: len(startup) // 2], noise][number % 4])
        ledger.wait_for_progress(50, TIMEOUT)
        assert SafekeeperClient(SafekeeperAddress.parse(safekeeper.address)).identify()
        assert len(cluster.proposer.status()["safekeepers"]) == 3
        assert cluster.proposer.status()["quorum"]["connected"] == 3
        wait_until(
            lambda: threads_count(safekeeper) <= threads + STRANGERS_MAX,
            TIMEOUT, "the oldest to give way",
        )  # fmt: skip
    wait_until(lambda: threads_count(safekeeper) <= threads, TIMEOUT, "their threads to end")
    assert_nothing_lost(cluster, ledger)


def test_too_many_clients_are_refused(cluster: QuorumCluster, ledger: Ledger) -> None:
    """Connected clients stay connected, including the running proposer."""
    safekeeper = cluster.safekeepers[0]
    leader = cluster.proposer.status()["node_id"]
    with ExitStack() as crowd:
        answers = []
        for _ in range(DEFAULT_LIMITS.connections_per_user_max + 5):
            sock = crowd.enter_context(dial(safekeeper.address))
            sock.sendall(startup_packet())
            answers.append(until_ready_or_refused(sock))
        assert [b"C53300\0" in answer for answer in answers[-6:]] == [False, *[True] * 5]
        assert b'Mtoo many connections for role "stranger"\0' in answers[-1]
        ledger.wait_for_progress(50, TIMEOUT)
        assert is_serving(safekeeper)
        assert cluster.proposer.status()["quorum"]["connected"] == 3
    assert "too many connections" in safekeeper.log_text()
    assert cluster.proposer.status()["node_id"] == leader
    assert_nothing_lost(cluster, ledger)


def until_ready_or_refused(sock: socket.socket) -> bytes:
    """The answer of the server up to ReadyForQuery, or to the end of its refusal."""
    answer = b""
    while not answer.endswith(b"Z\0\0\0\5I"):
        data = sock.recv(4096)
        if not data:
            break
        answer += data
    return answer


def is_serving(safekeeper: SafekeeperProcess) -> bool:
    try:
        return bool(SafekeeperClient(SafekeeperAddress.parse(safekeeper.address)).identify())
    except Unreachable:
        return False


def startup_packet() -> bytes:
    """The startup packet of a replication client that names no timeline."""
    return StartupMessage({"user": "stranger", "replication": "true"}).encode()


def dial(address: str) -> socket.socket:
    """A connection that ends with a reset."""
    host, _, port = address.rpartition(":")
    sock = socket.create_connection((host, int(port)), TIMEOUT)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    return sock


def threads_count(safekeeper: SafekeeperProcess) -> int:
    return len(list(Path(f"/proc/{safekeeper.pid}/task").iterdir()))
