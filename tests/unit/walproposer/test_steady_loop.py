"""Streams that are cut anywhere, on real sockets: the steady loop does what the general one does.

The same bytes to each follower, the same positions to the primary, the same state; of the
interpreted and of the compiled one. A law that a difference alone would not name has its own name.
"""

from __future__ import annotations

from collections import Counter
from importlib import import_module
from random import Random
from typing import Any

import pytest
from incarnation_world import Follower, IncarnationWorld, moved_site, reported
from leader_world import wal_of
from msgspec import structs
from proposer_steps import ballot, member
from wal_log import PAGE_SIZE

from quorum_wal.consensus.codec import RESPONSE_POSITIONS, decode_proposer_message
from quorum_wal.consensus.messages import Append, AppendResponse, HotStandbyFeedback
from quorum_wal.pgwire.framing import MESSAGE_BYTES_MAX, FrameBuffer
from quorum_wal.pgwire.messages import CopyDone, CopyFail, ErrorResponse
from quorum_wal.pgwire.replication import Keepalive, XLogData
from quorum_wal.walproposer.chain_rule import NO_CHAINS, ChainRule
from quorum_wal.walproposer.errors import PrimaryLost
from quorum_wal.walproposer.stream import steady_leader, steady_loop
from quorum_wal.walproposer.stream.events import ChangeRequest, ChangeRequested, RoundWanted
from quorum_wal.walproposer.stream.leader import Leader
from quorum_wal.walproposer.stream.steady_leader import SteadyLeader
from tests.steady_batch import framed

SEEDS = 60
STEPS = 120
INTERPRETED = (steady_loop, steady_leader)
#: By weight. The last row is rare: most of it ends a connection, or all of it.
USUAL = ("write",) * 5 + ("answer",) * 12 + ("deliver",) * 2
UNUSUAL = ("tick", "later tick", "keepalive", "page", "feedback", "round", "back", "back")
UNUSUAL += ("stall", "go on", "go on", "burst", "more than was sent")
RARE = ("lower ballot", "another generation", "peer CopyDone", "peer CopyFail", "no frame")
RARE += ("change", "learner", "close")
ENDS = ("greater ballot", "primary CopyDone", "primary error", "wrong begin", "no WAL")
LENGTHS = (32, 32, 100, 500, 3000, 8000)
#: How often what a lost follower lacks does not fit one Append: the window is cut in other places
#: then, so that there may be one more or less.
BURSTS_EVERY = 4
COUNTS = ("sent_count", "wal_count", "taken_count")
CUTS = (1, 4, 5, 24, 30, 88, 89, 200, 1000, 1 << 16, 1 << 16, 1 << 16)


MUST_BE_MET = {"Appends by it": 300, "answers by it": 500, "partial sends": 100}


class CommittedWithoutFlush(AssertionError):
    """No quorum has said that it flushed so much."""


class StaleBallotCounted(AssertionError):
    """A quorum has it, if answers under another ballot count."""


class WindowForgotten(AssertionError):
    """The window does not hold the primary's WAL."""


