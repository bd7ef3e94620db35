"""Damaged bytes on a safekeeper's disk: detected, reported, not used for votes, not sent,
repaired."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import hand_written_proposer as by_hand
import pytest
from hand_written_proposer import HandWrittenProposer
from reckoning import TIMEOUT, assert_equal_logs, assert_nothing_lost
from replication_client import ReplicationClient, ServerError
from sk_command import sk, sk_json

from quorum_wal.consensus.messages import SafekeeperGreeting, VoteRequest, VoteResponse
from quorum_wal.pg_fixtures.cluster import QuorumCluster, flush_lsn
from quorum_wal.pg_fixtures.http_status import http_get
from quorum_wal.pg_fixtures.ledger import Ledger
from quorum_wal.pg_fixtures.safekeeper import SafekeeperProcess
from quorum_wal.pg_fixtures.waiting import wait_until
from quorum_wal.pgwal.lsn import Lsn
from quorum_wal.pgwal.segment import format_segment_name, segno_of
from quorum_wal.pgwire.replication import Keepalive
from quorum_wal.safekeeper.control_state import (
    ControlState,
    decode_control_state,
    encode_control_state,
)

SIX_SEGMENTS = "SELECT pg_logical_emit_message(true, 'fill', repeat('x', 6 << 20))"


def control_path(safekeeper: SafekeeperProcess) -> Path:
    (path,) = safekeeper.data_dir.glob("timelines/*/control")
    return path


def control_of(safekeeper: SafekeeperProcess) -> ControlState:
    """The control state on its disk."""
    return decode_control_state(control_path(safekeeper).read_bytes(), "control")


def wal_path(safekeeper: SafekeeperProcess, lsn: int) -> Path:
    control = control_of(safekeeper)
    seg_size, tli = control.server.wal_seg_size, control.tli_history.tli_at(lsn)
    name = format_segment_name(tli, segno_of(lsn, seg_size), seg_size)
    return control_path(safekeeper).parent / "wal" / name


def flip(safekeeper: SafekeeperProcess, lsn: int) -> None:
    """Flip one bit of its WAL at `lsn`."""
    offset = lsn % control_of(safekeeper).server.wal_seg_size
    with wal_path(safekeeper, lsn).open("r+b") as file:
        file.seek(offset)
        (byte,) = file.read(1)
        file.seek(offset)
        file.write(bytes([byte ^ 0x10]))


def first_whole_segment(safekeeper: SafekeeperProcess, lsn: int) -> int:
    """The start of the first segment that lies above `lsn`."""
    seg_size = control_of(safekeeper).server.wal_seg_size
    return lsn + -lsn % seg_size


def refused_wal(safekeeper: SafekeeperProcess, lsn: int) -> ServerError:
    """The error of a stock client that asks for the committed WAL from `lsn` on; it gets no
    byte."""
    host, port = safekeeper.address.rsplit(":", 1)
    with ReplicationClient(f"host={host} port={port} user=replica") as client:
        client.start(f"START_REPLICATION PHYSICAL {Lsn(lsn)}")
        while (message := client.receive()) is not None:
            assert isinstance(message, Keepalive), message
        with pytest.raises(ServerError) as error:
            client.results()
    return error.value


def damage_of(safekeeper: SafekeeperProcess) -> list[str]:
    timeline = safekeeper.timeline()
    assert timeline is not None
    return list(timeline["damage"])


def start(safekeeper: SafekeeperProcess) -> None:
    """Start it, and wait until it answers; it is not healthy."""
    safekeeper.start()
    safekeeper.wait_until(lambda: answers(safekeeper), TIMEOUT, "the status page")


def answers(safekeeper: SafekeeperProcess) -> bool:
    try:
        return safekeeper.timeline() is not None
    except OSError:
        return False


def vote_of(safekeeper: SafekeeperProcess) -> VoteResponse:
    """Request a vote under the ballot that it has promised, so that the next proposer finds no
    greater one."""
    status = safekeeper.timeline()
    assert status is not None
    promised = by_hand.promise(safekeeper)
    with HandWrittenProposer(safekeeper.address, by_hand.timeline_id(status)) as proposer:
        assert isinstance(proposer.ask(by_hand.lawful_greeting(status)), SafekeeperGreeting)
        vote = proposer.ask(VoteRequest(by_hand.membership_of(status).stamp, promised))
    assert isinstance(vote, VoteResponse)
    return vote


def verdict(cluster: QuorumCluster) -> str:
    addresses = ",".join(safekeeper.address for safekeeper in cluster.safekeepers)
    (timeline,) = sk_json("status", "--safekeepers", addresses)["timelines"]
    return str(timeline["verdict"])


def test_a_member_with_a_damaged_end_does_not_vote_and_is_repaired(
    cluster: QuorumCluster, ledger: Ledger
) -> None:
    """It had acknowledged commits that the third member never got, before it learned that they were
    committed. With the shorter log it and the third member would elect a leader without these
    commits."""
    rotten, healthy, late = cluster.safekeepers
    late.kill()
    ledger.wait_for_progress(50, TIMEOUT)
    ledger.pause()
    ledger.wait_idle(TIMEOUT)
    late_lsn, end_lsn = control_of(late).flush_lsn, cluster.postgres.flush_lsn()
    cluster.wait_flushed(end_lsn, TIMEOUT, [rotten, healthy])
    wait_until(lambda: control_of(rotten).flush_lsn >= end_lsn, TIMEOUT, "the position to be saved")
    cluster.proposer.kill()
    rotten.kill()
    healthy.kill()
    control = control_of(rotten)
    heard = replace(control, commit_lsn=late_lsn)
    control_path(rotten).write_bytes(encode_control_state(heard))
    flip(rotten, end_lsn - 16)

    start(rotten)
    (damage,) = damage_of(rotten)
    assert f"WAL was flushed up to {end_lsn}" in damage
    start(late)
    vote = vote_of(rotten)
    assert not vote.granted
    assert vote.flush_lsn < end_lsn
    rotten.kill()
    start(rotten)
    assert not vote_of(rotten).granted, "a restart forgets nothing"
    assert "does not vote until a proposer has repaired it: WAL was flushed up to" in verdict(
        cluster
    )

    healthy.start()
    cluster.proposer.start()
    cluster.proposer.wait_streaming()
    wait_until(lambda: not damage_of(rotten), TIMEOUT, "the member to be whole again")
    assert flush_lsn(rotten) >= end_lsn
    ledger.resume()
    assert_nothing_lost(cluster, ledger)
    assert verdict(cluster).startswith("OK: ")
    assert vote_of(rotten).granted


# ---- committed segments


def test_a_damaged_old_segment_is_not_sent_and_is_repaired(
    quorum_cluster: Callable[..., QuorumCluster], ledger_of: Callable[[QuorumCluster], Ledger]
) -> None:
    """A member without it catches up with the bytes of the other one, whichever is asked first; a
    replica gets an error; the scrub finds it too; and it is repaired from the others, byte for
    byte."""
    cluster = quorum_cluster(wal_seg_size=1 << 20)
    ledger = ledger_of(cluster)
    rotten, _, late = cluster.safekeepers
    late.kill()
    cluster.postgres.execute(SIX_SEGMENTS)
    ledger.wait_for_progress(20, TIMEOUT)
    lsn = first_whole_segment(rotten, control_of(late).flush_lsn) + 300_000
    wait_until(lambda: control_of(rotten).commit_lsn > lsn + (2 << 20), TIMEOUT, "the commit")
    before = wal_path(rotten, lsn).read_bytes()
    cluster.proposer.kill()  # it would repair it before this test can check
    flip(rotten, lsn)

    error = refused_wal(rotten, lsn - lsn % (1 << 20))
    assert error.sqlstate == "XX001"
    assert "is damaged: its bytes are not the bytes that were written" in error.message
    (damage,) = damage_of(rotten)
    assert f"segment {wal_path(rotten, lsn).name} at " in damage
    assert not vote_of(rotten).granted
    rotten.kill()
    start(rotten)
    assert damage_of(rotten), "a restart forgets nothing"
    assert not vote_of(rotten).granted

    start(late)
    cluster.proposer.start()
    cluster.proposer.wait_streaming()
    wait_until(lambda: not damage_of(rotten), TIMEOUT, "the segment to be mended")
    assert wal_path(rotten, lsn).read_bytes() == before
    assert not list(rotten.data_dir.glob("timelines/*/damaged/*"))
    assert_nothing_lost(cluster, ledger)
    assert verdict(cluster).startswith("OK: ")
    assert vote_of(rotten).granted


def test_a_donor_that_finds_damage_sends_nothing_of_it_and_is_named(
    quorum_cluster: Callable[..., QuorumCluster], ledger_of: Callable[[QuorumCluster], Ledger]
) -> None:
    """It is not detected yet, so the donor votes; and there is no other donor."""
    cluster = quorum_cluster(wal_seg_size=1 << 20, safekeeper_arguments=["--scrub-rate", "0"])
    ledger = ledger_of(cluster)
    donor, other, late = cluster.safekeepers
    late.kill()
    cluster.postgres.execute(SIX_SEGMENTS)
    ledger.wait_for_progress(20, TIMEOUT)
    lsn = first_whole_segment(donor, control_of(late).flush_lsn) + 300_000
    wait_until(lambda: control_of(donor).commit_lsn > lsn + (2 << 20), TIMEOUT, "the commit")
    cluster.proposer.kill()  # it may have the WAL itself
    other.kill()
    before = wal_path(donor, lsn).read_bytes()
    flip(donor, lsn)
    assert not damage_of(donor)

    start(late)
    cluster.proposer.start()
    cluster.proposer.wait_streaming()
    wait_until(lambda: damage_of(donor), TIMEOUT, "the donor to meet it")
    named = (
        f"safekeeper 1 ({donor.address}) does not vote until a proposer has repaired it: segment "
    )
    assert f"{named}{wal_path(donor, lsn).name} at " in verdict(cluster)
    tries = catch_ups_of(cluster, late)
    wait_until(lambda: catch_ups_of(cluster, late) > tries + 1, TIMEOUT, "it to be asked again")
    assert flush_lsn(late) <= lsn
    assert not wal_path(late, lsn).exists() or not written_from(late, lsn).strip(b"\0")

    other.start()
    wait_until(lambda: not damage_of(donor), TIMEOUT, "the segment to be mended")
    assert wal_path(donor, lsn).read_bytes() == before
    assert_nothing_lost(cluster, ledger)
    assert verdict(cluster).startswith("OK: ")


def catch_ups_of(cluster: QuorumCluster, safekeeper: SafekeeperProcess) -> int:
    """How often the proposer has used a donor for it."""
    words = re.compile(rf"catching up .*safekeeper={re.escape(safekeeper.address)}")
    return len(words.findall(cluster.proposer.log_text()))


def written_from(safekeeper: SafekeeperProcess, lsn: int) -> bytes:
    """The bytes of its segment from `lsn` on."""
    offset = lsn % control_of(safekeeper).server.wal_seg_size
    return wal_path(safekeeper, lsn).read_bytes()[offset:]


def test_the_scrub_finds_and_reports_damage_in_unread_wal(
    quorum_cluster: Callable[..., QuorumCluster],
) -> None:
    """After a start it checks all old WAL: status, metrics and sk status report its findings."""
    cluster = quorum_cluster(
        wal_seg_size=1 << 20, safekeeper_arguments=["--scrub-rate", "1000", "--scrub-period", "1"]
    )
    cluster.postgres.execute(SIX_SEGMENTS)
    rotten = cluster.safekeepers[0]
    lsn = first_whole_segment(rotten, control_of(rotten).timeline_start_lsn + 1) + 8192 + 21
    wait_until(lambda: control_of(rotten).commit_lsn > lsn + (2 << 20), TIMEOUT, "the commit")
    checksums = control_path(rotten).parent / "checksums" / wal_path(rotten, lsn).name[8:]
    wait_until(checksums.exists, TIMEOUT, "the checksums to be saved")
    before = wal_path(rotten, lsn).read_bytes()
    rotten.kill()
    flip(rotten, lsn)  # the padding of a page header, which no record covers
    start(rotten)
    wait_until(lambda: rotten.status()["scrub"]["passes"], TIMEOUT, "a pass")
    assert rotten.status()["scrub"]["damages_found"] == 1
    metrics = http_get(rotten.http_address, "/metrics")[1]
    assert "sk_scrub_damages_total 1.0" in metrics
    assert "scrub done" in rotten.log_text()
    wait_until(
        lambda: not damage_of(rotten) and wal_path(rotten, lsn).exists(), TIMEOUT, "the mending"
    )
    assert wal_path(rotten, lsn).read_bytes() == before
    assert " ago" in sk("status", "--safekeepers", rotten.address).stdout
    assert_equal_logs(cluster)
