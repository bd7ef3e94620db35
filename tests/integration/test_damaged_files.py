"""Damaged files: the timeline reports the damage and takes no part, and the others are served.

Nothing is repaired by a guess: the safekeeper could break a promise that it has forgotten, and lost
WAL could be counted again.
"""

from __future__ import annotations

import hashlib
import random
import secrets
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import crc32c
import hand_written_proposer as by_hand
import pytest
from hand_written_proposer import HandWrittenProposer, command, create_timeline, named
from reckoning import assert_nothing_lost

from quorum_wal.consensus.ids import NodeId, TimelineId
from quorum_wal.consensus.messages import SafekeeperGreeting, VoteRequest, VoteResponse
from quorum_wal.pg_fixtures.cluster import QuorumCluster
from quorum_wal.pg_fixtures.http_status import http_get
from quorum_wal.pg_fixtures.ledger import Ledger
from quorum_wal.pg_fixtures.processes import SK
from quorum_wal.pg_fixtures.safekeeper import SafekeeperProcess
from quorum_wal.pg_fixtures.waiting import wait_until
from quorum_wal.pg_server.program import run_program
from quorum_wal.pgwal.lsn import Lsn
from quorum_wal.pgwal.segment import format_segment_name, segno_of
from quorum_wal.safekeeper.control_state import (
    ControlState,
    decode_control_state,
    encode_control_state,
)
from quorum_wal.safekeeper.data_directory import folder_name
from quorum_wal.walproposer.errors import WalProposerError

SEG_SIZE = 1 << 20
TIMEOUT = 120.0
FIVE_SEGMENTS = "SELECT pg_logical_emit_message(true, 'fill', repeat('x', 5 << 20))"
REASON_TO_LIVE = NodeId(1_000_000, b"written by hand!")


@dataclass(frozen=True, slots=True)
class Specimen:
    """A stopped safekeeper's data directory, with one complete timeline of several segments."""

    data_dir: Path
    control: ControlState

    @property
    def folder(self) -> Path:
        return self.folder_of(self.control.timeline)

    def folder_of(self, timeline: TimelineId) -> Path:
        return self.data_dir / "timelines" / folder_name(timeline)

    def segment_of(self, lsn: int, timeline: TimelineId) -> Path:
        """The segment of a copy that contains the byte at `lsn`."""
        name = format_segment_name(1, segno_of(lsn, SEG_SIZE), SEG_SIZE)
        return self.folder_of(timeline) / "wal" / name

    def add_copy(self) -> TimelineId:
        """Copy the complete timeline under another name."""
        timeline = TimelineId(bytes(16), secrets.token_bytes(16))
        shutil.copytree(self.folder, self.folder_of(timeline))
        control = encode_control_state(replace(self.control, timeline=timeline))
        (self.folder_of(timeline) / "control").write_bytes(control)
        return timeline

    def add_control_file(self, content: bytes | None) -> TimelineId:
        """A new timeline without WAL; its control file has `content`, or is missing."""
        timeline = TimelineId(bytes(16), secrets.token_bytes(16))
        (self.folder_of(timeline) / "wal").mkdir(parents=True)
        if content is not None:
            (self.folder_of(timeline) / "control").write_bytes(content)
        return timeline


@pytest.fixture
def specimen(cluster: QuorumCluster, tmp_path: Path) -> Specimen:
    cluster.postgres.execute(FIVE_SEGMENTS)
    safekeeper, end_lsn = cluster.safekeepers[0], cluster.postgres.flush_lsn()
    wait_until(lambda: commit_lsn(safekeeper) >= end_lsn, TIMEOUT, "the news of the commit")
    status = safekeeper.timeline()
    assert status is not None
    safekeeper.terminate()  # in good order, so its state is saved
    shutil.copytree(safekeeper.data_dir, tmp_path / "specimen")
    safekeeper.start()
    folder = tmp_path / "specimen" / "timelines" / folder_name(by_hand.timeline_id(status))
    control = decode_control_state((folder / "control").read_bytes(), "control")
    assert control.commit_lsn > control.timeline_start_lsn + 3 * SEG_SIZE
    return Specimen(tmp_path / "specimen", control)