class Play:
    """A script, by its seed, in one world."""

    def __init__(self, world: IncarnationWorld, seed: int) -> None:
        self.world = world
        self.random = Random(f"steady loop {seed}")
        self.has_bursts = seed % BURSTS_EVERY == 0
        #: By peer, what sound answers said to be flushed, and what others did.
        self.flushed = [0] * 4
        self.stale = [0] * 4
        self.is_over = False
        #: After so many steps a socket had not taken all.
        self.unsent = 0
        self.states: list[dict[str, Any]] = []
        self.ends: list[object] = []
        self.reports: list[list[bytes]] = []

    def run(self) -> None:
        for number in range(STEPS):
            step = self.random.choice(USUAL)
            if self.random.random() < 0.12:
                step = self.random.choice(UNUSUAL)
            elif self.random.random() < 0.02:
                step = self.random.choice(RARE)
            elif number > STEPS // 2 and self.random.random() < 0.01:
                step = self.random.choice(ENDS)
            self.do(step, self.random.choice(self.world.followers[:3]))
            if self.is_over:
                return

    def do(self, step: str, follower: Follower) -> None:
        world, inc = self.world, self.world.incarnation
        if step == "write":
            self.write(*self.random.choices(LENGTHS, k=self.random.choice((1, 1, 1, 3))))
        elif step == "burst":
            self.write(*[20_000 if self.has_bursts else 200] * 8)
        elif step == "page":
            self.write_in_two()
        elif step == "round" and not self.has_bursts:
            inc.step(RoundWanted())
        elif step in ("change", "learner"):
            self.change(step)
        elif step == "back":
            world.come_back(follower.peer)
        elif step in ("stall", "go on"):
            follower.is_stalled = step == "stall"
        elif step.endswith("tick"):
            world.now += 1.0 if step == "later tick" else 0.1
        elif step == "close":
            follower.wire.theirs.shutdown(2)
        elif step in PRIMARY_SAYS:
            world.primary.waiting += PRIMARY_SAYS[step](world)
        elif step not in ("deliver", "round"):
            self.say(step, follower)
        self.go_on(follower)

    def write(self, *lengths: int) -> None:
        world = self.world
        for length in lengths:
            begin_lsn = world.log.lsn
            wal = world.log.append("R", length)
            self.ship(begin_lsn, wal)

    def ship(self, begin_lsn: int, wal: bytes) -> None:
        end_lsn = self.world.log.lsn
        self.world.primary.waiting += framed([XLogData(begin_lsn, end_lsn, 0, wal).encode()])

    def write_in_two(self) -> None:
        """A record that goes on behind the page's end, shipped in two."""
        log = self.world.log
        begin_lsn = log.lsn
        page_lsn = begin_lsn - begin_lsn % PAGE_SIZE + PAGE_SIZE
        log.append("R", page_lsn - begin_lsn + 100)
        self.ship(begin_lsn, log.read(begin_lsn, page_lsn))
        self.ship(page_lsn, log.read(page_lsn, log.lsn))

    def change(self, step: str) -> None:
        core = self.world.incarnation.core
        membership = core.membership
        assert membership is not None
        people = moved_site(membership, f"site {len(self.states)}")
        if step == "learner":
            people = tuple(member(number) for number in (1, 2, 3, 4))
        if core.change is None or core.change.is_finished:
            request = ChangeRequest(membership.generation, people)
            self.world.incarnation.step(ChangeRequested(request))

    def say(self, step: str, follower: Follower) -> None:
        wire = follower.wire
        if not follower.streams:
            return
        if step in PEER_SAYS:
            wire.waiting += PEER_SAYS[step]
            return
        learner = self.world.followers[3]
        follower = learner if learner.streams and self.random.random() < 0.3 else follower
        response = follower.response(self.random.choice((0, 0, 0, 1, 3)))
        is_sound = step in ("answer", "feedback", "more than was sent")
        said = self.flushed if is_sound else self.stale
        if follower.streams:
            said[follower.peer] = max(said[follower.peer], response.flush_lsn)
            follower.say(changed_to(step, response))

    def go_on(self, follower: Follower) -> None:
        """Some of the output arrives, of one connection after the other."""
        world = self.world
        world.primary.deliver(self.random.choice(CUTS))
        for each in world.followers:
            if each is follower or self.random.random() < 0.3:
                each.wire.deliver(self.random.choice(CUTS))
        try:
            world.settle()
        except PrimaryLost as error:
            self.ends.append(str(error))
        if world.incarnation.end is not None:
            self.ends.append(world.incarnation.end)
        self.is_over = bool(self.ends)
        self.check_laws()
        self.unsent += any(f.wire.copy.wants_write for f in world.followers)
        self.states.append(state_of(world))
        world.primary.hear()
        self.reports.append(reported(bytes(world.primary.heard)))

    def check_laws(self) -> None:
        leader = self.world.incarnation.core.leader
        assert leader is not None
        window = leader.window
        if wal_of(window) != self.world.log.read(window.begin_lsn, window.end_lsn):
            raise WindowForgotten
        if leader.commit_lsn > self.quorum_lsn(self.flushed):
            both = [max(pair) for pair in zip(self.flushed, self.stale, strict=True)]
            is_stale = leader.commit_lsn <= self.quorum_lsn(both)
            raise StaleBallotCounted if is_stale else CommittedWithoutFlush

    def quorum_lsn(self, flushed: list[int]) -> int:
        """Of three members: while a fourth one enters, a commit needs more."""
        return sorted(flushed)[-2]


