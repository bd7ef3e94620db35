"""Rule 8 for a donor's stream: the promise is checked before a read, and after it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from acceptor_steps import B1, A, history
from socket_client import SocketClient
from timeline_on_disk import Pusher, leading_pusher
from wal_log import START_LSN

from quorum_wal.pgwire.blocking import CopyStream
from quorum_wal.safekeeper.donor_rule import DonorRule
from quorum_wal.safekeeper.errors import SafekeeperError
from quorum_wal.safekeeper.send_wal import DonorSender


def test_a_stream_is_for_the_promised_ballot_only() -> None:
    published = [(A, 100)]
    rule = DonorRule(A, lambda: published[-1])
    assert rule.limit_lsn() == 100
    assert rule.checked(b"wal") == b"wal"
    published.append((B1, 100))
    for look in (rule.limit_lsn, lambda: rule.checked(b"wal")):
        with pytest.raises(SafekeeperError, match="was promised") as caught:
            look()
        assert caught.value.sqlstate == "55000"


@pytest.fixture
def leader(tmp_path: Path) -> Pusher:
    pusher = leading_pusher(tmp_path)
    pusher.log.append("R1")
    pusher.push()
    return pusher


@pytest.fixture
def client() -> Iterator[SocketClient]:
    client = SocketClient()
    yield client
    client.close()


@pytest.fixture
def stream(client: SocketClient) -> Iterator[CopyStream]:
    session, stream = client.start_copy()
    yield stream
    session.close()


def rival_of(leader: Pusher) -> Pusher:
    terms = history((A, START_LSN), (B1, START_LSN))
    return Pusher(leader.timeline, number=2, node_id=B1, terms=terms)


def test_wal_that_was_read_while_a_greater_ballot_was_promised_is_not_sent(
    leader: Pusher, stream: CopyStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its leader may have cut the log and written other bytes before the read."""
    timeline = leader.timeline
    sender = DonorSender(timeline, START_LSN, A)
    sender.check_start()
    read = timeline.store.read

    def slow_read(lsn: int, length: int) -> bytes:
        wal = read(lsn, length)
        monkeypatch.undo()  # the truncation that the rival orders reads, too
        rival_of(leader).lead()
        return wal

    monkeypatch.setattr(timeline.store, "read", slow_read)
    with pytest.raises(SafekeeperError, match="was promised"):
        sender.run(stream)
    assert sender.sent_lsn == START_LSN


def test_a_stream_that_waits_ends_at_a_greater_promise(leader: Pusher, stream: CopyStream) -> None:
    """It has nothing to read, so there is no check after a read."""
    sender = DonorSender(leader.timeline, leader.log.lsn, A)
    sender.check_start()
    rival = rival_of(leader)
    leader.timeline.connect(rival)
    rival.vote()
    with pytest.raises(SafekeeperError, match="was promised"):
        sender.run(stream)
