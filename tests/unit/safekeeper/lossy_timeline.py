"""`LossyTimeline`: a timeline on a `DroppingDisk`, whose power may fail before every operation.

The real `Timeline`, `WalStore` and `ControlFile`. Before each call that changes or syncs something,
and after each message, the test creates some of the states that a power loss could leave, in
another folder, and loads the timeline there. The state that it reports must be true:

    promised    is the promise that was answered, or a greater one that was requested
    histories   are those of a leader that was followed
    membership  is the one that was answered, or a greater one that was sent
    flush_lsn   is not below the answered one, since the last truncation was ordered
    the bytes   are those of the ballot that the history names last; zeros follow them
"""

from __future__ import annotations

import shutil
from pathlib import Path
from random import Random

from acceptor_steps import append, configure, elected, vote_request
from new_timeline import first_membership, new_control_state
from timeline_on_disk import create_timeline, load_timeline
from wal_log import START_LSN, WAL_SEG_SIZE, WalLog

from quorum_wal.consensus.ids import NodeId
from quorum_wal.consensus.membership import Membership, Stamp
from quorum_wal.consensus.messages import AppendResponse, SafekeeperMessage, VoteResponse
from quorum_wal.pgwal.history import TimelineHistory, TimelineSwitch
from quorum_wal.pgwal.lsn import Lsn
from quorum_wal.safekeeper.events import Received, TakeWal
from quorum_wal.safekeeper.timeline import Timeline
from quorum_wal.safekeeper.timeline_state import TimelineState
from quorum_wal.storage import durable
from tests.dropping_disk import LOSSES, DroppingDisk, Loss, RandomLoss, write_tree


class Lost(AssertionError):
    """A power loss violated a law."""


def check(holds: bool, *problem: object) -> None:
    if not holds:
        raise Lost(" ".join(map(str, problem)))


