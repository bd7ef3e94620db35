"""The steady path does what the general one does: the same bytes, answers, errors and state.

Both are fed the same batches, odd ones among them, and events in between that end a steady state.
"""

from __future__ import annotations

import os
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from acceptor_steps import A, append, elected, history, vote_request
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from msgspec import structs
from timeline_on_disk import Pusher, create_timeline
from wal_log import START_LSN, WAL_SEG_SIZE

from consensus.codec import decode_proposer_message, encode
from consensus.errors import ConsensusError
from consensus.ids import NodeId
from consensus.messages import Append, HotStandbyFeedback
from safekeeper.acceptor import Acceptor
from safekeeper.errors import SafekeeperError
from safekeeper.events import HolesChanged
from safekeeper.steady_path import SteadyPath
from safekeeper.timeline import Timeline
from storage import durable
from storage.errors import StorageError

#: Of the WAL of one Append; large ones reach a segment's end in a few batches.
LENGTHS = st.sampled_from([0, 0, 1, 7, 100, 8192, 30_000, 130_000, 400_000])
#: What makes an Append something else than just the next bytes of the log.
ODDITIES: dict[str, Callable[[bytes], bytes]] = {
    "of a lower ballot": lambda payload: ballot(payload, 0),
    "of a greater ballot": lambda payload: ballot(payload, 9),
    "of another generation": lambda payload: payload[:1] + b"\0\0\0\7" + payload[5:],
    "no message": lambda payload: b"?" + payload[1:],
    "cut off": lambda payload: payload[:40],
    "of no bytes": lambda _: b"",
    "longer than it says": lambda payload: payload + b"x",
    "begins later": lambda payload: changed(payload, begin_lsn=8, end_lsn=8),
    "boundary behind its end": lambda payload: changed(payload, record_end_lsn=1 << 40),
    "commits": lambda payload: changed(payload, commit_lsn=START_LSN + 5000),
    "commits all": lambda payload: changed(payload, commit_lsn=1 << 40),
    "truncates": lambda payload: changed(payload, truncate_lsn=START_LSN + 100),
}
EVENTS = ("feedback", "holes", "vote", "reconnect", "another leader", "positions saved")
RARELY_ODD = st.one_of(*[st.none()] * 9, st.sampled_from(sorted(ODDITIES)))
#: So many bytes of the next record are there.
RESTS = st.sampled_from([0, 0, 3])
BATCHES = st.lists(st.tuples(LENGTHS, RESTS, RARELY_ODD), min_size=1, max_size=4)
SCRIPTS = st.lists(st.one_of(*[BATCHES] * 4, st.sampled_from(EVENTS)), min_size=10, max_size=20)


def ballot(payload: bytes, term: int) -> bytes:
    return payload[:5] + term.to_bytes(8, "big") + payload[13:]


def changed(payload: bytes, **deltas: int) -> bytes:
    message = decode_proposer_message(payload)
    assert isinstance(message, Append)
    fields = {name: max(0, getattr(message, name) + delta) for name, delta in deltas.items()}
    return encode(structs.replace(message, **fields))


class Keeper:
    """A timeline, and the connection that streams to it."""

    def __init__(self, folder: Path, *, is_steady: bool) -> None:
        self.pusher = Pusher(create_timeline(folder)).lead()
        self.timeline = self.pusher.timeline
        self.folder = folder
        self.is_steady = is_steady
        self.starts = [(A, START_LSN)]
        self.greatest_term = A.term
        self.said: list[object] = []

    def do(self, act: Callable[[], object]) -> None:
        """What it answers, or how it fails, and its state afterwards."""
        if not self.is_steady:
            self.timeline._steady = None
        try:
            self.said.append(act())
        except (SafekeeperError, StorageError, ConsensusError) as error:
            self.said.append((type(error).__name__, str(error)))
        self.said.append(self.state())

    def state(self) -> dict[str, Any]:
        timeline, acceptor = self.timeline, self.timeline._acceptor
        fields = dict(vars(acceptor)) if acceptor is not None else {}
        return {
            **fields,
            "positions": timeline.positions,
            "state": timeline.state,
            "end_lsn": timeline.store.end_lsn,
            "closed": self.pusher.closed_reason,
        }

    @property
    def node_id(self) -> NodeId:
        return self.starts[-1][0]

    def batch(self, parts: list[tuple[int, int, str | None]]) -> None:
        begin_lsn, payloads = self.timeline.positions.written_lsn, []
        for length, rest, oddity in parts:
            record_end_lsn = begin_lsn + max(0, length - rest)
            number = self.pusher.number
            message = append(self.node_id, begin_lsn, length, number, record_end_lsn).message
            wal = bytes((begin_lsn + at) % 251 for at in range(min(length, 100)))
            assert isinstance(message, Append)
            whole = wal.ljust(length, b"\xa5")
            payload = encode(structs.replace(message, wal=whole))
            payloads.append(memoryview(ODDITIES[oddity](payload) if oddity else payload))
            begin_lsn += length
        self.do(lambda: self.timeline.receive_payloads(self.pusher.number, payloads))

    def happen(self, event: str) -> None:
        timeline, pusher = self.timeline, self.pusher
        flush_lsn = timeline.positions.flush_lsn
        if event == "feedback":
            self.do(lambda: timeline._set_feedback(HotStandbyFeedback(1, 2, 3, 4, flush_lsn % 99)))
        elif event == "holes":
            event = HolesChanged(has_holes=bool(flush_lsn % 2))
            self.do(lambda: timeline._run([event]) if timeline._acceptor is not None else None)
        elif event == "positions saved":
            self.do(timeline.save_positions)
        elif event == "vote":
            self.greatest_term += 1
            rival = NodeId(self.greatest_term, b"r" * 16)
            self.do(lambda: pusher.send(vote_request(rival, pusher.number)))
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
        self.do(lambda: self.pusher.send(elected(node_id, flush_lsn, terms, number)))
        self.do(lambda: self.timeline.disconnect(old))

    def files(self) -> dict[str, bytes]:
        self.timeline.close("the test goes on")
        paths = (path for path in self.folder.rglob("*") if path.is_file())
        return {str(path.relative_to(self.folder)): path.read_bytes() for path in paths}


