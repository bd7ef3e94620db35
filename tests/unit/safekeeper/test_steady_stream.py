"""A stream that is cut anywhere, on a real socket: by the steady path and by the general one.

The same answers, state and files, and the same system calls in the same order, interpreted and
compiled. Laws that a difference alone would not show are checked separately.
"""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from random import Random
from typing import Any

import bugs_of_steady_path as bugs
import pytest
from acceptor_steps import A, append, configure, elected, history, stamped, vote_request
from msgspec import structs
from socket_client import SocketClient
from steady_keeper import ODDITIES, NoSteadyPath, Standby, files_of, find_hole, state_of
from timeline_on_disk import create_timeline
from wal_log import START_LSN

from quorum_wal.consensus.codec import encode
from quorum_wal.consensus.errors import ConsensusError
from quorum_wal.consensus.messages import Append, Follow
from quorum_wal.pgwire.errors import CopyEnded, WireError
from quorum_wal.pgwire.messages import CopyDone, CopyFail, Terminate
from quorum_wal.safekeeper.errors import SafekeeperError
from quorum_wal.safekeeper.receive_wal import WalReceiver
from quorum_wal.safekeeper.steady_path import SteadyPath
from quorum_wal.storage.errors import StorageError
from tests.call_log import AnsweredBeforeFlush, Call, CallLog, NotFlushed, with_calls_noted
from tests.call_log import check_order as check_calls
from tests.steady_batch import framed

#: Those with WAL of the log.
SOUND = (None, "commits", "commits all", "truncates")
#: Messages of the proposer between its Appends.
MESSAGES = ("configured", "configured again", "elected again", "follow")
#: How a stream ends, or breaks.
ENDS: dict[str, bytes] = {
    "CopyDone": CopyDone().encode(),
    "CopyFail": CopyFail("it says").encode(),
    "Terminate": Terminate().encode(),
    "an impossible length": b"d\xff\xff\xff\xff",
    "no frame": b"\0\0\0\0\0\0\0\0",
}
EVENTS = ("feedback", "holes", "positions saved")

#: Lengths of an Append's WAL; how much of it begins the next record.
LENGTHS = (0, 0, 1, 7, 100, 100, 100, 100, 8192, 30_000, 200_000)
RESTS = (0, 0, 3)
#: So many bytes arrive together.
CUTS = (1, 3, 5, 40, 59, 61, 200, 200, 900, 900, 9000, 60_000)
SEEDS = 25


class StaleBallotAccepted(AssertionError):
    """WAL of another ballot is in the log."""


class Keeper:
    """A timeline, and its end of the connection that streams to it."""

    def __init__(self, folder: Path, path: type[SteadyPath], calls: CallLog) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        self.timeline = create_timeline(folder)
        self.timeline.steady_path_class = path  # type: ignore[misc]
        self.standby = Standby(self.timeline)
        self.folder, self.calls = folder, calls
        self.said: list[object] = []
        self.number, self.generation = 0, 1
        self.general_answers = self.answers = 0
        self.notes: list[object] = []
        self.connect()

    def connect(self) -> None:
        self.number += 1
        self.is_open = True
        self.client = SocketClient()
        self.session, self.stream = self.client.start_copy()
        self.client.socket.setblocking(False)
        os.set_blocking(self.client.server_socket.fileno(), False)
        self.receiver = WalReceiver(self.number, self.session, "here")
        #: Bytes that were cut off, and arrive later.
        self.waiting = bytearray()
        self.lsn = self.timeline.positions.flush_lsn
        self.timeline.connect(self.receiver)
        self.come(self.elected())

    def elected(self) -> bytes:
        membership = stamped(A, self.generation)
        terms = history((A, START_LSN))
        event = elected(A, self.lsn, terms, self.number, membership=membership)
        return bytes(framed([encode(vote_request(A, 1).message), encode(event.message)]))

    def come(self, data: bytes) -> None:
        """Puts it into the socket, and serves it."""
        self.client.socket.sendall(data)
        with self.calls.noting():
            try:
                self.serve()
            except (
                *(SafekeeperError, StorageError, ConsensusError),
                WireError,
                CopyEnded,
            ) as error:
                self.said.append((type(error).__name__, str(error)))
                self.is_open = False
            notes = self.calls.take()
        check_calls(notes)
        # Only of segments: other files are replaced, and their numbers may be reused.
        files = {path.stat().st_ino: path.name for path in (self.folder / "wal").iterdir()}
        self.notes += [(n.kind.name, files.get(n.inode), n.offset, n.count) for n in notes]
        self.hear([n.count for n in notes if n.kind is Call.SEND])

    def serve(self) -> None:
        """Does what `WalReceiver.run` does, while there is data."""
        while True:
            steady = self.timeline.steady_path(self.number)
            if steady is not None:
                steady.run(self.stream)
            payloads = self.stream.drain(timeout=0)
            if not payloads:
                return
            for answer in self.timeline.receive_payloads(self.number, payloads):
                self.general_answers += 1
                self.stream.send(answer)

    def hear(self, sent: list[int]) -> None:
        data = bytearray()
        try:
            while part := self.client.socket.recv(1 << 16):
                data += part
        except BlockingIOError:
            pass  # no more answers
        self.answers += len(sent)
        self.said.append((bytes(data), state_of(self.timeline), self.receiver.closed_reason))
        if self.timeline.positions.written_lsn > self.lsn:
            raise StaleBallotAccepted

    def do(self, step: Any, cuts: Iterator[int]) -> None:
        if isinstance(step, str) and step in EVENTS:
            self.happen(step)
            return
        self.waiting += self.frame_of(step)
        while self.is_open and len(self.waiting) > (cut := next(cuts)):
            self.come(bytes(self.waiting[:cut]))
            del self.waiting[:cut]
        if not self.is_open:
            self.hang_up()
            self.connect()

    def hang_up(self) -> None:
        self.timeline.disconnect(self.receiver)
        self.session.close()
        self.client.close()

    def frame_of(self, step: Any) -> bytes:
        if isinstance(step, tuple):
            return bytes(framed([self.append_of(*step)]))
        if step in ENDS:
            return ENDS[step]
        if step == "elected again":
            return self.elected()
        if step == "follow":
            return bytes(framed([encode(Follow(self.generation, A, "elsewhere", 1))]))
        self.generation += step == "configured"
        return bytes(framed([encode(configure(stamped(A, self.generation)).message)]))

    def append_of(self, length: int, rest: int, oddity: str | None) -> bytes:
        begin_lsn, record_end_lsn = self.lsn, self.lsn + max(0, length - rest)
        event = append(
            *(A, begin_lsn, length, 1, record_end_lsn), generation=self.generation, wal=b""
        )
        wal = bytes((begin_lsn + at) % 251 for at in range(min(length, 100))).ljust(length, b"\xa5")
        assert isinstance(event.message, Append)
        payload = encode(structs.replace(event.message, wal=wal))
        if oddity in SOUND:
            self.lsn += length
        return ODDITIES[oddity](payload) if oddity else payload

    def happen(self, event: str) -> None:
        timeline = self.timeline
        with self.calls.noting():
            if event == "feedback":
                self.standby.send_feedback(len(self.said))
            elif event == "holes":
                find_hole(timeline)
            else:
                timeline.save_positions()
            self.calls.take()
        self.said.append(state_of(timeline))


