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

from collections.abc import Callable

from memory_cluster import Link, MemoryCluster, ProposerProcess
from memory_node import MemoryNode
from wal_builder import START_LSN, WalBuilder, named_records

from consensus.ids import NodeId
from consensus.messages import (
    Append,
    AppendResponse,
    Elected,
    ProposerGreeting,
    ProposerMessage,
    SafekeeperGreeting,
    SafekeeperMessage,
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
from safekeeper.events import Event as NodeEvent
from walproposer.events import (
    Action,
    ClosePeer,
    Event,
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
        self.cluster = MemoryCluster(["nobody"])
        self.logs: dict[str, WalBuilder] = {}
        self.nodes: dict[str, MemoryNode] = {}
        self.proposers: dict[str, ProposerProcess] = {}
        self.links: dict[tuple[str, str], Link] = {}
        self.older_links: dict[tuple[str, str], Link] = {}
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
                self._end_closed_links()
                return "\n".join(self.lines)
        raise ValueError(f"unknown command {command!r}")

    # ---- set-up

    def _safekeepers(self, names: list[str]) -> None:
        self.cluster = MemoryCluster(names, [self])
        self.nodes = {node.name: node for node in self.cluster.nodes}

    def _log(self, words: list[str]) -> None:
        name, *records = words
        self.logs.setdefault(name, WalBuilder())
        for record in records:
            self.logs[name].append(record)

    def _fork(self, words: list[str]) -> None:
        name, _of, parent, _after, last, *records = words
        end_lsn = next(r.end_lsn for r in self.logs[parent].records if r.name == last)
        self.logs[name] = self.logs[parent].fork(end_lsn)
        self._log([name, *records])

    def _propose(self, words: list[str]) -> None:
        name = words[0]
        log = self.logs[words[2]] if "on" in words else None
        history = None
        if "forked" in words:  # propose P on B forked at R1
            at = self._lsn_after(log, words[-1])
            history = TimelineHistory.parse(2, f"1\t{Lsn(at)}\tpromoted\n")
        self.proposers[name] = self.cluster.start(name, log, history)

    def _connect(self, words: list[str]) -> None:
        process = self.proposers[words[0]]
        for name in words[1:]:
            if (words[0], name) in self.links:
                self.older_links[words[0], name] = self.links[words[0], name]
            self.links[words[0], name] = self.cluster.connect(process, self.nodes[name])

    # ---- messages

    def _deliver(self, words: list[str]) -> None:
        for name in words[1:]:
            link = self.links[words[0], name]
            while link.to_node and link.is_open_at_node:
                self._arrive(link)
            if link.is_open_at_node:
                self.cluster.end_batch(link)

    def _late(self, words: list[str]) -> None:
        link = self.older_links[words[0], words[1]]
        while link.to_node and link.is_open_at_node:
            self._arrive(link)

    def _read(self, words: list[str]) -> None:
        self._arrive(self.links[words[0], words[1]])

    def _arrive(self, link: Link) -> None:
        self._say(
            f"{link.process.name} -> {link.node.name}: {self._proposer_text(link.to_node[0])}"
        )
        self.cluster.deliver_to_node(link)

    def _answer(self, words: list[str]) -> None:
        link = self.links[words[1], words[0]]
        while link.to_proposer:
            message = link.to_proposer[0]
            self._say(f"{words[0]} -> {words[1]}: {self._safekeeper_text(message)}")
            self.cluster.deliver_to_proposer(link)

    def _exchange(self, words: list[str]) -> None:
        links = [self.links[words[0], name] for name in words[1:]]
        while any(link.to_node or link.to_proposer for link in links):
            for link in links:
                if link.to_node:
                    self._deliver([words[0], link.node.name])
            for link in links:
                self._answer([link.node.name, words[0]])

    def _end_closed_links(self) -> None:
        """Both sides see the end of a link that the node closed, once they have read it all."""
        closing = [link for link in self.cluster.links.values() if link.is_closing]
        for link in [link for link in closing if not link.to_node and not link.to_proposer]:
            self.cluster.disconnect(link)
            if link.is_open_at_proposer:
                self.cluster.lose(link, "closed by the safekeeper")

    # ---- WAL

    def _wal(self, words: list[str]) -> None:
        process = self.proposers[words[0]]
        end_lsn = self._lsn_after(process.primary, words[2]) if len(words) > 1 else None
        self.cluster.bring_wal(process, end_lsn)

    def _tail(self, words: list[str]) -> None:
        self.cluster.bring_tail(self.proposers[words[0]])

    def _catch_up(self, words: list[str]) -> None:
        process, node = self.proposers[words[0]], self.nodes[words[1]]
        peer = self.cluster.nodes.index(node)
        donor = process.donor_reads[peer].donor
        records = named_records(bytes(donor.disk.wal))
        end_lsn = next(r.end_lsn for r in records if r.name == words[3])
        self.cluster.bring_catch_up(process, peer, end_lsn)

    # ---- faults

    def _lose(self, words: list[str]) -> None:
        self.cluster.lose(self.links[words[0], words[1]])

    def _hang_up(self, words: list[str]) -> None:
        self.cluster.disconnect(self.links[words[0], words[1]])

    def _kill(self, words: list[str]) -> None:
        self.cluster.kill(self.proposers[words[0]])

    def _power(self, words: list[str]) -> None:
        kept_bytes = int(words[2]) if "keeps" in words else 0
        self.cluster.lose_power(self.nodes[words[0]], kept_bytes)

    def _restart(self, words: list[str]) -> None:
        self.cluster.restart(self.nodes[words[0]])

    def _rot(self, words: list[str]) -> None:
        """A bit of a record flips, and how far the log was flushed had been saved before."""
        node, (log,) = self.nodes[words[0]], self.logs.values()
        record = next(r for r in log.records if r.name == words[1])
        node.save_flush_lsn()
        node.disk.wal[record.end_lsn - node.disk.start_lsn - 8] ^= 0x40

    def _tick(self, words: list[str]) -> None:
        self.cluster.tick(self.proposers[words[0]], int(words[1]))

    # ---- what is written

    def _say(self, line: str) -> None:
        self.lines.append(line)

    def node_stepped(self, node: MemoryNode, _: NodeEvent, actions: list[NodeAction]) -> None:
        for action in actions:
            text = self._node_action(action)
            if text:
                self._say(f"    {node.name} {text}")

    def _node_action(self, action: NodeAction) -> str:
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

    def proposer_stepped(self, process: ProposerProcess, _: Event, actions: list[Action]) -> None:
        for action in actions:
            text = self._proposer_action(action)
            if text:
                self._say(f"    {process.name} {text}")

    def _proposer_action(self, action: Action) -> str:
        names = [node.name for node in self.cluster.nodes]
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

    def _proposer_text(self, message: ProposerMessage) -> str:
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

    def _safekeeper_text(self, message: SafekeeperMessage) -> str:
        match message:
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
            log = " ".join(r.name for r in named_records(bytes(node.disk.wal))) or "nothing"
            history = acceptor.control.term_history.clipped(acceptor.flush_lsn)
            self._say(
                f"{name} has {log}; flush {self._position(acceptor.flush_lsn)}, "
                f"commit {self._position(acceptor.commit_lsn)}, "
                f"promised {_node(acceptor.control.promised)}, history {self._history(history)}"
            )
        for name, process in self.proposers.items():
            if process.is_running:
                commit = self._position(process.core.commit_lsn)
                self._say(f"{name} is {process.core.state.value}; commit {commit}")

    # ---- positions

    def _lsn_after(self, log: WalBuilder | None, record: str) -> int:
        assert log is not None
        return next(r.end_lsn for r in log.records if r.name == record)

    def _position(self, lsn: int) -> str:
        """How many records lie below; all logs have records of one size."""
        if lsn <= START_LSN:
            return "0"
        for log in self.logs.values():
            for number, record in enumerate(log.records, 1):
                if record.end_lsn == lsn:
                    return str(number)
        return "?"

    def _names_in(self, wal: bytes, begin_lsn: int) -> list[str]:
        for log in self.logs.values():
            end_lsn = begin_lsn + len(wal)
            if log.read(begin_lsn, end_lsn) == wal:
                return [r.name for r in log.records if begin_lsn <= r.start_lsn < end_lsn]
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
            lsns |= {r.end_lsn: str(i) for i, r in enumerate(log.records, 1)}
        for lsn in sorted(lsns, reverse=True):
            text = text.replace(str(Lsn(lsn)), lsns[lsn])
        return text


def _node(node_id: NodeId) -> str:
    name = node_id.proposer_uuid.rstrip(b"\0").decode()
    return f"{node_id.term}.{name}" if name else str(node_id.term)
