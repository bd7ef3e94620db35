"""Every interleaving of small models: 3 safekeepers, 2 proposers, 2 records, perhaps a power loss.

The proposers have exchanged greetings with those they reach, so each asks for a vote. From there on
every order of deliveries is tried, and in some models, in each, a power loss at every boundary
between two actions of a safekeeper (once in a run): what was not flushed is lost, and the
connections with it. The cores are the real ones; a state that was seen before is not gone into
again. Each proposer's primary is restored from the log that elects it and writes one record.

COMPLETE are gone through to their end, nothing of them is left out: rivals with ballots of one
term, each of which reaches two of the three safekeepers, which is a quorum; the same where the one
that both reach may lose its power; and a proposer after another one whose record only one has, so
that it must be truncated or kept, where any may lose its power. LARGE, where both rivals reach all
three, has no end that could be waited for: a part of it is seen, with jumps.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import combinations, count
from math import inf
from random import Random
from typing import Any

from quorum_wal.consensus.ids import NodeId
from quorum_wal.consensus.messages import Append, VoteResponse
from quorum_wal.pgwal.end_of_wal import find_end_of_wal
from quorum_wal.pgwal.history import TimelineHistory
from quorum_wal.safekeeper.acceptor import Acceptor
from quorum_wal.safekeeper.control_state import ControlState
from quorum_wal.safekeeper.events import Action as NodeAction
from quorum_wal.safekeeper.events import (
    BatchEnded,
    CloseConnection,
    FlushWal,
    PersistControl,
    Received,
    Refuse,
    Reply,
    TruncateWal,
    WriteWal,
)
from quorum_wal.walproposer.primary.primary import Primary
from quorum_wal.walproposer.stream.candidacy import Candidacy
from quorum_wal.walproposer.stream.events import (
    Action,
    CatchUpWal,
    ClosePeer,
    Event,
    ForgetPeer,
    Join,
    Leave,
    OpenPeer,
    PeerConnected,
    PeerLost,
    PeerMessage,
    ReadTail,
    ReportFlushed,
    Send,
    StartCatchUp,
    StartUpstream,
    Stop,
    StopCatchUp,
    TailRead,
    UpstreamStarted,
    WalReceived,
)
from quorum_wal.walproposer.stream.leader import Leader
from quorum_wal.walproposer.stream.proposer import Proposer
from tests.new_timeline import TIMELINE, new_control_state

from .broken_law import check
from .core_copies import copied_proposer, proposer_key, shallow
from .limits import small_limits
from .log import PG_VERSION, START_LSN, SYSTEM_ID, WAL_SEG_SIZE, Log
from .node import SERVER, instance_of
from .primary import FAR_AWAY_LSN
from .world import first_membership

MEMBERSHIP = first_membership(3)
ADDRESSES = tuple((member.host, member.port) for member in MEMBERSHIP.roster)
QUORUM = 2
CHANCE_OF_A_JUMP = 0.1
#: A connection's number is its proposer's place and its node's, so that equal states are equal.
Link = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Model:
    """The safekeepers that each proposer reaches, whether the first one has led and ended before,
    and which safekeepers may lose their power, one of them once."""

    reach: tuple[tuple[int, ...], tuple[int, ...]]
    has_predecessor: bool = False
    losing_power: tuple[int, ...] = ()

    def __str__(self) -> str:
        reach = [",".join(str(place + 1) for place in places) for places in self.reach]
        who = (
            "one after another" if self.has_predecessor else f"rivals at {reach[0]} and {reach[1]}"
        )
        losing = ",".join(str(place + 1) for place in self.losing_power)
        return f"{who}{f', power loss of {losing}' if losing else ''}"


PAIRS = tuple(combinations(range(3), 2))
RIVALS = tuple(Model((a, b)) for a in PAIRS for b in PAIRS)
SHARED = Model(((0, 1), (1, 2)), losing_power=(1,))
SUCCESSOR = Model(((), (0, 1, 2)), has_predecessor=True, losing_power=(0, 1, 2))
COMPLETE = (*RIVALS, SHARED, SUCCESSOR)
LARGE = Model(((0, 1, 2), (0, 1, 2)), losing_power=(0, 1, 2))


@dataclass(slots=True)
class Keeper:
    """A safekeeper and its disk."""

    acceptor: Acceptor
    control: ControlState
    wal: bytes = b""
    flushed_bytes: int = 0


@dataclass(slots=True)
class State:
    """`commits` and `won` are history: no later state may contradict it."""

    keepers: list[Keeper]
    proposers: list[Proposer]
    to_node: dict[Link, tuple[Any, ...]] = field(default_factory=dict)
    to_proposer: dict[Link, tuple[Any, ...]] = field(default_factory=dict)
    votes: dict[tuple[NodeId, int], bytes] = field(default_factory=dict)
    won: dict[NodeId, bytes] = field(default_factory=dict)
    commits: dict[NodeId, bytes] = field(default_factory=dict)
    has_crashed: bool = False

    keys: list[int] = field(default_factory=lambda: [0] * 5)

    def copied(self) -> State:
        """Cores are shared; the code that steps one copies it first (`keeper`, `proposer`)."""
        return State(
            list(self.keepers), list(self.proposers), dict(self.to_node), dict(self.to_proposer),
            self.votes, self.won, self.commits, self.has_crashed, list(self.keys),
        )  # fmt: skip

    def keeper(self, node: int) -> Keeper:
        self.keys[node] = 0
        self.keepers[node] = copied_keeper(self.keepers[node])
        return self.keepers[node]

    def proposer(self, place: int) -> Proposer:
        self.keys[3 + place] = 0
        self.proposers[place] = copied_proposer(self.proposers[place])
        return self.proposers[place]

    def fingerprint(self) -> int:
        for node, keeper in enumerate(self.keepers):
            self.keys[node] = self.keys[node] or hash(keeper_key(keeper))
        for place, core in enumerate(self.proposers):
            self.keys[3 + place] = self.keys[3 + place] or hash(proposer_key(core))
        return hash((
            tuple(self.keys), frozenset(self.to_node.items()), frozenset(self.to_proposer.items()),
            frozenset(self.votes.items()), frozenset(self.won.items()),
            frozenset(self.commits.items()), self.has_crashed,
        ))  # fmt: skip


def copied_keeper(keeper: Keeper) -> Keeper:
    return Keeper(shallow(keeper.acceptor), keeper.control, keeper.wal, keeper.flushed_bytes)


def new_acceptor(node: int, control: ControlState, end_lsn: int) -> Acceptor:
    return Acceptor(node + 1, instance_of(node), control, end_lsn)


def keeper_key(keeper: Keeper) -> tuple[Any, ...]:
    return (*vars(keeper.acceptor).values(), keeper.control, keeper.wal, keeper.flushed_bytes)


@dataclass(slots=True)
class Result:
    states: int = 0
    steps: int = 0
    elections: int = 0
    commits: int = 0
    truncations: int = 0
    crashes: int = 0
    seconds: float = 0.0
    is_complete: bool = False

    def __str__(self) -> str:
        extent = "all of it" if self.is_complete else "as far as the time allowed"
        return (
            f"{self.states} states, {self.steps} steps in {self.seconds:.0f} s ({extent}): "
            f"{self.elections} elections won, {self.commits} commits, {self.truncations} "
            f"truncations, {self.crashes} crashes; every invariant held"
        )


class Search:
    """Depth first; no state is searched twice. With too little time for everything, the search
    should cover distant states: so it continues from another state now and then."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._random = Random(0)
        self.result = Result()
        self._logs: dict[bytes, Log] = {b"": Log()}

    def run(self, seconds: float) -> Result:
        begun = time.process_time()  # CPU time, so that a busy machine searches as much
        first = self._first()
        seen = {first.fingerprint()}
        #: Before the crash and after it, in turn: otherwise nearly all states would follow the
        #: first few crashes.
        whole: list[State] = [first]
        crashed: list[State] = []
        for turn in count():
            if not (whole or crashed) or time.process_time() - begun > seconds:
                break
            frontier = (whole, crashed)[turn % 2] or whole or crashed
            followers = list(self._following(self._take(frontier)))
            self._random.shuffle(followers)
            for following in followers:
                self.result.steps += 1
                key = following.fingerprint()
                if key not in seen:
                    seen.add(key)
                    (crashed if following.has_crashed else whole).append(following)
        self.result.states = len(seen)
        self.result.seconds = time.process_time() - begun
        self.result.is_complete = not (whole or crashed)
        return self.result

    def _take(self, frontier: list[State]) -> State:
        if self._random.random() < CHANCE_OF_A_JUMP:
            place = self._random.randrange(len(frontier))
            frontier[place], frontier[-1] = frontier[-1], frontier[place]
        return frontier.pop()

    def _first(self) -> State:
        control = new_control_state(MEMBERSHIP, SERVER)
        keepers = [Keeper(new_acceptor(node, control, START_LSN), control) for node in range(3)]
        facts = Primary(SERVER, TimelineHistory(1), FAR_AWAY_LSN, START_LSN)
        proposers = [
            Proposer(Candidacy(TIMELINE, SERVER, ADDRESSES, name.ljust(16, b"\0")), facts)
            for name in (b"a", b"b")
        ]
        state = State(keepers, proposers)
        if self._model.has_predecessor:
            self._leave_a_record(state)
        for place in range(2):
            for peer in self._model.reach[place]:
                self._connect(state, place, peer)
        for link in list(state.to_node):
            self._deliver_to_node(state, link, None)
        for link in list(state.to_proposer):
            self._deliver_to_proposer(state, link)
        return state

    def _leave_a_record(self, state: State) -> None:
        """The first proposer wins with two members, and ends when one of them has its record."""
        for peer in (0, 1):
            self._connect(state, 0, peer)
        while True:
            for link in list(state.to_proposer):
                self._deliver_to_proposer(state, link)
            links = [link for link, queue in state.to_node.items()
                     if link[1] == 0 or not isinstance(queue[0], Append)]  # fmt: skip
            if not links:
                break
            for link in links:
                self._deliver_to_node(state, link, None)
        assert [len(keeper.wal) > 0 for keeper in state.keepers] == [True, False, False]
        state.to_node.clear()
        state.to_proposer.clear()

    def _following(self, state: State) -> Iterator[State]:
        for link in state.to_proposer:
            other = state.copied()
            self._deliver_to_proposer(other, link)
            yield other
        for link in state.to_node:
            other = state.copied()
            actions = self._deliver_to_node(other, link, None)
            yield other
            if link[1] in self._model.losing_power and not state.has_crashed:
                for done in range(actions + 1):
                    crashed = state.copied()
                    self._deliver_to_node(crashed, link, done)
                    yield crashed

    # ---- safekeepers

    def _deliver_to_node(self, state: State, link: Link, fails_after: int | None) -> int:
        """One message is read and answered; the power may fail after some actions."""
        message = _pop(state.to_node, link)
        keeper, number = state.keeper(link[1]), link[0]
        done = 0
        for event in (Received(number, message), BatchEnded(number)):
            for action in keeper.acceptor.step(event):
                if done == fails_after:
                    self._crash(state, link[1])
                    return done
                self._carry_out(state, keeper, link[1], action)
                done += 1
        if done == fails_after:
            self._crash(state, link[1])
        self._check_keeper(state, state.keepers[link[1]])
        return done

    def _carry_out(self, state: State, keeper: Keeper, node: int, action: NodeAction) -> None:
        match action:
            case WriteWal(begin_lsn, wal):
                check("OneHistory", begin_lsn == START_LSN + len(keeper.wal), "a gap")
                keeper.wal += wal
            case FlushWal():
                keeper.flushed_bytes = len(keeper.wal)
            case TruncateWal(end_lsn):
                self.result.truncations += 1
                keeper.wal = keeper.wal[: end_lsn - START_LSN]
                keeper.flushed_bytes = len(keeper.wal)
            case PersistControl(control):
                keeper.control = control
            case Reply(place, message):
                if isinstance(message, VoteResponse) and message.granted:
                    vote = keeper.wal[: message.flush_lsn - START_LSN]
                    state.votes = {**state.votes, (message.promised, node): vote}
                _push(state.to_proposer, (place, node), message)
            case Refuse(place) | CloseConnection(place):
                self._lose(state, (place, node))

    def _crash(self, state: State, node: int) -> None:
        """Unflushed WAL is lost; it starts again at once, by decoding its log."""
        self.result.crashes += 1
        state.has_crashed = True
        keeper = state.keeper(node)
        wal = keeper.wal[: keeper.flushed_bytes]
        end = find_end_of_wal(
            lambda lsn, length: wal[lsn - START_LSN :][:length].ljust(length, b"\0"),
            START_LSN,
            wal_seg_size=WAL_SEG_SIZE,
            version_major=PG_VERSION // 10000,
            system_id=SYSTEM_ID,
        )
        keeper.wal = wal[: end.end_lsn - START_LSN]
        keeper.flushed_bytes = len(keeper.wal)
        keeper.acceptor = new_acceptor(node, keeper.control, int(end.end_lsn))
        for place, reached in enumerate(self._model.reach):
            if node in reached:
                self._lose(state, (place, node))

    def _check_keeper(self, state: State, keeper: Keeper) -> None:
        acceptor = keeper.acceptor
        served = keeper.wal[: acceptor.commit_lsn - START_LSN]
        known = max(state.commits.values(), key=len, default=b"")
        check("LogSafety", known.startswith(served), "a safekeeper serves what is not committed")
        check("Durable", acceptor.flush_lsn <= START_LSN + keeper.flushed_bytes, "flush_lsn")
        check("Durable", acceptor.control.promised == keeper.control.promised, "the promise")

    # ---- proposers

    def _connect(self, state: State, place: int, peer: int) -> None:
        self._step(state, place, PeerConnected(peer))

    def _lose(self, state: State, link: Link) -> None:
        """Both ends are notified at once, and the proposer connects again."""
        state.to_node.pop(link, None)
        state.to_proposer.pop(link, None)
        self._step(state, link[0], PeerLost(link[1], "connection lost"))
        self._connect(state, *link)

    def _deliver_to_proposer(self, state: State, link: Link) -> None:
        message = _pop(state.to_proposer, link)
        self._step(state, link[0], PeerMessage(link[1], message))

    def _step(self, state: State, place: int, event: Event) -> None:
        core = state.proposer(place)
        actions = core.step(event)
        node_id = core.node_id
        if core.leader is not None and node_id is not None and node_id not in state.won:
            self._elected(state, core.leader, node_id)
        for action in actions:
            self._execute(state, place, action)

    def _execute(self, state: State, place: int, action: Action) -> None:
        core = state.proposers[place]
        match action:
            case Send(peer, message):
                _push(state.to_node, (place, peer), message)
            case ClosePeer(peer):
                state.to_node.pop((place, peer), None)
                state.to_proposer.pop((place, peer), None)
            case ReadTail(_, begin_lsn, _):
                assert core.node_id is not None
                self._step(state, place, TailRead(state.won[core.node_id][begin_lsn - START_LSN :]))
            case StartUpstream(begin_lsn):
                self._step(state, place, UpstreamStarted(FAR_AWAY_LSN))
                wal = self._primary_log(state, place)[begin_lsn - START_LSN :]
                self._step(state, place, WalReceived(begin_lsn, wal))
            case StartCatchUp(peer, donor, begin_lsn):
                keeper = state.keepers[donor]
                if keeper.control.promised == core.node_id:
                    wal = keeper.wal[begin_lsn - START_LSN : keeper.flushed_bytes]
                    self._step(state, place, CatchUpWal(peer, begin_lsn, wal))
            case ReportFlushed(commit_lsn):
                self._committed(state, place, commit_lsn)
            case OpenPeer() | ForgetPeer() | Join() | Leave():
                raise AssertionError(f"the members do not change here: {action}")
            case StopCatchUp():
                pass  # the WAL that it would bring has arrived
            case Stop():
                for link in [link for link in state.to_proposer if link[0] == place]:
                    del state.to_proposer[link]

    def _primary_log(self, state: State, place: int) -> bytes:
        """The log that was won, and one more record."""
        node_id = state.proposers[place].node_id
        assert node_id is not None
        won = state.won[node_id]
        log = self._logs[won].cut(START_LSN + len(won))
        log.append(f"r{place + 1}", 64)
        wal = bytes(log.wal)
        self._logs[wal] = log
        return wal

    def _elected(self, state: State, leader: Leader, node_id: NodeId) -> None:
        self.result.elections += 1
        voters = [node for ballot, node in state.votes if ballot == node_id]
        check("ElectionSafety", len(voters) >= QUORUM, node_id, "was won without a quorum")
        log = state.votes[node_id, leader.term.donor]
        state.won = {**state.won, node_id: log}
        for winner, acked in state.commits.items():
            check("AckedIsSafe", winner > node_id or log.startswith(acked), node_id, winner)

    def _committed(self, state: State, place: int, lsn: int) -> None:
        self.result.commits += 1
        node_id = state.proposers[place].node_id
        assert node_id is not None
        log = self._primary_log(state, place)[: lsn - START_LSN]
        check("CommitRule", len(log) >= len(state.won[node_id]), node_id)
        holders = [k for k in state.keepers if k.wal[: k.flushed_bytes].startswith(log)]
        check("Durable", len(holders) >= QUORUM, node_id, "is on", len(holders))
        for other in state.commits.values():
            check("LogSafety", log.startswith(other) or other.startswith(log), node_id)
        state.commits = {**state.commits, node_id: log}
        for later, won in state.won.items():
            check("AckedIsSafe", later <= node_id or won.startswith(log), later, node_id)


def _push(queues: dict[Link, tuple[Any, ...]], link: Link, message: Any) -> None:
    queues[link] = (*queues.get(link, ()), message)


def _pop(queues: dict[Link, tuple[Any, ...]], link: Link) -> Any:
    """An empty queue is removed, so that equal states are equal."""
    first, *rest = queues[link]
    if rest:
        queues[link] = tuple(rest)
    else:
        del queues[link]
    return first


def search(model: Model, seconds: float = inf) -> Result:
    """Raises BrokenLaw, or an AssertionError of a core, at the first bad step."""
    with small_limits():
        return Search(model).run(seconds)
