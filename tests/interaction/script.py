"""The language of the golden scripts: one line is one thing that happens in the world.

    safekeepers a1 a2 a3           a timeline on these members, nothing in its log
    log A: R1 R2                   the WAL of an imagined primary: records by name
    fork B of A after R1: R3       another one with the same bytes up to R1
    propose P on A                 a proposer for that primary; without `on`: none (sk elect)
    connect P a1 a2                connections are opened, greetings sent
    deliver P a1                   what P has sent to a1 arrives, is flushed, is answered
    read P a1                      one message of it arrives; the flush and the answer do not happen
    late P a1                      what an older connection of P had sent arrives only now
    answer a1 P                    what a1 has answered arrives
    exchange P a1 a2               deliver and answer, until nobody has anything to say
    wal P [to R2]                  the primary's walsender ships what it has, or up to R2
    tail P                         the donor answers the reading of its tail
    catch up P a2 to R1            the donor's log, up to R1, comes for a2
    lose P a1                      P learns that the connection is gone; a1 does not yet
    hang up P a1                   a1 learns it, too
    kill P                         the process is gone
    power a1 [keeps 10 bytes]      power loss; of what was not flushed, so much survives
    restart a1
    tick P 1000                    time passes
    show                           what everybody has

Positions are counted in records: 2 is the end of the second record. A NodeId is term.proposer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from scripted_world import ScriptedWorld

from consensus.ids import NodeId
from consensus.messages import (
    Append,
    AppendResponse,
    Elected,
    ProposerGreeting,
    SafekeeperGreeting,
    VoteRequest,
    VoteResponse,
)
from consensus.term_history import TermHistory
from pgwal.history import TimelineHistory
from pgwal.lsn import Lsn
from safekeeper.events import (
    Action as NodeAction,
)
from safekeeper.events import (
    CloseConnection,
    FlushWal,
    PersistControl,
    Refuse,
    TruncateWal,
    WriteWal,
)
from tests.simulation.incarnation import Incarnation
from tests.simulation.log import START_LSN, WAL_SEG_SIZE, Log
from tests.simulation.network import Connection, Message
from tests.simulation.node import Node
from tests.simulation.trace import Trace
from tests.wal_log import NamedRecord, named_records
from walproposer.stream.events import (
    Action,
    ClosePeer,
    ReadTail,
    ReportFlushed,
    StartCatchUp,
    StartUpstream,
    Stop,
    StopCatchUp,
)


class Script:
    """Executes commands; each returns the lines that it made the world write."""

    def __init__(self) -> None:
        self.world: ScriptedWorld
        self.logs: dict[str, Log] = {}
        self.nodes: dict[str, Node] = {}
        self.proposers: dict[str, Incarnation] = {}
        self.connections: dict[tuple[str, str], Connection] = {}
        self.older_connections: dict[tuple[str, str], Connection] = {}
        self.lines: list[str] = []

    def run(self, command: str) -> str:
        """The output of one line, "" for none."""
        self.lines = []
        verbs: list[tuple[str, Callable[[list[str]], None]]] = [
            ("safekeepers", self._safekeepers),
            ("log", self._log),
            ("fork", self._fork),
            ("propose", self._propose),
            ("connect", self._connect),
            ("deliver", self._deliver),
            ("read", self._read),
            ("late", self._late),
            ("answer", self._answer),
            ("exchange", self._exchange),
            ("wal", self._wal),
            ("tail", self._tail),
            ("catch up", self._catch_up),
            ("lose", self._lose),
            ("hang up", self._hang_up),
            ("kill", self._kill),
            ("power", self._power),
            ("restart", self._restart),
            ("rot", self._rot),
            ("tick", self._tick),
            ("show", self._show),
        ]
        for verb, execute in verbs:
            if command == verb or command.startswith(verb + " "):
                execute(command[len(verb) :].replace(":", " ").split())
                self.world.end_closed_connections()
                return "\n".join(self.lines)
        raise ValueError(f"unknown command {command!r}")

    # ---- set-up

    def _safekeepers(self, names: list[str]) -> None:
        """A new world; logs stay."""
        self.world = ScriptedWorld(names, Told(self._stepped))
        self.nodes = {node.name: node for node in self.world.nodes}
        self.proposers.clear()

    def _log(self, words: list[str]) -> None:
        name, *records = words
        self.logs.setdefault(name, Log())
        for record in records:
            self.logs[name].append(record)

    def _fork(self, words: list[str]) -> None:
        name, _of, parent, _after, last, *records = words
        self.logs[name] = self.logs[parent].cut(self._lsn_after(self.logs[parent], last))
        self._log([name, *records])

    def _propose(self, words: list[str]) -> None:
        name = words[0]
        log = self.logs[words[2]] if "on" in words else None
        history = TimelineHistory(1)
        if "forked" in words:  # propose P on B forked at R1
            at = self._lsn_after(log, words[-1])
            history = TimelineHistory.parse(2, f"1\t{Lsn(at)}\tpromoted\n")
        self.proposers[name] = self.world.propose(name, log, history)

    def _connect(self, words: list[str]) -> None:
        process = self.proposers[words[0]]
        for name in words[1:]:
            ends = words[0], name
            if ends in self.connections:
                self.older_connections[ends] = self.connections[ends]
            self.connections[ends] = self.world.connect(process, self.nodes[name])

    # ---- messages

    def _deliver(self, words: list[str]) -> None:
        for name in words[1:]:
            connection = self.connections[words[0], name]
            self._arrive_all(connection)
            self.world.end_batch(connection)

    def _late(self, words: list[str]) -> None:
        self._arrive_all(self.older_connections[words[0], words[1]])

    def _arrive_all(self, connection: Connection) -> None:
        while self.world.in_flight_to_node(connection):
            self._arrive(connection)

    def _read(self, words: list[str]) -> None:
        self._arrive(self.connections[words[0], words[1]])

    def _arrive(self, connection: Connection) -> None:
        message = self.world.in_flight_to_node(connection)[0]
        process, node = connection.process, connection.node
        self._say(f"{process.name} -> {node.name}: {self._text(message)}")
        self.world.deliver_to_node(connection)

    def _answer(self, words: list[str]) -> None:
        connection = self.connections[words[1], words[0]]
        while messages := self.world.in_flight_to_proposer(connection):
            self._say(f"{words[0]} -> {words[1]}: {self._text(messages[0])}")
            self.world.deliver_to_proposer(connection)

    def _exchange(self, words: list[str]) -> None:
        name, *others = words
        ends = [self.connections[name, other] for other in others]
        to_node, to_proposer = self.world.in_flight_to_node, self.world.in_flight_to_proposer
        while any(to_node(connection) or to_proposer(connection) for connection in ends):
            for other, connection in zip(others, ends, strict=True):
                if to_node(connection):
                    self._deliver([name, other])
            for other in others:
                self._answer([other, name])

    # ---- WAL

    def _wal(self, words: list[str]) -> None:
        process = self.proposers[words[0]]
        assert process.primary is not None
        log = process.primary.log
        self.world.bring_wal(process, self._lsn_after(log, words[2]) if len(words) > 1 else log.lsn)

    def _tail(self, words: list[str]) -> None:
        self.world.bring_tail(self.proposers[words[0]])

    def _catch_up(self, words: list[str]) -> None:
        process, node = self.proposers[words[0]], self.nodes[words[1]]
        peer = self.world.nodes.index(node)
        records = records_in(process.donor_reads[peer].donor.disk.wal)
        end_lsn = next(r.end_lsn for r in records if r.name == words[3])
        self.world.bring_catch_up(process, peer, end_lsn)

    # ---- faults

    def _lose(self, words: list[str]) -> None:
        self.world.lose(self.connections[words[0], words[1]])

    def _hang_up(self, words: list[str]) -> None:
        self.world.hang_up(self.connections[words[0], words[1]])

    def _kill(self, words: list[str]) -> None:
        self.proposers[words[0]].kill()

    def _power(self, words: list[str]) -> None:
        kept_bytes = int(words[2]) if "keeps" in words else 0
        self.world.lose_power(self.nodes[words[0]], kept_bytes)

    def _restart(self, words: list[str]) -> None:
        self.nodes[words[0]].restart()

    def _rot(self, words: list[str]) -> None:
        """A bit of a record flips."""
        (log,) = self.logs.values()
        self.world.rot(self.nodes[words[0]], self._lsn_after(log, words[1]) - 8)

    def _tick(self, words: list[str]) -> None:
        self.world.tick(self.proposers[words[0]], int(words[1]))

    # ---- what is written

    def _say(self, line: str) -> None:
        self.lines.append(line)

    def _stepped(self, who: str, actions: Sequence[NodeAction | Action]) -> None:
        for action in actions:
            text = self._node_action(action) or self._proposer_action(action)
            if text:
                self._say(f"    {who} {text}")

    def _node_action(self, action: NodeAction | Action) -> str:
        match action:
            case WriteWal(_, wal):
                names = " ".join(self._names_in(bytes(wal), action.begin_lsn))
                return f"writes {names or 'a part of a record'}"
            case FlushWal():
                return "flushes"
            case TruncateWal(end_lsn):
                return f"truncates to {self._position(end_lsn)}"
            case PersistControl(state):
                history = self._history(state.term_history)
                text = f"persists promise {_node(state.promised)}, history {history}"
                flush_lsn, lost_lsn = state.flush_lsn, state.lost_lsn
                lost = f", lost {self._position(lost_lsn)}" if lost_lsn else ""
                return f"{text}, flush {self._position(flush_lsn)}{lost}"
            case Refuse(_, sqlstate, message):
                return f"refuses ({sqlstate}): {self._readable(message)}"
            case CloseConnection(_, reason):
                return f"closes the older connection: {self._readable(reason)}"
        return ""

    def _proposer_action(self, action: NodeAction | Action) -> str:
        names = [node.name for node in self.world.nodes]
        match action:
            case ReportFlushed(commit_lsn):
                return f"reports {self._position(commit_lsn)} to its primary"
            case StartUpstream(begin_lsn):
                return f"asks its primary for WAL from {self._position(begin_lsn)}"
            case ReadTail(donor, begin_lsn, end_lsn):
                span = f"[{self._position(begin_lsn)}, {self._position(end_lsn)})"
                return f"reads {span} of its donor {names[donor]}"
            case StartCatchUp(peer, donor, begin_lsn):
                return (
                    f"reads the log of {names[donor]} from {self._position(begin_lsn)} "
                    f"for {names[peer]}"
                )
            case StopCatchUp(peer):
                return f"needs no donor for {names[peer]} any more"
            case ClosePeer(peer, reason):
                return f"drops {names[peer]}: {self._readable(reason)}"
            case Stop(outcome, message):
                return f"stops, {outcome.value}: {self._readable(message)}"
        return ""

    def _text(self, message: Message) -> str:
        match message:
            case ProposerGreeting():
                return "Greeting"
            case VoteRequest(_, node_id):
                return f"VoteRequest {_node(node_id)}"
            case Elected():
                start = self._position(message.start_streaming_at)
                history = self._history(message.term_history)
                return f"Elected {_node(message.node_id)} from {start}, history {history}"
            case Append():
                begin, end = self._position(message.begin_lsn), self._position(message.end_lsn)
                commit = self._position(message.commit_lsn)
                return f"Append {_node(message.node_id)} [{begin}, {end}), commit {commit}"
            case SafekeeperGreeting():
                return f"Greeting, promised {_node(message.promised)}"
            case VoteResponse():
                verdict = "granted" if message.granted else "refused"
                flush, history = self._position(message.flush_lsn), message.term_history
                return (
                    f"VoteResponse {verdict}, promised {_node(message.promised)}, "
                    f"flush {flush}, history {self._history(history)}"
                )
            case AppendResponse():
                flush, commit = (
                    self._position(message.flush_lsn),
                    self._position(message.commit_lsn),
                )
                return f"AppendResponse {_node(message.node_id)}, flush {flush}, commit {commit}"

    def _show(self, _: list[str]) -> None:
        for name, node in self.nodes.items():
            if node.acceptor is None:
                self._say(f"{name} is down")
                continue
            acceptor = node.acceptor
            log = " ".join(r.name for r in records_in(node.disk.wal)) or "nothing"
            history = acceptor.control.term_history.clipped(acceptor.flush_lsn)
            self._say(
                f"{name} has {log}; flush {self._position(acceptor.flush_lsn)}, "
                f"commit {self._position(acceptor.commit_lsn)}, "
                f"promised {_node(acceptor.control.promised)}, history {self._history(history)}"
            )
        for name, process in self.proposers.items():
            if process.is_alive:
                commit = self._position(process.core.commit_lsn)
                self._say(f"{name} is {process.core.state.value}; commit {commit}")

    # ---- positions

    def _lsn_after(self, log: Log | None, record: str) -> int:
        assert log is not None
        return next(r.end_lsn for r in records_in(log.wal) if r.name == record)

    def _position(self, lsn: int) -> str:
        """How many records lie below; all logs have records of one size."""
        if lsn <= START_LSN:
            return "0"
        for log in self.logs.values():
            if lsn in log.ends:
                return str(log.ends.index(lsn) + 1)
        return "?"

    def _names_in(self, wal: bytes, begin_lsn: int) -> list[str]:
        for log in self.logs.values():
            end_lsn = begin_lsn + len(wal)
            if log.read(begin_lsn, end_lsn) == wal:
                records = records_in(log.wal)
                return [r.name for r in records if begin_lsn <= r.start_lsn < end_lsn]
        return []

    def _history(self, history: TermHistory) -> str:
        return " ".join(
            f"{_node(e.node_id)}@{self._position(e.start_lsn)}" for e in history.entries
        )

    def _readable(self, text: str) -> str:
        """The messages of the cores name LSNs and uuids; here they are records and names."""
        for name in self.proposers:
            uuid = name.encode().ljust(16, b"\0").hex()
            text = text.replace(f"/{uuid}", f".{name}")
        lsns = {START_LSN: "0"}
        for log in self.logs.values():
            lsns |= {end_lsn: str(number) for number, end_lsn in enumerate(log.ends, 1)}
        for lsn in sorted(lsns, reverse=True):
            text = text.replace(str(Lsn(lsn)), lsns[lsn])
        return text


class Told(Trace):
    """Of every step of a core."""

    def __init__(self, stepped: Callable[[str, Sequence[NodeAction | Action]], None]) -> None:
        super().__init__(None)
        self._stepped = stepped

    def __call__(self, who: str, event: object, actions: Sequence[Any], remark: str) -> None:
        self._stepped(who, actions)


def records_in(wal: bytes | bytearray) -> list[NamedRecord]:
    return named_records(wal, START_LSN, wal_seg_size=WAL_SEG_SIZE)


def _node(node_id: NodeId) -> str:
    name = node_id.proposer_uuid.rstrip(b"\0").decode()
    return f"{node_id.term}.{name}" if name else str(node_id.term)