def commit_lsn(safekeeper: SafekeeperProcess) -> int:
    timeline = safekeeper.timeline()
    return int(Lsn.parse(timeline["commit_lsn"])) if timeline is not None else 0


@pytest.fixture
def open_specimen() -> Iterator[Callable[[Specimen], SafekeeperProcess]]:
    """Run a safekeeper on it. It answers, but is not healthy, because one timeline is damaged."""
    started: list[SafekeeperProcess] = []

    def open(specimen: Specimen) -> SafekeeperProcess:
        safekeeper = SafekeeperProcess(1, specimen.data_dir)
        started.append(safekeeper)
        safekeeper.start()
        safekeeper.wait_until(lambda: answers(safekeeper), TIMEOUT, "the status page")
        assert http_get(safekeeper.http_address, "/healthz")[0] == 503
        return safekeeper

    yield open
    for safekeeper in started:
        safekeeper.kill()


def answers(safekeeper: SafekeeperProcess) -> bool:
    try:
        return bool(safekeeper.status())
    except OSError:
        return False


def digest(folder: Path) -> str:
    """A digest of the names and contents of all files."""
    sums = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        if path.name == "lock" or path.name.startswith("next-segment"):
            continue  # created by each reader; a spare of zeros, created at each start
        sums.update(str(path.relative_to(folder)).encode() + b"\0" + path.read_bytes())
    return sums.hexdigest()


def assert_votes(safekeeper: SafekeeperProcess, timeline: TimelineId) -> None:
    assert vote_of(safekeeper, timeline).granted


def vote_of(safekeeper: SafekeeperProcess, timeline: TimelineId) -> VoteResponse:
    status = safekeeper.timeline(timeline.timeline_id.hex())
    assert status is not None
    with HandWrittenProposer(safekeeper.address, timeline) as proposer:
        assert isinstance(proposer.ask(by_hand.lawful_greeting(status)), SafekeeperGreeting)
        vote = proposer.ask(VoteRequest(by_hand.membership_of(status).stamp, REASON_TO_LIVE))
    assert isinstance(vote, VoteResponse)
    return vote


def refused(safekeeper: SafekeeperProcess, timeline: TimelineId) -> WalProposerError:
    """The error of a proposer's first message."""
    with pytest.raises(WalProposerError) as refusal:
        HandWrittenProposer(safekeeper.address, timeline)
    return refusal.value


# ---- the control file


def test_every_damage_of_a_control_file_is_refused_and_kept(
    specimen: Specimen, open_specimen: Callable[[Specimen], SafekeeperProcess]
) -> None:
    """Each byte flipped, each length, and more: all in one process, beside an undamaged
    timeline."""
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    generator = random.Random(seed)
    whole = (specimen.folder / "control").read_bytes()
    damages: dict[TimelineId, tuple[str, ...]] = {}
    for at in range(len(whole)):
        flipped = bytearray(whole)
        flipped[at] ^= 1 << generator.randrange(8)
        damages[specimen.add_control_file(bytes(flipped))] = (
            "checksum", "format version", "begins with",
        )  # fmt: skip
    for length in range(len(whole)):
        damages[specimen.add_control_file(whole[:length])] = ("too few", "checksum")
    damages[specimen.add_control_file(whole + b"\0")] = ("checksum",)
    damages[specimen.add_control_file(bytes(len(whole)))] = ("begins with",)
    damages[specimen.add_control_file(None)] = ("does not exist",)
    damages[specimen.add_control_file(whole)] = ("belongs to timeline",)
    before = {timeline: digest(specimen.folder_of(timeline)) for timeline in damages}

    safekeeper = open_specimen(specimen)
    status = safekeeper.status()
    assert [t["timeline_id"] for t in status["timelines"]] == [
        specimen.control.timeline.timeline_id.hex()
    ]
    assert set(status["damaged"]) == {folder_name(timeline) for timeline in damages}
    for timeline, sentences in damages.items():
        reason = status["damaged"][folder_name(timeline)]
        assert any(sentence in reason for sentence in sentences), reason
        assert str(specimen.folder_of(timeline) / "control") in reason

    for timeline in generator.sample(list(damages), 20):
        refusal = refused(safekeeper, timeline)
        assert str(refusal) == status["damaged"][folder_name(timeline)]
        assert refusal.sqlstate == "XX001"
        with pytest.raises(WalProposerError) as not_created:
            create_timeline(
                safekeeper.address, timeline, specimen.control.server, members=(1, 2, 3),
                start_lsn=specimen.control.timeline_start_lsn,
            )  # fmt: skip
        assert not_created.value.sqlstate == "XX001"
    assert_votes(safekeeper, specimen.control.timeline)
    safekeeper.terminate()
    assert {timeline: digest(specimen.folder_of(timeline)) for timeline in damages} == before


