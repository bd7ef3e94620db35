"""`Wording`: the text of messages and actions in golden scripts, in records and names.

Positions are counted in records: 2 is the end of the second record. A NodeId is term.proposer. A
membership is [author/generation members + new members], the safekeepers by their numbers; it is
shown in worlds whose members change.
"""

from __future__ import annotations

from quorum_wal.consensus.ids import NodeId
from quorum_wal.consensus.membership import Membership, Stamp
from quorum_wal.consensus.messages import (
    Append,
    AppendResponse,
    Configure,
    Elected,
    ProposerGreeting,
    SafekeeperGreeting,
    VoteRequest,
    VoteResponse,
)
from quorum_wal.consensus.term_history import TermHistory
from quorum_wal.pgwal.lsn import Lsn
from quorum_wal.safekeeper.events import (
    Action as NodeAction,
)
from quorum_wal.safekeeper.events import (
    CloseConnection,
    FlushWal,
    PersistControl,
    Refuse,
    TruncateWal,
    WriteWal,
)
from quorum_wal.walproposer.stream.events import (
    Action,
    ClosePeer,
    ForgetPeer,
    Join,
    Leave,
    OpenPeer,
    ReadTail,
    ReportFlushed,
    StartCatchUp,
    StartUpstream,
    Stop,
    StopCatchUp,
)
from tests.new_timeline import TIMELINE
from tests.simulation.incarnation import Incarnation
from tests.simulation.log import START_LSN, WAL_SEG_SIZE, Log
from tests.simulation.network import Message
from tests.wal_log import NamedRecord, named_records


