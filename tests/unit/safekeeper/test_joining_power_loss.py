"""A power loss before each file operation of JOIN_TIMELINE and LEAVE_TIMELINE: all or nothing.

After it the safekeeper is as before the command, or as after it; once the command was answered, as
after it. A timeline that was left has no WAL, and one that was joined only its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from shutil import rmtree
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from acceptor_steps import B1, A, append, elected, history
from joining_steps import JOIN_LSN, SAFEKEEPER_ID, offer_of, without_four
from lossy_timeline import Lost, check
from new_timeline import TIMELINE
from timeline_on_disk import HOOKS, Pusher
from wal_log import START_LSN, WAL_SEG_SIZE, WalLog

from quorum_wal.consensus.ids import NodeId, TimelineId
from quorum_wal.consensus.join import TimelineOffer
from quorum_wal.consensus.membership import Membership
from quorum_wal.consensus.messages import AppendResponse
from quorum_wal.safekeeper import timelines as timelines_module
from quorum_wal.safekeeper.control_file import CONTROL_FILE_NAME, ControlFile
from quorum_wal.safekeeper.control_state import ControlState, encode_control_state
from quorum_wal.safekeeper.data_directory import DataDirectory
from quorum_wal.safekeeper.join_rules import departed
from quorum_wal.safekeeper.timeline import Timeline
from quorum_wal.safekeeper.timeline_state import TimelineState
from quorum_wal.safekeeper.timelines import Timelines
from quorum_wal.storage import durable
from tests.dropping_disk import LOSSES, DroppingDisk, RandomLoss, write_tree
from tests.simulation.planting import Patch, Plant, planted

SHM = Path("/dev/shm")
PIECES, PIECE_BYTES = 8, 6000
#: The visible state of the timeline: None; or the control state, and how far the log reaches.
Known = tuple[TimelineState, NodeId, Membership, int] | None


def known(timelines: Timelines) -> Known:
    if not timelines.all():
        return None
    (timeline,) = timelines.all()
    control = timeline.control
    return timeline.state, control.promised, control.membership, timeline.positions.flush_lsn


class LossyMember:
    """Safekeeper 4, on a disk whose power may fail before every operation."""

    def __init__(self, root: Path) -> None:
        self.path = root / "machine" / "data"
        self._after = root / "after"
        self.path.parent.mkdir(parents=True)
        self.disk = DroppingDisk(self.path.parent)
        self.losses = 0
        self.log = WalLog()
        while self.log.lsn < JOIN_LSN + 2 * WAL_SEG_SIZE:
            self.log.append(f"R{len(self.log.ends)}", 30_000)
        self._allowed: list[Known] = [None]
        self._connections = 0
        self._acknowledged_lsn = 0

    def open(self) -> None:
        self.directory = DataDirectory(self.path, SAFEKEEPER_ID)
        self.timelines = Timelines(self.directory, HOOKS)

    def close(self) -> None:
        self.timelines.close()
        self.directory.close()

    def do(self, command: str, argument: TimelineOffer | Membership, after: Known) -> None:
        """JOIN or LEAVE; `after` is the visible state once it is answered."""
        before = known(self.timelines)
        self._allowed = [before, after]
        self.disk.before = self.try_losses
        getattr(self.timelines, command)(TIMELINE, argument)
        self._allowed = [after]
        self.try_losses("the end of", command)
        self.disk.before = lambda call, path: None
        check(known(self.timelines) == after, known(self.timelines), "instead of", after)

    def try_losses(self, call: str, path: str) -> None:
        for loss in (*LOSSES, RandomLoss(self.losses)):
            self.losses += 1
            write_tree(self.disk.surviving(loss), self._after)
            directory = DataDirectory(self._after / "data", SAFEKEEPER_ID)
            try:
                self._check(Timelines(directory, HOOKS))
            except Exception as error:
                raise Lost(f"before {call} of {path}, {loss}: {error}") from error
            finally:
                directory.close()
                rmtree(self._after)

    def _check(self, timelines: Timelines) -> None:
        check(not timelines.damaged, timelines.damaged)
        found = known(timelines)
        check(found in self._allowed, found, "instead of one of", self._allowed)
        if found is None:
            return
        timeline = timelines.get(TIMELINE)
        if timeline.control.has_left:
            check(not _files(timeline), "has left, and has", _files(timeline))
        elif timeline.positions.flush_lsn > timeline.control.local_start_lsn:
            wal = timeline.store.read(JOIN_LSN, WAL_SEG_SIZE)
            check(wal == self.log.read(JOIN_LSN, JOIN_LSN + WAL_SEG_SIZE), "has other bytes")
        else:
            check(not timeline.store.read(JOIN_LSN, 1), "has WAL of before")
            check(not timeline.slots.all(), "has slots of before")

    def fill(self, offer: TimelineOffer) -> None:
        """The leader streams all of the log to it; it is on disk."""
        self._connections += 1
        node_id, number = offer.node_id, self._connections
        pusher = Pusher(self.timelines.get(TIMELINE), number, node_id, self.log)
        pusher.timeline.connect(pusher)
        terms = history((node_id, START_LSN))
        membership = offer.membership
        pusher.send(elected(node_id, offer.start_lsn, terms, number, membership=membership))
        wal = self.log.read(offer.start_lsn, self.log.lsn)
        generation = membership.generation
        pusher.send(
            append(
                *(node_id, offer.start_lsn, len(wal), number),
                generation=generation, wal=wal, commit_lsn=self.log.lsn,
            )
        )  # fmt: skip
        pusher.timeline.slots.create("standby", JOIN_LSN)
        pusher.timeline.maintain_files()

    def stream(self, offer: TimelineOffer) -> None:
        """The first WAL comes in small pieces: the rest of a record, and whole ones."""
        node_id, lsn = offer.node_id, offer.start_lsn
        assert lsn not in self.log.ends, "it begins inside a record"
        pusher = Pusher(self.timelines.get(TIMELINE), 1, node_id, self.log)
        pusher.timeline.connect(pusher)
        terms, membership = history((node_id, START_LSN)), offer.membership
        pusher.send(elected(node_id, lsn, terms, membership=membership))
        self._acknowledged_lsn = lsn
        self.disk.before = self.try_torn_sectors
        for _ in range(PIECES):
            wal = self.log.read(lsn, lsn + PIECE_BYTES)
            ends = [end for end in self.log.ends if offer.start_lsn < end <= lsn + len(wal)]
            record_end_lsn = ends[-1] if ends else offer.start_lsn
            event = append(node_id, lsn, len(wal), record_end_lsn=record_end_lsn, wal=wal)
            (answer,) = pusher.send(event)
            assert isinstance(answer, AppendResponse)
            self._acknowledged_lsn, lsn = answer.flush_lsn, lsn + len(wal)
            self.try_torn_sectors("the end of", "an append")
        assert self._acknowledged_lsn > offer.start_lsn + PIECE_BYTES

    def try_torn_sectors(self, call: str, path: str) -> None:
        for _ in range(20):
            self.losses += 1
            loss = RandomLoss(self.losses)
            write_tree(self.disk.surviving(loss), self._after)
            directory = DataDirectory(self._after / "data", SAFEKEEPER_ID)
            try:
                self._check_log(Timelines(directory, HOOKS).get(TIMELINE))
            except Exception as error:
                raise Lost(f"before {call} of {path}, {loss}: {error}") from error
            finally:
                directory.close()
                rmtree(self._after)

    def _check_log(self, timeline: Timeline) -> None:
        flush_lsn = timeline.positions.flush_lsn
        check(timeline.state is TimelineState.ACTIVE, timeline.stopped_reason)
        check(flush_lsn >= self._acknowledged_lsn, f"ends at {flush_lsn:X}")
        check(not timeline.control.lost_lsn, f"has lost what is above {flush_lsn:X}")
        wal = timeline.store.read(JOIN_LSN, flush_lsn - JOIN_LSN)
        check(wal == self.log.read(JOIN_LSN, flush_lsn), f"has other bytes below {flush_lsn:X}")


def _files(timeline: Timeline) -> list[str]:
    folder = timeline.directory
    return [path.name for path in folder.rglob("*") if path.is_file() and path.parent != folder] + [
        path.name for path in folder.iterdir() if path.is_file() and path.name != CONTROL_FILE_NAME
    ]


@pytest.fixture
def folder() -> Iterator[Path]:
    """In memory, if there is such a folder: hundreds of disks are written."""
    with TemporaryDirectory(dir=SHM if SHM.is_dir() else None) as path:
        yield Path(path)


def live(world: LossyMember) -> None:
    """It joins, has WAL, leaves, is started again, joins again, has WAL, and leaves again."""
    offers = offer_of(A, 1), offer_of(B1, 3)
    for offer, generation in zip(offers, (2, 4), strict=True):
        node_id, joined = offer.node_id, offer.membership
        world.do("join", offer, (TimelineState.ACTIVE, node_id, joined, JOIN_LSN))
        world.fill(offer)
        gone = without_four(node_id, generation)
        world.do("leave", gone, (TimelineState.LEFT, node_id, gone, START_LSN))
        world.close()
        world.open()


def run(folder: Path) -> LossyMember:
    world = LossyMember(folder)
    with world.disk.watching():
        world.open()
        live(world)
        world.close()
        world.disk.check_complete()
    return world


def test_joining_and_leaving_is_atomic(folder: Path) -> None:
    assert run(folder / "world").losses > 200


def stream(folder: Path) -> LossyMember:
    world = LossyMember(folder)
    with world.disk.watching():
        world.open()
        world.timelines.join(TIMELINE, offer_of())
        world.stream(offer_of())
        world.close()
    return world


def test_a_log_that_begins_inside_a_record_is_trusted_from_its_first_answer_on(
    folder: Path,
) -> None:
    """No checksum covers the rest of that record: torn sectors in it cannot be detected."""
    assert stream(folder / "world").losses > 100


# ---- the test is tested


def left_in_memory_only(patch: Patch) -> None:
    def finish(self: ControlFile, state: ControlState) -> None:
        self.state = state

    patch(ControlFile, "finish", finish)


def wal_goes_first(patch: Patch) -> None:
    real = Timelines.leave

    def leave(self: Timelines, timeline: TimelineId, membership: Membership) -> None:
        self.data_directory.remove_log(timeline)
        real(self, timeline, membership)

    patch(Timelines, "leave", leave)


def wal_stays(patch: Patch) -> None:
    patch(DataDirectory, "remove_log", lambda self, timeline: None)


def promise_forgotten(patch: Patch) -> None:
    def forgetful(safekeeper_id: int, control: ControlState, membership: Membership) -> Any:
        return replace(departed(safekeeper_id, control, membership), promised=NodeId.ZERO)

    patch(timelines_module, "departed", forgetful)


def joined_in_place(patch: Patch) -> None:
    """Not atomic: the control file has its name before the folder is complete."""

    def write_new(self: Timelines, state: ControlState) -> None:
        folder = self.data_directory.folder(state.timeline)
        durable.make_directory(folder / "wal")
        durable.replace_file(folder / CONTROL_FILE_NAME, encode_control_state(state))
        self._open(folder)

    patch(Timelines, "_write_new", write_new)


@pytest.mark.parametrize(
    "bug",
    [
        left_in_memory_only, wal_goes_first, wal_stays, promise_forgotten,
        joined_in_place,
    ],
    ids=lambda bug: bug.__name__,
)  # fmt: skip
def test_a_planted_bug_is_caught(folder: Path, bug: Plant) -> None:
    with planted(bug), pytest.raises(Lost):
        run(folder / "world")


def test_a_log_that_is_trusted_too_early_is_caught(folder: Path) -> None:
    def believed(patch: Patch) -> None:
        patch(ControlState, "is_unproven", property(lambda self: False))

    with planted(believed), pytest.raises(Lost, match="has other bytes"):
        stream(folder / "world")
