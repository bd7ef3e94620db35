"""A seeded run of a cluster of cores: everything that can happen, in any order.

Up to three proposers are alive at once, each with a primary that was restored from the log of its
donor, so that logs diverge as often as they can. Messages are delivered late and link by link;
connections are lost at one end first; safekeepers lose power, and with it any part of what they had
not flushed. `tests/safety.py` judges after every step.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from memory_cluster import Link, MemoryCluster, ProposerProcess
from memory_node import MemoryNode
from wal_builder import PAGE_SIZE, WalBuilder

from safekeeper.events import Action as NodeAction
from safekeeper.events import Event as NodeEvent
from safekeeper.events import TruncateWal
from walproposer.events import Action, CatchUpWal, Event

PROPOSERS_MAX = 3
#: Small, one of several pages, one that fills most of the proposer's window.
RECORD_BYTES = (64, 64, 64, 1000, 20_000)
#: The primaries of a random run have whatever the donor has.
FAR_AWAY_LSN = 1 << 40


class RandomCluster:
    """`run(steps)` raises BrokenLaw, or an AssertionError of the cores, at the first bad step."""

    def __init__(self, seed: int, nodes_count: int) -> None:
        self.random = Random(seed)
        self.cluster = MemoryCluster(f"S{i}" for i in range(1, nodes_count + 1))
        self.now_ms = 0
        self.records_count = 0
        self.power_losses_count = 0
        self.catch_ups_count = 0
        self.truncations_count = 0
        self.cluster.observers.append(self)

    def run(self, steps: int) -> None:
        common: dict[Callable[[], None], float] = {
            self._deliver: 60,
            self._write: 15,
            self._bring: 15,
            self._connect: 12,
            self._restart: 4,
            self._tick: 3,
        }
        rare: dict[Callable[[], None], float] = {
            self._lose_link: 2,
            self._start_proposer: 2,
            self._kill_proposer: 1,
            self._lose_power: 1,
        }
        # Each seed has a temper of its own: what is rare in one run is common in another.
        rare = {kind: weight * self.random.choice((0.2, 1, 2)) for kind, weight in rare.items()}
        kinds = common | rare
        for _ in range(steps):
            self.random.choices(list(kinds), list(kinds.values()))[0]()

    # ---- proposers

    def _running(self) -> list[ProposerProcess]:
        return [p for p in self.cluster.processes if p.is_running]

    def _start_proposer(self) -> None:
        if len(self._running()) < PROPOSERS_MAX:
            name = f"P{len(self.cluster.processes) + 1}"
            uuid = self.random.randbytes(16)
            primary = WalBuilder()
            self.cluster.start(name, primary, proposer_uuid=uuid, flush_lsn=FAR_AWAY_LSN)

    def _kill_proposer(self) -> None:
        if running := self._running():
            self.cluster.kill(self.random.choice(running))

    def _write(self) -> None:
        """A primary writes a record, and its walsender ships it, or a part that ends a page."""
        leaders = [p for p in self._running() if p.upstream_lsn is not None]
        if not leaders:
            return
        process = self.random.choice(leaders)
        primary = self._primary(process)
        if primary.lsn == process.upstream_lsn:
            self.records_count += 1
            primary.append(f"r{self.records_count}", self.random.choice(RECORD_BYTES))
        if process.core.wants_wal():
            assert process.upstream_lsn is not None
            end_lsn = self._somewhere(process.upstream_lsn, primary.lsn)
            self.cluster.bring_wal(process, end_lsn)

    def _primary(self, process: ProposerProcess) -> WalBuilder:
        """Restored from the donor's log at the election, its own since."""
        assert process.primary is not None
        if not process.primary.wal:
            assert process.core.node_id is not None
            process.primary = WalBuilder.continuing(
                self.cluster.safety.won_logs[process.core.node_id]
            )
        return process.primary

    def _somewhere(self, begin_lsn: int, end_lsn: int) -> int:
        """Where a walsender may cut: at the end, or at a page boundary before."""
        pages = range(begin_lsn - begin_lsn % PAGE_SIZE + PAGE_SIZE, end_lsn, PAGE_SIZE)
        cuts: list[int] = [end_lsn, *pages]
        return self.random.choice(cuts)

    def _bring(self) -> None:
        """The tail of a donor's log, or WAL for a peer below the window."""
        for process in self._running():
            if process.tail_read is not None and self.random.random() < 0.5:
                self.cluster.bring_tail(process)
        reads = [(p, peer) for p in self._running() for peer in p.donor_reads]
        if reads:
            self._catch_up(*self.random.choice(reads))

    def _catch_up(self, process: ProposerProcess, peer: int) -> None:
        read = process.donor_reads[peer]
        acceptor = read.donor.acceptor
        if acceptor is None:
            self.cluster.bring_catch_up(process, peer, read.next_lsn)
        elif acceptor.flush_lsn > read.next_lsn and process.core.wants_catch_up(peer):
            end_lsn = self._somewhere(read.next_lsn, acceptor.flush_lsn)
            self.cluster.bring_catch_up(process, peer, end_lsn)

    def _tick(self) -> None:
        self.now_ms += self.random.choice((100, 1000, 3000))
        for process in self._running():
            self.cluster.tick(process, self.now_ms)

    # ---- links

    def _connect(self) -> None:
        missing = [
            (process, node)
            for process in self._running()
            for peer, node in enumerate(self.cluster.nodes)
            if peer not in process.links and node.acceptor is not None
        ]
        if missing:
            self.cluster.connect(*self.random.choice(missing))

    def _deliver(self) -> None:
        links = list(self.cluster.links.values())
        busy = [link for link in links if link.to_node or link.to_proposer]
        if not links:
            return
        link = self.random.choice(busy if busy and self.random.random() < 0.8 else links)
        if link.to_proposer and (not link.to_node or self.random.random() < 0.5):
            self.cluster.deliver_to_proposer(link)
        elif self.random.random() < 0.8:
            self._read_at_node(link)
        else:
            self._notice_end(link)

    def _read_at_node(self, link: Link) -> None:
        """One message, or all; flushed and answered, or not yet; or the end."""
        if not link.is_open_at_node:
            return
        if not link.to_node:
            if not link.is_open_at_proposer or link.is_closing:
                self.cluster.disconnect(link)
            elif self.random.random() < 0.5:
                self.cluster.end_batch(link)
            return
        for _ in range(self.random.choice((1, len(link.to_node)))):
            if link.is_open_at_node:
                self.cluster.deliver_to_node(link)
        if link.is_open_at_node and self.random.random() < 0.7:
            self.cluster.end_batch(link)

    def _notice_end(self, link: Link) -> None:
        is_over = not link.is_open_at_node or link.is_closing
        if is_over and link.is_open_at_proposer and not link.to_proposer:
            self.cluster.lose(link)

    def _lose_link(self) -> None:
        links = [link for link in self.cluster.links.values() if link.is_open_at_proposer]
        if links:
            self.cluster.lose(self.random.choice(links))

    # ---- nodes

    def _lose_power(self) -> None:
        node = self.random.choice(self.cluster.nodes)
        if node.acceptor is not None:
            self.power_losses_count += 1
            unflushed = node.disk.written_lsn - node.disk.flushed_lsn
            self.cluster.lose_power(node, self.random.randint(0, unflushed))

    def _restart(self) -> None:
        down = [node for node in self.cluster.nodes if node.acceptor is None]
        if down:
            self.cluster.restart(self.random.choice(down))

    # ---- what was done

    def counts(self) -> dict[str, int]:
        return {
            "elections": len(self.cluster.safety.won_logs),
            "commits": len(self.cluster.safety.commits),
            "records": self.records_count,
            "truncations": self.truncations_count,
            "power losses": self.power_losses_count,
            "catch-ups": self.catch_ups_count,
        }

    def node_stepped(self, _: MemoryNode, __: NodeEvent, actions: list[NodeAction]) -> None:
        self.truncations_count += sum(isinstance(action, TruncateWal) for action in actions)

    def proposer_stepped(self, _: ProposerProcess, event: Event, __: list[Action]) -> None:
        self.catch_ups_count += isinstance(event, CatchUpWal)