class Wording:
    """`logs` and `proposers` are the script's; `place` names the safekeeper at a place of one."""

    def __init__(self, logs: dict[str, Log], proposers: dict[str, Incarnation]) -> None:
        self.logs = logs
        self.proposers = proposers
        self.says_members = False

    def node_action(self, action: NodeAction | Action) -> str:
        match action:
            case WriteWal(_, wal):
                names = " ".join(self._names_in(bytes(wal), action.begin_lsn))
                return f"writes {names or 'a part of a record'}"
            case FlushWal():
                return "flushes"
            case TruncateWal(end_lsn):
                return f"truncates to {self.position(end_lsn)}"
            case PersistControl(state):
                history = self.histories(state.term_history)
                text = f"persists promise {node_text(state.promised)}{history}"
                flush_lsn, lost_lsn = state.flush_lsn, state.lost_lsn
                lost = f", lost {self.position(lost_lsn)}" if lost_lsn else ""
                members = self.of(state.membership)
                return f"{text}, flush {self.position(flush_lsn)}{lost}{members}"
            case Refuse(_, sqlstate, message):
                return f"refuses ({sqlstate}): {self.readable(message)}"
            case CloseConnection(_, reason):
                return f"closes the older connection: {self.readable(reason)}"
        return ""

    def proposer_action(self, action: NodeAction | Action, names: dict[int, str]) -> str:
        match action:
            case ReportFlushed(commit_lsn):
                return f"reports {self.position(commit_lsn)} to its primary"
            case StartUpstream(begin_lsn):
                return f"asks its primary for WAL from {self.position(begin_lsn)}"
            case ReadTail(donor, begin_lsn, end_lsn):
                span = f"[{self.position(begin_lsn)}, {self.position(end_lsn)})"
                return f"reads {span} of its donor {names[donor]}"
            case StartCatchUp(peer, donor, begin_lsn):
                return (
                    f"reads the log of {names[donor]} from {self.position(begin_lsn)} "
                    f"for {names[peer]}"
                )
            case StopCatchUp(peer):
                return f"needs no donor for {names[peer]} any more"
            case ClosePeer(peer, reason):
                return f"drops {names[peer]}: {self.readable(reason)}"
            case Stop(outcome, message):
                return f"stops, {outcome.value}: {self.readable(message)}"
            case OpenPeer(peer):
                return f"wants {names[peer]}"
            case ForgetPeer(peer):
                return f"forgets {names[peer]}"
            case Join(peer, _, _, offer):
                start, members = self.position(offer.start_lsn), self.members(offer.membership)
                return f"offers {names[peer]} the timeline from {start} on, {members}"
            case Leave(peer, _, _, membership):
                return f"tells {names[peer]} to leave, {self.members(membership)}"
        return ""

    def text(self, message: Message) -> str:
        match message:
            case ProposerGreeting():
                return "Greeting"
            case VoteRequest(stamp, node_id):
                by = f", by {_stamp(stamp)}" if self.says_members else ""
                return f"VoteRequest {node_text(node_id)}{by}"
            case Elected():
                start = self.position(message.start_streaming_at)
                says = self.histories(message.term_history) + self.of(message.membership)
                return f"Elected {node_text(message.node_id)} from {start}{says}"
            case Configure(node_id, membership):
                return f"Configure {node_text(node_id)}{self.of(membership)}"
            case Append():
                begin, end = self.position(message.begin_lsn), self.position(message.end_lsn)
                commit = self.position(message.commit_lsn)
                generation = self.generation(message.generation)
                node_id = node_text(message.node_id)
                return f"Append {node_id} [{begin}, {end}), commit {commit}{generation}"
            case SafekeeperGreeting():
                left = ", has left" if message.has_left else ""
                says = left + self.of(message.membership)
                return f"Greeting, promised {node_text(message.promised)}{says}"
            case VoteResponse():
                verdict = "granted" if message.granted else "refused"
                flush = self.position(message.flush_lsn)
                says = self.histories(message.term_history) + self.of(message.membership)
                promised = node_text(message.promised)
                return f"VoteResponse {verdict}, promised {promised}, flush {flush}{says}"
            case AppendResponse():
                flush, commit = (
                    self.position(message.flush_lsn),
                    self.position(message.commit_lsn),
                )
                node_id, generation = message.node_id, self.generation(message.generation)
                positions = f"flush {flush}, commit {commit}"
                return f"AppendResponse {node_text(node_id)}, {positions}{generation}"

    def histories(self, history: TermHistory) -> str:
        """The writers of the log by ballot; where members change, the members instead."""
        return "" if self.says_members else f", history {self.history(history)}"

    def generation(self, generation: int) -> str:
        return f", generation {generation}" if self.says_members else ""

    def of(self, membership: Membership) -> str:
        """ " of" and the members, or nothing."""
        return f", members {self.members(membership)}" if self.says_members else ""

    def members(self, membership: Membership) -> str:
        old = "".join(map(str, membership.members))
        new = "".join(map(str, membership.new_members))
        return f"[{_stamp(membership.stamp)} {old}{' + ' if new else ''}{new}]"

    # ---- positions

    def lsn_after(self, log: Log | None, record: str) -> int:
        assert log is not None
        return next(r.end_lsn for r in records_in(log.wal) if r.name == record)

    def position(self, lsn: int) -> str:
        """The number of records below; all records have one size."""
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

    def history(self, history: TermHistory) -> str:
        return " ".join(
            f"{node_text(e.node_id)}@{self.position(e.start_lsn)}" for e in history.entries
        )

    def readable(self, text: str) -> str:
        """A message of the cores with records and names instead of LSNs and uuids."""
        for name in self.proposers:
            uuid = name.encode().ljust(16, b"\0").hex()
            text = text.replace(f"/{uuid}", f".{name}")
        text = text.replace(f"timeline {TIMELINE} ", "timeline ")
        lsns = {START_LSN: "0"}
        for log in self.logs.values():
            lsns |= {end_lsn: str(number) for number, end_lsn in enumerate(log.ends, 1)}
        for lsn in sorted(lsns, reverse=True):
            text = text.replace(str(Lsn(lsn)), lsns[lsn])
        return text


def records_in(wal: bytes | bytearray) -> list[NamedRecord]:
    return named_records(wal, START_LSN, wal_seg_size=WAL_SEG_SIZE)


def node_text(node_id: NodeId) -> str:
    name = node_id.proposer_uuid.rstrip(b"\0").decode()
    return f"{node_id.term}.{name}" if name else str(node_id.term)


def _stamp(stamp: Stamp) -> str:
    return f"{node_text(stamp.author)}/{stamp.generation}"