@pytest.fixture
def takes(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each batch that met a steady path went by it."""
    take, outcomes = SteadyPath.take, list[bool]()

    def counted(self: SteadyPath, payloads: Any) -> bytes | None:
        answer = take(self, payloads)
        outcomes.append(answer is not None)
        return answer

    monkeypatch.setattr(SteadyPath, "take", counted)
    return outcomes


@pytest.fixture
def syncs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How long each file's content was when it was flushed; really to do it takes milliseconds."""
    found: list[int] = []
    monkeypatch.setattr(durable, "sync_data", lambda fd, _: found.append(zlib.crc32(content(fd))))
    return found


def content(fd: int) -> bytes:
    return os.pread(fd, WAL_SEG_SIZE, 0)


def play(
    folder: Path, script: list[Any], *, is_steady: bool
) -> tuple[list[object], dict[str, Any]]:
    shutil.rmtree(folder, ignore_errors=True)
    keeper = Keeper(folder, is_steady=is_steady)
    for step in script:
        if isinstance(step, str):
            keeper.happen(step)
        else:
            keeper.batch(step)
    return keeper.said, keeper.files()


def compare(folder: Path, syncs: list[int]) -> None:
    @settings(max_examples=150, deadline=None, phases=[Phase.explicit, Phase.generate])
    @given(SCRIPTS)
    def compare_one(script: list[Any]) -> None:
        outcomes = []
        for is_steady in (True, False):
            syncs.clear()
            said, files = play(folder, script, is_steady=is_steady)
            outcomes.append((said, files, syncs.copy()))
        assert outcomes[0] == outcomes[1]

    compare_one()


def test_the_same_of_both(tmp_path: Path, takes: list[bool], syncs: list[int]) -> None:
    compare(tmp_path / "timeline", syncs)
    assert takes.count(True) > 100, "most went by the general path"
    assert takes.count(False) > 20, "nothing odd met a steady path"


def without_a_flush(monkeypatch: pytest.MonkeyPatch) -> None:
    of = SteadyPath.of
    monkeypatch.setattr(SteadyPath, "of", lambda acceptor, store, _: of(acceptor, store, bool))


def stale_ballot_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    take = SteadyPath.take

    def any_head(self: SteadyPath, payloads: Any) -> bytes | None:
        self._head = bytes(payloads[0][: len(self._head)])
        return take(self, payloads)

    monkeypatch.setattr(SteadyPath, "take", any_head)


def another_event_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes on with what the acceptor said before: a vote, another leader."""
    run = Timeline._run

    def kept(self: Timeline, events: Any) -> Any:
        before = self._steady
        try:
            return run(self, events)
        finally:
            self._steady = before

    monkeypatch.setattr(Timeline, "_run", kept)


def commit_not_advanced(monkeypatch: pytest.MonkeyPatch) -> None:
    take = Acceptor.take_steady
    monkeypatch.setattr(
        Acceptor,
        "take_steady",
        lambda self, end, record_end, _, truncate: take(self, end, record_end, 0, truncate),
    )


def record_boundary_taken_from_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    take = Acceptor.take_steady
    monkeypatch.setattr(
        Acceptor,
        "take_steady",
        lambda self, end, _, commit, truncate: take(self, end, end, commit, truncate),
    )


@pytest.mark.parametrize(
    "bug",
    [
        without_a_flush,
        stale_ballot_accepted,
        another_event_forgotten,
        commit_not_advanced,
        record_boundary_taken_from_the_end,
    ],
)
def test_a_planted_bug_is_seen(
    tmp_path: Path,
    syncs: list[int],
    bug: Callable[[pytest.MonkeyPatch], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bug(monkeypatch)
    with pytest.raises((AssertionError, ExceptionGroup)):
        compare(tmp_path / "timeline", syncs)
