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

Where members change:

    servers b1 b2                  more safekeepers, which have no timeline yet
    propose P on A knows a1 a2     a proposer that knows these addresses only
    request P a1 a2 b1             the operator asks P for these members
    cancel P                       ... to take it back
    join P b1                      what P offers b1 arrives, and is answered
    leave P a3                     the same, of a word to leave
    wipe a3 to b3                  its disk is lost; b3 is another one with its id and address
    switch off a3                  for ever

Positions are counted in records: 2 is the end of the second record. A NodeId is term.proposer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from scripted_world import ScriptedWorld
from wording import Wording, node_text, records_in

from quorum_wal.pgwal.history import TimelineHistory
from quorum_wal.pgwal.lsn import Lsn
from quorum_wal.safekeeper.events import Action as NodeAction
from quorum_wal.walproposer.stream.events import (
    Action,
    ChangeCancelled,
    ChangeRequest,
    ChangeRequested,
)
from tests.simulation.incarnation import Incarnation
from tests.simulation.log import START_LSN, Log
from tests.simulation.network import Connection
from tests.simulation.node import Node
from tests.simulation.trace import Trace


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
        self.wording = Wording(self.logs, self.proposers)

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
            ("servers", self._servers),
            ("request", self._request),
            ("cancel", self._cancel),
            ("join", self._join),
            ("leave", self._leave),
            ("wipe", self._wipe),
            ("switch off", self._switch_off),
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
        self.wording.says_members = False
        self.proposers.clear()

    def _log(self, words: list[str]) -> None:
        name, *records = words
        self.logs.setdefault(name, Log())
        for record in records:
            self.logs[name].append(record)

    def _fork(self, words: list[str]) -> None:
        name, _of, parent, _after, last, *records = words
        self.logs[name] = self.logs[parent].cut(self.wording.lsn_after(self.logs[parent], last))
        self._log([name, *records])

    def _propose(self, words: list[str]) -> None:
        name, known = words[0], list(self.nodes)
        if "knows" in words:
            known, words = words[words.index("knows") + 1 :], words[: words.index("knows")]
        log = self.logs[words[2]] if "on" in words else None
        history = TimelineHistory(1)
        if "forked" in words:  # propose P on B forked at R1
            at = self.wording.lsn_after(log, words[-1])
            history = TimelineHistory.parse(2, f"1\t{Lsn(at)}\tpromoted\n")
        addresses = [self.nodes[one].address for one in known]
        self.proposers[name] = self.world.propose(name, log, history, addresses)

    def _connect(self, words: list[str]) -> None:
        process = self.proposers[words[0]]
        for name in words[1:]:
            ends = words[0], name
            if ends in self.connections:
                self.older_connections[ends] = self.connections[ends]
            connection = self.world.connect(process, self.nodes[name])
            if connection is not None:
                self.connections[ends] = connection

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
        self._say(f"{process.name} -> {node.name}: {self.wording.text(message)}")
        self.world.deliver_to_node(connection)

    def _answer(self, words: list[str]) -> None:
        connection = self.connections[words[1], words[0]]
        while messages := self.world.in_flight_to_proposer(connection):
            self._say(f"{words[0]} -> {words[1]}: {self.wording.text(messages[0])}")
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
        self.world.bring_wal(
            process, self.wording.lsn_after(log, words[2]) if len(words) > 1 else log.lsn
        )

    def _tail(self, words: list[str]) -> None:
        self.world.bring_tail(self.proposers[words[0]])

    def _catch_up(self, words: list[str]) -> None:
        process, node = self.proposers[words[0]], self.nodes[words[1]]
        peer = self.world.peer_at(process, node)
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
        """Flip a bit of a record."""
        (log,) = self.logs.values()
        self.world.rot(self.nodes[words[0]], self.wording.lsn_after(log, words[1]) - 8)

    def _tick(self, words: list[str]) -> None:
        self.world.tick(self.proposers[words[0]], int(words[1]))

    # ---- members

    def _servers(self, names: list[str]) -> None:
        self.wording.says_members = True
        for name in names:
            self.nodes[name] = self.world.add_server(name)

    def _request(self, words: list[str]) -> None:
        process = self.proposers[words[0]]
        membership = process.core.membership
        assert membership is not None
        members = sorted(self.nodes[name].as_member() for name in words[1:])
        request = ChangeRequest(membership.generation, tuple(members))
        process.step(ChangeRequested(request))

    def _cancel(self, words: list[str]) -> None:
        self.proposers[words[0]].step(ChangeCancelled())

    def _join(self, words: list[str]) -> None:
        process, node = self.proposers[words[0]], self.nodes[words[1]]
        answer = self.wording.readable(self.world.join(process, node))
        self._say(f"{words[1]} -> {words[0]}: {answer or 'joined'}")
        self.world.answer_command(process)

    def _leave(self, words: list[str]) -> None:
        process, node = self.proposers[words[0]], self.nodes[words[1]]
        answer = self.wording.readable(self.world.leave(process, node))
        self._say(f"{words[1]} -> {words[0]}: {answer or 'left'}")
        self.world.answer_command(process)

    def _wipe(self, words: list[str]) -> None:
        old, _to, name = words
        node = self.nodes[old]
        node.switch_off()
        self.nodes[name] = self.world.add_server(name, node)

    def _switch_off(self, words: list[str]) -> None:
        self.nodes[words[0]].switch_off()

    # ---- output

    def _say(self, line: str) -> None:
        self.lines.append(line)

    def _stepped(self, who: str, actions: Sequence[NodeAction | Action]) -> None:
        names = self._places(who)
        for action in actions:
            text = self.wording.node_action(action) or self.wording.proposer_action(action, names)
            if text:
                self._say(f"    {who} {text}")

    def _show(self, _: list[str]) -> None:
        for name, node in self.nodes.items():
            if node.acceptor is None:
                self._say(f"{name} is {node.state.value}")
                continue
            acceptor = node.acceptor
            log = " ".join(r.name for r in records_in(node.disk.wal)) or "nothing"
            control, position = acceptor.control, self.wording.position
            history = self.wording.histories(control.term_history.clipped(acceptor.flush_lsn))
            left = "has left" if control.has_left else f"has {log}"
            says = history + self.wording.of(control.membership)
            self._say(
                f"{name} {left}; flush {position(acceptor.flush_lsn)}, "
                f"commit {position(acceptor.commit_lsn)}, "
                f"{self._truncated(acceptor.truncate_lsn)}"
                f"promised {node_text(control.promised)}{says}"
            )
        for name, process in self.proposers.items():
            if process.is_alive:
                commit = self.wording.position(process.core.commit_lsn)
                says = self._change(process) if self.wording.says_members else ""
                self._say(f"{name} is {process.core.state.value}; commit {commit}{says}")

    def _truncated(self, lsn: int) -> str:
        says_it = self.wording.says_members and lsn > START_LSN
        return f"truncate {self.wording.position(lsn)}, " if says_it else ""

    def _change(self, process: Incarnation) -> str:
        membership, change = process.core.membership, process.core.change
        leader = process.core.leader
        truncated = self._truncated(leader.truncate_lsn if leader is not None else 0)
        members = self.wording.of(membership) if membership is not None else ""
        members = f"{', ' if truncated else ''}{truncated.removesuffix(', ')}{members}"
        if change is None:
            return members
        readable = self.wording.readable
        waits = f", waits for {readable(change.waits_for)}" if change.waits_for else ""
        error = f" ({readable(change.error)})" if change.error else ""
        return f"{members}; change {change.state.value}{waits}{error}"

    def _places(self, who: str) -> dict[int, str]:
        """The node at each place, if it is a proposer."""
        process = self.proposers.get(who)
        if process is None:
            return {}
        at = {node.address: node.name for node in self.world.nodes}
        return {peer: at.get(address, "?") for peer, address in process.addresses.items()}


class Told(Trace):
    """Receives every step of a core."""

    def __init__(self, stepped: Callable[[str, Sequence[NodeAction | Action]], None]) -> None:
        super().__init__(None)
        self._stepped = stepped

    def __call__(self, who: str, event: object, actions: Sequence[Any], remark: str) -> None:
        self._stepped(who, actions)