#: What the primary says besides WAL that follows.
PRIMARY_SAYS: dict[str, Any] = {
    "keepalive": lambda world: framed([Keepalive(world.log.lsn, 0, True).encode()]),
    "primary CopyDone": lambda _: CopyDone().encode(),
    "primary error": lambda _: ErrorResponse("FATAL", "57P01", "it stops").encode(),
    "wrong begin": lambda world: framed([XLogData(world.log.lsn + 8, 0, 0, bytes(8)).encode()]),
    "no WAL": lambda _: framed([b"?what is this"]),
}
PEER_SAYS = {
    "peer CopyDone": CopyDone().encode(),
    "peer CopyFail": CopyFail("it says").encode(),
    "no frame": b"d\xff\xff\xff\xff",
}


def changed_to(step: str, response: AppendResponse) -> AppendResponse:
    if step == "feedback":
        return structs.replace(response, feedback=HotStandbyFeedback(1, 7, 0, 0, 0))
    if step == "more than was sent":
        return structs.replace(response, durable_lsn=response.durable_lsn + 64)
    if step == "another generation":
        return structs.replace(response, generation=response.generation + 7)
    if step.endswith("ballot"):
        return structs.replace(response, node_id=ballot(9 if "greater" in step else 0))
    return response


def state_of(world: IncarnationWorld) -> dict[str, Any]:
    core, upstream = world.incarnation.core, world.incarnation.upstream
    leader = core.leader
    assert leader is not None
    assert upstream is not None
    window = leader.window
    return {
        "peers": [structs_of(p) for p in core.peers],
        "leader": (leader.commit_lsn, leader.truncate_lsn, leader.rounds.number),
        "round": leader.rounds.is_open,
        "membership": leader.membership,
        "window": (window.begin_lsn, window.end_lsn, window.record_end_lsn),
        "boundary": dict(vars(leader.boundary)),
        "signal": world.incarnation.commit_signal.commit_lsn,
        "upstream": (upstream.next_lsn, upstream.reported_lsn, upstream.primary_end_lsn),
        "silent": world.incarnation.primary_silent_seconds,
        "open": sorted(world.incarnation.peers.open),
    }


def flat(state: dict[str, Any]) -> dict[str, Any]:
    """So that pytest shows what differs, and no more."""
    peers = {f"{n} of {p['peer']}": v for p in state["peers"] for n, v in p.items()}
    return {**state, "peers": None, **peers}


def structs_of(progress: Any) -> dict[str, Any]:
    names = [name for name in progress.__dataclass_fields__ if name != "catch_up"]
    return {name: getattr(progress, name) for name in names if name != "donor_retry_ms"}


def joined_appends(data: bytes) -> list[object]:
    """The messages, neighbouring Appends as one."""
    frames, found = FrameBuffer(), []
    frames.feed(data)
    wal = bytearray()
    for payload in frames.take_copy_data(MESSAGE_BYTES_MAX):
        message = decode_proposer_message(bytes(payload))
        if isinstance(message, Append):
            wal += message.wal
        else:
            found += [bytes(wal), message]
            wal.clear()
    return [*found, bytes(wal)]