def test_another_format_version_asks_for_the_other_release(
    specimen: Specimen, open_specimen: Callable[[Specimen], SafekeeperProcess]
) -> None:
    """Nothing else is wrong with the file."""
    content = bytearray((specimen.folder / "control").read_bytes()[:-4])
    content[4:8] = (4).to_bytes(4, "big")
    newer = specimen.add_control_file(bytes(content) + crc32c.crc32c(content).to_bytes(4, "big"))
    safekeeper = open_specimen(specimen)
    reason = str(refused(safekeeper, newer))
    assert "has format version 4, expected 3" in reason
    assert "Another release" in reason
    assert_votes(safekeeper, specimen.control.timeline)

    command(safekeeper.address, "DELETE_TIMELINE", **named(newer))  # an operator's decision
    assert http_get(safekeeper.http_address, "/healthz")[0] == 200


def test_a_member_without_its_promise_never_votes(cluster: QuorumCluster, ledger: Ledger) -> None:
    """In a running cluster, the control file is damaged, then deleted; the others elect and commit
    without the member."""
    safekeeper, *others = cluster.safekeepers
    (control,) = safekeeper.data_dir.glob("timelines/*/control")
    safekeeper.terminate()
    whole = control.read_bytes()
    flipped = whole[:-1] + bytes([whole[-1] ^ 1])
    for damaged, sentence in ((flipped, "has checksum"), (None, "does not exist")):
        safekeeper.kill()
        control.unlink()
        if damaged is not None:
            control.write_bytes(damaged)
        safekeeper.start()
        safekeeper.wait_until(lambda: answers(safekeeper), TIMEOUT, "the status page")
        cluster.proposer.kill()
        cluster.proposer.start()
        cluster.proposer.wait_streaming()
        ledger.wait_for_progress(50, TIMEOUT)
        wait_until(partial(reason_is, cluster, sentence), TIMEOUT, "the proposer to know why")
        assert (control.read_bytes() if damaged is not None else None) == damaged
        assert control.exists() == (damaged is not None)
        assert by_hand.promise(others[0]) == by_hand.promise(others[1])

    safekeeper.kill()
    control.write_bytes(whole)  # the operator has found the file again
    safekeeper.start()
    assert_nothing_lost(cluster, ledger)
    assert by_hand.promise(safekeeper) == by_hand.promise(others[0])


def reason_is(cluster: QuorumCluster, sentence: str) -> bool:
    """Wait until this is the proposer's reason for the missing safekeeper."""
    return sentence in str(cluster.proposer.status()["safekeepers"][0]["error"])


# ---- the WAL


def test_missing_old_wal_is_a_hole(
    specimen: Specimen, open_specimen: Callable[[Specimen], SafekeeperProcess]
) -> None:
    """The log continues after it, and the member takes part, but does not vote. A short file is
    kept aside; nothing else is changed."""
    commit_lsn = specimen.control.commit_lsn
    holes: dict[TimelineId, tuple[Path, str]] = {}
    short, missing = (specimen.add_copy() for _ in range(2))
    path = specimen.segment_of(commit_lsn - SEG_SIZE, short)
    path.write_bytes(path.read_bytes()[:-1])
    holes[short] = path, "is damaged: it is short"
    path = specimen.segment_of(specimen.control.timeline_start_lsn, missing)
    path.unlink()
    holes[missing] = path, "is damaged: it is missing"

    safekeeper = open_specimen(specimen)
    for timeline, (path, sentence) in holes.items():
        status = safekeeper.timeline(timeline.timeline_id.hex())
        assert status is not None
        assert status["state"] == "active"
        (damage,) = status["damage"]
        assert f"segment {path.name} at " in damage
        assert sentence in damage
        vote = vote_of(safekeeper, timeline)
        assert not vote.granted
        assert vote.flush_lsn == specimen.control.flush_lsn
        assert not path.exists()
    kept = specimen.folder_of(short) / "damaged" / holes[short][0].name
    assert kept.stat().st_size == SEG_SIZE - 1
    assert_votes(safekeeper, specimen.control.timeline)