def random_step(random: Random) -> Any:
    if random.random() < 0.04:
        return random.choice(MESSAGES)
    if random.random() < 0.06:
        return random.choice([*ENDS, *EVENTS])
    oddity = random.choice(sorted(ODDITIES)) if random.random() < 0.1 else None
    return random.choice(LENGTHS), random.choice(RESTS), oddity


def play(keeper: Keeper, seed: int) -> dict[str, Any]:
    """The compared results, by name."""
    random = Random(f"steady stream {seed}")
    cuts = (random.choice(CUTS) for _ in itertools.count())
    try:
        for step in [random_step(random) for _ in range(40)]:
            keeper.do(step, cuts)
        keeper.come(bytes(keeper.waiting))
    finally:
        keeper.hang_up()
    files = files_of(keeper.timeline, keeper.folder)
    return {"answers and state": keeper.said, "files": files, "calls": keeper.notes}


def compare(folder: Path, calls: CallLog, path: type[SteadyPath]) -> tuple[int, int]:
    """Returns how many answers the steady path gave, and how many the general one."""
    steady_answers = general_answers = 0
    for seed in range(SEEDS):
        steady = Keeper(folder / "steady", path, calls)
        found = play(steady, seed)
        expected = play(Keeper(folder / "general", NoSteadyPath, calls), seed)
        for what, content in expected.items():
            assert found[what] == content, f"seed {seed}: the {what} differ"
        steady_answers += steady.answers - steady.general_answers
        general_answers += steady.general_answers
    return steady_answers, general_answers


def keep_the_laws(folder: Path, calls: CallLog) -> None:
    for seed in range(SEEDS):
        play(Keeper(folder / "steady", SteadyPath, calls), seed)


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk() -> None:
    """The library that records the calls does not wait for the disk either."""


@pytest.mark.parametrize("name", ["steady_path", "steady_path_compiled"])
def test_the_same_of_both(request: pytest.FixtureRequest, tmp_path: Path, name: str) -> None:
    calls = with_calls_noted(request, tmp_path)
    if calls is None:
        return
    path = import_module(f"quorum_wal.safekeeper.{name}").SteadyPath
    steady_answers, general_answers = compare(tmp_path, calls, path)
    assert steady_answers > 200, "most went by the general path"
    assert general_answers > 100, "nothing odd met a steady path"


@pytest.mark.parametrize(
    ("bug", "seen_as"),
    [
        (bugs.without_a_flush, NotFlushed),
        (bugs.an_answer_before_the_flush, AnsweredBeforeFlush),
        (bugs.a_stale_ballot_accepted, StaleBallotAccepted),
    ],
)
def test_a_planted_bug_is_caught_as_what_it_is(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    bug: Callable[[pytest.MonkeyPatch], None],
    seen_as: type[AssertionError],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = with_calls_noted(request, tmp_path)
    if calls is None:
        return
    bug(monkeypatch)
    with pytest.raises(AssertionError) as caught:
        keep_the_laws(tmp_path, calls)
    assert type(caught.value) is seen_as