class LossyTimeline:
    """Use it within `disk.watching()`. `random_losses` states are tried at each place, besides one
    of the corners in turn; `every`: only at every n-th place."""

    def __init__(
        self, root: Path, seed: int = 0, *, random_losses: int = 1, every: int = 1
    ) -> None:
        self.random = Random(f"lossy timeline {seed}")
        self.folder = root / "disk" / "timeline"
        self._after = root / "after"
        self._random_losses, self._every = random_losses, every
        self.folder.parent.mkdir(parents=True)
        self.disk = DroppingDisk(self.folder.parent)
        self.places = self.losses = 0
        self.log = WalLog()
        state = new_control_state(first_membership(1, 2, 3))
        self.terms, self.history = state.term_history, state.tli_history
        #: Of the last leader followed; the answered membership, and all that were sent.
        self.membership = self.answered = state.membership
        self._sent = {state.membership}
        self.logs = {NodeId.ZERO: self.log}
        self._asked = {NodeId.ZERO}
        self._followed = {(self.terms, self.history)}
        self.promised, self.node_id = NodeId.ZERO, NodeId.ZERO
        self.floor_lsn = self.commit_lsn = START_LSN
        self.timeline: Timeline
        self._number = 0

    def create(self) -> None:
        """From here on the power may fail."""
        durable.make_directory(self.folder)
        self.timeline = create_timeline(self.folder)
        self.disk.before = self.try_losses

    # ---- power losses

    def try_losses(self, call: str, path: str) -> None:
        self.places += 1
        if self.places % self._every:
            return
        losses: list[Loss] = [LOSSES[self.places // self._every % len(LOSSES)]]
        losses += [RandomLoss(self.random.getrandbits(32)) for _ in range(self._random_losses)]
        for loss in losses:
            self.check_after(loss, f"before {call} of {Path(path).name}")

    def do_not_try(self, call: str, path: str) -> None:
        """For operations that a test does not examine."""

    def check_losses(self) -> None:
        """Between two operations: tries all the corners."""
        for loss in LOSSES:
            self.check_after(loss)

    def check_after(self, loss: Loss, where: str = "at rest") -> None:
        self.losses += 1
        write_tree(self.disk.surviving(loss, self.folder), self._after)
        try:
            self.check(load_timeline(self._after))
        except Exception as error:
            raise Lost(f"{where}, {loss}: {error}") from error
        finally:
            shutil.rmtree(self._after)

    def check(self, timeline: Timeline) -> None:
        """Checks that the state of a timeline that was just loaded is true."""
        check(timeline.state is TimelineState.ACTIVE, timeline.stopped_reason)
        control, flush_lsn = timeline.control, timeline.positions.flush_lsn
        check(control.promised >= self.promised, "promised", control.promised, self.promised)
        check(control.promised in self._asked, "promised", control.promised)
        check(control.membership.stamp >= self.answered.stamp, "has", control.membership)
        check(control.membership in self._sent, "has", control.membership)
        followed = control.term_history, control.tli_history
        check(followed in self._followed, "follows", followed)
        check(flush_lsn >= self.floor_lsn, f"ends at {flush_lsn:X}, below {self.floor_lsn:X}")
        last = control.term_history.clipped(flush_lsn).entries[-1].node_id
        begin_lsn = control.local_start_lsn
        check(begin_lsn <= self.commit_lsn, f"begins at {begin_lsn:X}")
        found = self._read(timeline, begin_lsn, flush_lsn)
        same = found == self.logs[last].read(begin_lsn, flush_lsn)
        check(same, f"has other bytes below {flush_lsn:X} than {last}")
        rest = self._read(timeline, flush_lsn, flush_lsn + WAL_SEG_SIZE)
        check(rest == bytes(len(rest)), f"has bytes behind its end {flush_lsn:X}")

    def _read(self, timeline: Timeline, lsn: int, end_lsn: int) -> bytes:
        wal = bytearray()
        while lsn < end_lsn:
            part = timeline.store.read(lsn, end_lsn - lsn)
            if not part:
                break
            wal += part
            lsn += len(part)
        return bytes(wal)

    # ---- operations

    def describe(self) -> dict[str, object]:
        return {}

    @property
    def number(self) -> int:
        return self._number

    def close(self, reason: str) -> None:
        """The timeline closes the connection of a proposer that was replaced."""

    def take_wal(self, order: TakeWal) -> None:
        raise AssertionError("nobody is chained here")

    def _send(self, event: Received) -> list[SafekeeperMessage]:
        return self.timeline.receive(self._number, [event.message])

    def connect(self) -> None:
        self._number += 1
        self.timeline.connect(self)

    def push(self, *, commits: bool = False) -> None:
        """Sends all WAL that the timeline lacks; with `commits`, also that it is committed."""
        begin_lsn = self.timeline.positions.written_lsn
        self._append(begin_lsn, self.log.read(begin_lsn, self.log.lsn))
        if commits:
            self._append(self.log.lsn, b"", commit_lsn=self.floor_lsn)

    def _append(self, begin_lsn: int, wal: bytes, **fields: int) -> None:
        fields["generation"] = self.membership.generation
        (answer,) = self._send(append(self.node_id, begin_lsn, len(wal), wal=wal, **fields))
        assert isinstance(answer, AppendResponse)
        self.floor_lsn, self.commit_lsn = answer.flush_lsn, max(self.commit_lsn, answer.commit_lsn)

    def push_part(self, length: int) -> None:
        """Sends the head of a record; its rest follows later."""
        begin_lsn = self.timeline.positions.written_lsn
        wal = self.log.read(begin_lsn, begin_lsn + length)
        self._append(begin_lsn, wal, record_end_lsn=self.floor_lsn)

    def write_unflushed(self) -> None:
        """Writes WAL as by a process that ends without a flush."""
        begin_lsn = self.timeline.positions.written_lsn
        self.timeline.store.write(begin_lsn, self.log.read(begin_lsn, self.log.lsn))

    def take_over(self, cut_lsn: int, *, is_promoted: bool = False) -> None:
        """Another leader, whose log diverges from ours at `cut_lsn`; `is_promoted`: with a new
        Postgres timeline."""
        self.node_id = NodeId(self.promised.term + 1, self.random.randbytes(16))
        switches = tuple(s for s in self.history.entries if s.switch_lsn < cut_lsn)
        tli = self.history.tli_at(max(cut_lsn - 1, START_LSN))
        if is_promoted:
            switches += (TimelineSwitch(tli, Lsn(cut_lsn), "promoted"),)
            tli = max(history.tli for _, history in self._followed) + 1
        self.history = TimelineHistory(tli, switches)
        self.terms = self.terms.clipped(cut_lsn).extended(self.node_id, cut_lsn)
        self.log = self.logs[self.node_id] = self.log.cut(cut_lsn, tli=tli)
        self.connect()
        self._asked.add(self.node_id)
        (vote,) = self._send(vote_request(self.node_id, self._number))
        assert isinstance(vote, VoteResponse)
        self.promised = self.node_id
        self._followed.add((self.terms, self.history))
        self.floor_lsn = min(self.floor_lsn, cut_lsn)
        self.membership = self.membership.stamped(Stamp(self.node_id, self.membership.generation))
        self._sent.add(self.membership)
        event = elected(
            *(self.node_id, cut_lsn, self.terms, self._number),
            tli_history=self.history,
            membership=self.membership,
        )
        self._send(event)
        self.answered = self.membership
        assert self.timeline.positions.written_lsn == cut_lsn

    def configure(self, membership: Membership) -> None:
        """The leader wrote another membership."""
        self.membership = membership
        self._sent.add(membership)
        (answer,) = self._send(configure(membership, self._number))
        assert isinstance(answer, AppendResponse)
        assert answer.generation == membership.generation
        self.answered = membership

    def next_stamp(self) -> Stamp:
        return Stamp(self.node_id, self.membership.generation + 1)

    def kill(self) -> None:
        """The process is killed and started again; the page cache survives."""
        self.timeline.store.abandon()
        self._loaded()

    def lose_power(self, loss: Loss) -> None:
        self.timeline.store.abandon()
        self.disk.lose_power(loss, self.folder)
        self._loaded()

    def _loaded(self) -> None:
        """A loaded state may be reported at once, so it must be durable."""
        self.timeline = load_timeline(self.folder)
        self.check(self.timeline)
        flush_lsn = self.timeline.positions.flush_lsn
        last = self.timeline.control.term_history.clipped(flush_lsn).entries[-1].node_id
        self.floor_lsn, self.promised = flush_lsn, self.timeline.control.promised
        control = self.timeline.control
        self.membership = self.answered = control.membership
        self.terms, self.history = control.term_history, control.tli_history
        self.log = self.logs[last]

    def remove_wal(self, lsn: int) -> None:
        """Removes WAL below `lsn`, as the process does when it is not needed."""
        self.timeline.advance_local_start(lsn)
        self.timeline.store.remove_below(lsn)