def test_a_member_whose_flushed_end_is_missing_does_not_vote(
    specimen: Specimen, open_specimen: Callable[[Specimen], SafekeeperProcess]
) -> None:
    """A leader can fill it again. Until then, no byte of the rest is changed."""
    control = specimen.control
    commit_lsn, flushed_lsn = control.commit_lsn, control.flush_lsn
    in_last = commit_lsn % SEG_SIZE
    assert in_last > 100, "the log ends too near to a segment's begin for this test"
    flipped, missing, zeroed = damaged = [specimen.add_copy() for _ in range(3)]
    flip(specimen.segment_of(commit_lsn, flipped), in_last - 10)  # up to 7 bytes are padding
    specimen.segment_of(commit_lsn, missing).unlink()
    specimen.segment_of(commit_lsn, zeroed).write_bytes(bytes(SEG_SIZE))
    before = {timeline: digest(specimen.folder_of(timeline) / "wal") for timeline in damaged}

    safekeeper = open_specimen(specimen)
    for timeline in damaged:
        status = safekeeper.timeline(timeline.timeline_id.hex())
        assert status is not None
        (damage,) = status["damage"]
        assert f"WAL was flushed up to {Lsn(flushed_lsn)} and then lost" in damage
        vote = vote_of(safekeeper, timeline)
        assert not vote.granted
        assert vote.promised == REASON_TO_LIVE
        assert vote.flush_lsn < commit_lsn
    assert_votes(safekeeper, control.timeline)
    safekeeper.terminate()
    after = {timeline: digest(specimen.folder_of(timeline) / "wal") for timeline in damaged}
    assert after == before


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(bytes(content))


# ---- the data directory


def run_safekeeper(data_dir: Path, id: int = 1) -> tuple[int, str]:
    """The exit code and the output of a safekeeper that does not start."""
    done = run_program(
        [
            *(*SK, "safekeeper", "run", "--id", str(id), "--data-dir", data_dir),
            *("--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"),
        ],
        check=False,
        timeout=TIMEOUT,
    )
    return done.returncode, done.stderr


def test_a_foreign_data_directory_is_not_touched(cluster: QuorumCluster, tmp_path: Path) -> None:
    def made(name: str, identity: str | None) -> Path:
        (tmp_path / name).mkdir()
        if identity is None:
            (tmp_path / name / "letters").touch()
        else:
            (tmp_path / name / "safekeeper.json").write_text(identity)
        return tmp_path / name

    code, words = run_safekeeper(cluster.safekeepers[0].data_dir)
    assert code == 1
    assert f'"{cluster.safekeepers[0].data_dir}" is in use by another process' in words
    assert "give this one its own --data-dir" in words

    for data_dir, sentence, hint in (
        (
            made("another", '{"format": 1, "safekeeper_id": 7}'),
            "belongs to safekeeper 7, not 1", "Start it with --id 7",
        ),
        (made("future", '{"format": 3, "safekeeper_id": 1}'), "has format 3", "Another release"),
        (made("letters", None), "is neither empty nor a safekeeper", "Choose an empty"),
        (made("torn", '{"format": 1, "saf'), "could not read", ""),
    ):  # fmt: skip
        before = digest(data_dir)
        code, words = run_safekeeper(data_dir)
        assert code == 1
        assert f'"{data_dir}' in words
        assert sentence in words
        assert hint in words
        assert "Traceback" not in words
        assert digest(data_dir) == before