def play(
    monkeypatch: pytest.MonkeyPatch, how: Any, seed: int
) -> tuple[dict[str, Any], Counter[str]]:
    """The values to compare, by name; and how much was covered."""
    rule = ChainRule({3: 2}) if seed % 3 == 0 else NO_CHAINS
    world = IncarnationWorld(monkeypatch, how, rule)
    played = Play(world, seed)
    try:
        played.run()
        heard = {f.peer: bytes(f.wire.heard) for f in world.followers}
    finally:
        world.close()
    if played.has_bursts:
        found = {f"sent to {peer}": joined_appends(data) for peer, data in heard.items()}
        for p in (p for state in played.states for p in state["peers"]):
            p.update(dict.fromkeys(COUNTS))
    else:
        found = {f"sent to {peer}": data for peer, data in heard.items()}
    found |= {"states": played.states, "ends": played.ends}
    # A batch of answers is one report on the steady path: the last one says it all.
    found["reports"] = [r[-1:] for r in played.reports]
    counts = {"Appends by it": world.steady_appends, "answers by it": world.steady_answers}
    return found, Counter(counts | {"partial sends": played.unsent})


@pytest.mark.parametrize("suffix", ["", "_compiled"], ids=["interpreted", "compiled"])
def test_the_same_of_both(monkeypatch: pytest.MonkeyPatch, suffix: str) -> None:
    names = ("steady_loop", "steady_leader")
    how = tuple(import_module(f"quorum_wal.walproposer.stream.{name}{suffix}") for name in names)
    counts = Counter[str]()
    for seed in range(SEEDS):
        found, met = play(monkeypatch, how, seed)
        expected, _ = play(monkeypatch, None, seed)
        for number, (ours, theirs) in enumerate(
            zip(found["states"], expected["states"], strict=True)
        ):
            assert flat(ours) == flat(theirs), f"seed {seed}, step {number}"
        for what, content in expected.items():
            assert found[what] == content, f"seed {seed}: {what}"
        counts += met
    assert {what: counts[what] for what in MUST_BE_MET if counts[what] < MUST_BE_MET[what]} == {}


def commit_by_what_is_written(memory: memoryview, at: int) -> tuple[int, int, int]:
    _, written_lsn, commit_lsn = RESPONSE_POSITIONS.unpack_from(memory, at)
    return written_lsn, written_lsn, commit_lsn


def window_forgotten(leader: Leader, steady: SteadyLeader) -> None:
    """The positions are taken, the WAL is not."""
    leader.window.end_lsn = leader.window.record_end_lsn = steady.next_lsn
    steady.wal = []
    TAKE_STEADY(leader, steady)


def any_ballot(memory: memoryview, at: int, head: bytes) -> bool:
    """The NodeId in the head of an answer is not checked."""
    return bytes(memory[at : at + 10]) == bytes(head[:10])


TAKE_STEADY = Leader.take_steady


@pytest.mark.parametrize(
    ("what", "name", "bug", "seen_as"),
    [
        (steady_leader, "answer_positions_at", commit_by_what_is_written, CommittedWithoutFlush),
        (steady_leader, "is_at", any_ballot, StaleBallotCounted),
        (Leader, "take_steady", window_forgotten, WindowForgotten),
    ],
    ids=["a commit without a flush", "a stale ballot counted", "a window forgotten"],
)
def test_a_planted_bug_is_seen_as_what_it_is(
    monkeypatch: pytest.MonkeyPatch, what: Any, name: str, bug: Any, seen_as: type[AssertionError]
) -> None:
    monkeypatch.setattr(what, name, bug)
    with pytest.raises(AssertionError) as caught:
        keep_the_laws(monkeypatch)
    assert type(caught.value) is seen_as


def keep_the_laws(monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(SEEDS):
        play(monkeypatch, INTERPRETED, seed)
