"""The steady path does the same as the general one: the same bytes, answers, errors and state.

Both get the same batches, including unusual ones, and events in between that end a steady state.
"""

from __future__ import annotations

import os
import shutil
import zlib
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import bugs_of_steady_path as bugs
import pytest
from acceptor_steps import A, append, configure, elected, history, stamped, vote_request
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from msgspec import structs
from steady_keeper import ODDITIES, NoSteadyPath, Standby, files_of, find_hole, state_of
from timeline_on_disk import Pusher, create_timeline
from wal_log import START_LSN, WAL_SEG_SIZE

from quorum_wal.consensus.codec import encode
from quorum_wal.consensus.errors import ConsensusError
from quorum_wal.consensus.ids import NodeId
from quorum_wal.consensus.messages import Append
from quorum_wal.safekeeper.errors import SafekeeperError
from quorum_wal.safekeeper.steady_path import SteadyPath
from quorum_wal.storage import durable
from quorum_wal.storage.errors import StorageError
from tests.steady_batch import receive_batch

#: Lengths of an Append's WAL; large ones reach a segment's end in a few batches.
LENGTHS = st.sampled_from([0, 0, 1, 7, 100, 8192, 30_000, 130_000, 400_000])
#: A batch of whole payloads may also be longer than its message; a stream would go on with it.
ODD_PAYLOADS = {**ODDITIES, "longer than it says": lambda payload: payload + b"x"}
EVENTS = ("feedback", "holes", "vote", "reconnect", "another leader", "positions saved")
EVENTS += ("configured", "configured again", "told to go back")
RARELY_ODD: st.SearchStrategy[str | None] = st.sampled_from([None] * 80 + sorted(ODD_PAYLOADS))
#: So many bytes of the next record follow.
RESTS = st.sampled_from([0, 0, 3])
BATCHES = st.lists(st.tuples(LENGTHS, RESTS, RARELY_ODD), min_size=1, max_size=4)
STEPS = st.integers(0, 7).flatmap(lambda n: BATCHES if n else st.sampled_from(EVENTS))
SCRIPTS = st.lists(STEPS, min_size=10, max_size=20)


class Keeper:
    """A timeline, and the connection that streams to it."""

    def __init__(self, folder: Path, path: type[SteadyPath]) -> None:
        self.pusher = Pusher(create_timeline(folder)).lead()
        self.timeline = self.pusher.timeline
        self.timeline.steady_path_class = path  # type: ignore[misc]
        self.standby = Standby(self.timeline)
        self.folder = folder
        self.steady_batches = 0
        self.odd_batches = 0
        self.starts = [(A, START_LSN)]
        self.greatest_term = A.term
        self.generation = 1
        self.said: list[object] = []

    def do(self, act: Callable[[], object]) -> None:
        """Records its answer or its error, and its state afterwards."""
        try:
            self.said.append(act())
        except (SafekeeperError, StorageError, ConsensusError) as error:
            self.said.append((type(error).__name__, str(error)))
        self.said.append(self.state())

    def receive(self, payloads: list[bytes]) -> list[bytes]:
        is_tried = self.timeline.steady_path(self.pusher.number) is not None
        answers, is_steady = receive_batch(self.timeline, self.pusher.number, payloads)
        self.steady_batches += is_steady
        self.odd_batches += is_tried and not is_steady
        return answers

    def state(self) -> dict[str, Any]:
        return {**state_of(self.timeline), "closed": self.pusher.closed_reason}

    @property
    def node_id(self) -> NodeId:
        return self.starts[-1][0]

    def batch(self, parts: list[tuple[int, int, str | None]]) -> None:
        begin_lsn, payloads = self.timeline.positions.written_lsn, []
        for length, rest, oddity in parts:
            record_end_lsn = begin_lsn + max(0, length - rest)
            number = self.pusher.number
            message = append(
                *(self.node_id, begin_lsn, length, number, record_end_lsn),
                generation=self.generation,
            ).message
            wal = bytes((begin_lsn + at) % 251 for at in range(min(length, 100)))
            assert isinstance(message, Append)
            whole = wal.ljust(length, b"\xa5")
            payload = encode(structs.replace(message, wal=whole))
            payloads.append(ODD_PAYLOADS[oddity](payload) if oddity else payload)
            begin_lsn += length
        self.do(lambda: self.receive(payloads))

    def happen(self, event: str) -> None:
        timeline, pusher = self.timeline, self.pusher
        flush_lsn = timeline.positions.flush_lsn
        if event == "feedback":
            self.do(lambda: self.standby.send_feedback(len(self.said)))
        elif event == "holes":
            self.do(lambda: find_hole(timeline))
        elif event == "positions saved":
            self.do(timeline.save_positions)
        elif event == "vote":
            self.greatest_term += 1
            rival = NodeId(self.greatest_term, b"r" * 16)
            self.do(lambda: pusher.send(vote_request(rival, pusher.number)))
        elif event in ("configured", "configured again", "told to go back"):
            self.generation += event == "configured"
            generation = self.generation - (event == "told to go back")
            membership = stamped(self.node_id, generation)
            self.do(lambda: pusher.send(configure(membership, pusher.number)))
        else:
            if event == "another leader":
                self.greatest_term += 1
                self.starts.append((NodeId(self.greatest_term, b"n" * 16), flush_lsn))
            self.lead(flush_lsn)

    def lead(self, flush_lsn: int) -> None:
        """Another connection."""
        old, self.pusher = self.pusher, Pusher(self.timeline, self.pusher.number + 1)
        number, node_id, terms = self.pusher.number, self.node_id, history(*self.starts)
        self.do(lambda: self.timeline.connect(self.pusher))
        self.do(lambda: self.pusher.send(vote_request(node_id, number)))
        membership = stamped(node_id, self.generation)
        event = elected(node_id, flush_lsn, terms, number, membership=membership)
        self.do(lambda: self.pusher.send(event))
        self.do(lambda: self.timeline.disconnect(old))


@pytest.fixture
def syncs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The length of each file when it was flushed; a real flush takes milliseconds."""
    found: list[int] = []
    monkeypatch.setattr(durable, "sync_data", lambda fd, _: found.append(zlib.crc32(content(fd))))
    return found


def content(fd: int) -> bytes:
    return os.pread(fd, WAL_SEG_SIZE, 0)


def play(
    folder: Path, script: list[Any], path: type[SteadyPath]
) -> tuple[list[object], dict[str, Any], Keeper]:
    shutil.rmtree(folder, ignore_errors=True)
    keeper = Keeper(folder, path)
    for step in script:
        if isinstance(step, str):
            keeper.happen(step)
        else:
            keeper.batch(step)
    return keeper.said, files_of(keeper.timeline, folder), keeper


def compare(folder: Path, syncs: list[int], path: type[SteadyPath]) -> tuple[int, int]:
    """Returns how many batches the steady path took, and how many it left."""
    counts = [0, 0]

    @settings(max_examples=100, deadline=None, phases=[Phase.explicit, Phase.generate])
    @given(SCRIPTS)
    def compare_one(script: list[Any]) -> None:
        outcomes = []
        for which in (path, NoSteadyPath):
            syncs.clear()
            said, files, keeper = play(folder, script, which)
            outcomes.append((said, files, syncs.copy() if path is SteadyPath else []))
            counts[0] += keeper.steady_batches
            counts[1] += keeper.odd_batches
        assert outcomes[0] == outcomes[1]

    compare_one()
    return counts[0], counts[1]


@pytest.mark.parametrize("name", ["interpreted", "compiled"])
def test_the_same_of_both(tmp_path: Path, syncs: list[int], name: str) -> None:
    path: type[SteadyPath] = SteadyPath
    if name == "compiled":
        path = import_module("quorum_wal.safekeeper.steady_path_compiled").SteadyPath
    steady_batches, odd_batches = compare(tmp_path / "timeline", syncs, path)
    assert steady_batches > 130, "most went by the general path"
    assert odd_batches > 10, "nothing odd met a steady path"


@pytest.mark.parametrize(
    "bug",
    [
        bugs.without_a_flush,
        bugs.any_ballot_accepted,
        bugs.another_event_forgotten,
        bugs.commit_not_advanced,
        bugs.record_boundary_taken_from_the_end,
        bugs.the_next_segment_in_the_open_file,
    ],
)
def test_a_planted_bug_is_caught(
    tmp_path: Path,
    syncs: list[int],
    bug: Callable[[pytest.MonkeyPatch], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bug(monkeypatch)
    with pytest.raises((AssertionError, ExceptionGroup)):
        compare(tmp_path / "timeline", syncs, SteadyPath)
