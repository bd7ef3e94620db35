"""A pageserver's process on a folder and a database of numbers: the objects after its orders. Cuts
are added by hand, so no Postgres is needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from threading import Event, Thread

import numpy as np
import pytest

from quorum_wal.consensus.ids import TimelineId
from quorum_wal.generations.operations import embedded_generations
from quorum_wal.objectstore.archive import ArchivedTimeline, TimelineArchive
from quorum_wal.objectstore.local import LocalStore
from quorum_wal.pageserver.attached_timeline import AttachedTimeline
from quorum_wal.pageserver.attachments.attachment import Phase
from quorum_wal.pageserver.attachments.attachment_events import Mode
from quorum_wal.pageserver.attachments.attachment_shell import missing_text
from quorum_wal.pageserver.attachments.event_loop import EventLoop
from quorum_wal.pageserver.config import ProcessConfig
from quorum_wal.pageserver.cuts.cut_pages import open_layers
from quorum_wal.pageserver.cuts.page_audit import PageAudit
from quorum_wal.pageserver.cuts.page_objects import PageObjects
from quorum_wal.pageserver.epochs.redo import RedoServer
from quorum_wal.pageserver.ingest.cut_rule import CutRule
from quorum_wal.pageserver.ingest.ingest import Ingest, IngestConfig
from quorum_wal.pageserver.layers.fork import PAGE_BYTES, Fork, ForkKind
from quorum_wal.pageserver.layers.fork_table import ForkTable
from quorum_wal.pageserver.layers.frame import FrameWriter
from quorum_wal.pageserver.layers.layer_file import Epoch, Limits, write_layer
from quorum_wal.pageserver.layers.page_run import PageRun, Run
from quorum_wal.pageserver.layers.page_stack import PageStack
from quorum_wal.pageserver.layers.touches import Numbers
from quorum_wal.pageserver.objects.page_index import Cut, PageIndex
from quorum_wal.pageserver.objects.page_keys import FrameName, LayerName
from quorum_wal.pageserver.process import PageserverProcess
from quorum_wal.pageserver.service import timeline_status
from quorum_wal.pg_fixtures.waiting import wait_until
from quorum_wal.pg_server.account import server_account
from quorum_wal.pg_server.binaries import find_postgres

TIMEOUT = 30.0
TIMELINE = TimelineId(bytes(15) + b"\1", bytes(15) + b"\2")
TENANT = TIMELINE.tenant_id.hex()


class World:
    """A store, numbers, and files to upload."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.store = LocalStore(str(root / "archive"))
        facts = ArchivedTimeline(7, 150018, 1 << 20, 1, 0)
        TimelineArchive.create(self.store, TIMELINE, facts)
        self.objects = PageObjects(self.store, TIMELINE)
        self.database = str(root / "numbers.sqlite")

    @contextmanager
    def process(self, node_id: int = 1) -> Iterator[Node]:
        ingest = IngestConfig(
            lambda timeline: [],
            CutRule(),
            lambda major: RedoServer(find_postgres(), server_account()),
        )
        settings = ProcessConfig(
            node_id=node_id, data_dir=self.root / f"node-{node_id}", ingest=ingest,
            attaches_all=False, history_seconds=100, grace_seconds=0.0, validation_seconds=0.05,
            attachments_seconds=0.1, round_seconds=0.05, collect_seconds=0.05, scrub_seconds=0.2,
            compact_seconds=0.05,
        )  # fmt: skip
        loop = EventLoop()
        service = embedded_generations(self.database)
        process = PageserverProcess(settings, loop, self.store, service)
        thread = Thread(target=loop.run)
        with ExitStack() as stack:
            stack.callback(service.close)
            loop.post(process.start)
            thread.start()
            stack.callback(process.close)
            stack.callback(thread.join)
            stack.callback(loop.end)
            yield Node(self, process, loop)

    def attach(self, node_id: int = 1) -> None:
        service = embedded_generations(self.database)
        known = {tenant.tenant for tenant in service.status().tenants}
        (service.move if TENANT in known else service.attach)(TENANT, node_id)
        service.close()

    def index(self) -> PageIndex:
        """The newest index."""
        found = self.objects.index(max(self.objects.indices()))
        assert found is not None
        return found

    def ends(self, kind: type[FrameName | LayerName]) -> list[int]:
        return sorted(name.end_lsn for name in self.objects.pages() if isinstance(name, kind))


class Node:
    """A running process."""

    def __init__(self, world: World, process: PageserverProcess, loop: EventLoop) -> None:
        self.world = world
        self.process = process
        self._loop = loop

    @property
    def base_forks(self) -> ForkTable | None:
        """The forks of a base backup, which this archive does not have."""
        return self._ingest().base_forks

    @base_forks.setter
    def base_forks(self, forks: ForkTable) -> None:
        self._ingest().base_forks = forks

    def _ingest(self) -> Ingest:
        return wait_until(lambda: self.attached().ingest, TIMEOUT, "the ingest")

    def attached(self) -> AttachedTimeline:
        def active() -> AttachedTimeline | None:
            there = self.process.attached.get(TIMELINE)
            return there if there and there.shell.core.phase is Phase.ACTIVE else None

        return wait_until(active, TIMEOUT, "the attachment")

    def add_cut(
        self, end_lsn: int, time_unix_s: int, write: Callable[[int, list[Path]], None] | None = None
    ) -> None:
        """Add a cut of one layer and one frame; returns when an index names it. `write` makes the
        files."""
        there, cut = self.attached(), Cut(end_lsn - 20, end_lsn - 10, end_lsn, 1, time_unix_s)
        files = [self.world.root / f"{what}-{end_lsn}" for what in ("layer", "frame")]
        for path in files:
            path.write_bytes(path.name.encode() * 100)
        if write is not None:
            write(end_lsn, files)
        begun = Event()

        def change() -> None:
            there.shell.change(cut, "base", files[:1], files[1])
            begun.set()

        self._loop.post(change)
        begun.wait(TIMEOUT)
        wait_until(lambda: there.shell.core.index.newest_end_lsn == end_lsn, TIMEOUT, "the cut")


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def now() -> int:
    return int(datetime.now(UTC).timestamp())


def test_objects_without_an_index_are_deleted_and_the_rest_stays(world: World) -> None:
    """Cuts older than the history, and objects that an earlier process left."""
    world.attach()
    with world.process() as node:
        for number in range(1, 5):
            node.add_cut(number * 100, now() - 1000 + number)
        node.add_cut(500, now())
        # The newest cut that is older than the history is its horizon; older ones are deleted.
        wait_until(lambda: world.ends(FrameName) == [400, 500], TIMEOUT, "old frames to go")
        assert world.ends(LayerName) == [100, 200, 300, 400, 500]
        assert world.index().horizon_lsn == 400
    orphan = world.root / "orphan"
    orphan.write_bytes(b"orphan")
    (layer,) = [ref for ref in world.index().layers if ref.end_lsn == 500]
    left = type(layer)(600, 0, layer.suffix, layer.seq + 1000, 6)
    world.objects.upload(left, orphan)
    with world.process() as node:
        node.attached()
        wait_until(lambda: 600 not in world.ends(LayerName), TIMEOUT, "the orphan to be scrubbed")
        assert world.ends(LayerName) == [100, 200, 300, 400, 500]
        names = {ref.name for ref in (*world.index().layers, *world.index().frames)}
        assert names <= set(world.objects.pages())


def test_objects_that_are_lost_or_damaged_are_reported(world: World) -> None:
    """The scrub lists them, without reading them; an audit reads them."""
    world.attach()
    with world.process() as node:
        node.add_cut(100, now() - 1)
        node.add_cut(200, now())
        shell = node.attached().shell
        key = world.objects.keys.key(world.index().layers[0].name)
        content = world.store.get(key)
        world.store.delete(key)
        missing = wait_until(lambda: shell.missing, TIMEOUT, "the scrub")
        assert "1 objects of its cuts are missing in the archive, the first is layers/" in (
            missing_text(missing)
        )
        audit = PageAudit(world.store, TIMELINE)
        for is_fast in (True, False):
            (damage,) = audit.run(is_fast=is_fast)
            assert (damage.key, "does not exist" in damage.reason) == (key, True)
        world.store.put(key, content[:20] + bytes([content[20] ^ 1]) + content[21:])
        wait_until(lambda: not shell.missing, TIMEOUT, "the scrub")
        assert audit.run(is_fast=True) == ()
        assert [each.key for each in audit.run(is_fast=False)] == [key]
        world.store.put(key, content)
        assert audit.run(is_fast=False) == ()
        assert (audit.objects, audit.content_bytes) == (4, sum(
            ref.size_bytes for ref in (*world.index().layers, *world.index().frames)
        ))  # fmt: skip


FORK = Fork(1663, 5, 16384, ForkKind.MAIN)


def page_of(end_lsn: int) -> bytes:
    return f"{end_lsn:08}".encode() * (PAGE_BYTES // 8)


def write_pages(end_lsn: int, files: list[Path]) -> None:
    """A layer with page 0 and another page; a frame."""
    blocks = np.array([0, end_lsn // 100], np.uint32)
    run = PageRun(FORK, blocks, memoryview(page_of(end_lsn) * 2))
    epoch = Epoch(7, end_lsn - 100, end_lsn)
    limits = Limits({}, frozenset())
    write_layer(epoch, limits, [run], lambda _: files[0].open("wb"))
    with FrameWriter(files[1]) as writer:
        writer.finish(ForkTable({FORK: end_lsn // 100 + 1}), {})


def pages_read(world: World, index: PageIndex) -> dict[int, bytes]:
    """All pages of the fork that the layers have."""
    layers = open_layers(world.objects, list(index.layers))
    stack = PageStack(NoBase(), layers)
    return {
        block: bytes(data[at * PAGE_BYTES : (at + 1) * PAGE_BYTES])
        for blocks, data in stack.read(FORK, np.arange(10, dtype=np.uint32))
        for at, block in enumerate(blocks.tolist())
    }


class NoBase:
    """A base without pages."""

    def read(self, fork: Fork, blocks: Numbers) -> Iterator[Run]:
        yield from ()


def test_old_layers_become_one(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """During the upload the process is stopped, without any wait. The next process repeats the
    merge, and deletes the objects of the first."""
    monkeypatch.setattr("quorum_wal.pageserver.attachments.compaction.DEAD_SHARE_MAX", 0.3)
    world.attach()
    real, is_held = world.store.create, Event()
    seen = Event()

    def create(key: str, data: object) -> bool:
        if is_held.is_set() and "/layers/" in key:
            real(key, data)  # type: ignore[arg-type]
            seen.set()
            raise OSError("no answer")
        return real(key, data)  # type: ignore[arg-type]

    monkeypatch.setattr(world.store, "create", create)
    with world.process() as node:
        for number in range(1, 5):
            node.add_cut(number * 100, now() - 1000 + number, write_pages)
        node.add_cut(500, now(), write_pages)
        wait_until(lambda: world.index().horizon_lsn == 400, TIMEOUT, "the horizon")
        before = pages_read(world, world.index())
        is_held.set()
        node.base_forks = ForkTable()
        assert seen.wait(TIMEOUT)
    assert world.ends(LayerName) == [100, 200, 300, 400, 400, 500]
    assert pages_read(world, world.index()) == before
    is_held.clear()
    with world.process() as node:
        node.base_forks = ForkTable()
        wait_until(lambda: world.ends(LayerName) == [400, 500], TIMEOUT, "the old layers to go")
        compaction = node.attached().shell.compaction
        assert compaction is not None
        assert (compaction.state.merges, compaction.state.problem) == (1, "")
        assert not list(world.root.glob("node-1/*/merge/*"))
    assert pages_read(world, world.index()) == before
    assert before == {0: page_of(500), **{number: page_of(number * 100) for number in range(1, 6)}}


def test_layers_that_cannot_be_merged_stay(world: World) -> None:
    """They are damaged: this is reported, nothing is lost, and cuts continue."""
    world.attach()
    with world.process() as node:
        node.add_cut(100, now() - 1000, write_pages)
        node.add_cut(200, now() - 900)  # no frame, and no layer
        node.base_forks = ForkTable()
        compaction = node.attached().shell.compaction
        assert compaction is not None
        wait_until(lambda: compaction.state.problem, TIMEOUT, "the problem")
        assert "is not a tar file" in compaction.state.problem
        page = timeline_status(node.attached(), "")
        assert (page["merges"], page["compaction_problem"] != "") == (0, True)
        node.add_cut(300, now(), write_pages)
        assert world.ends(LayerName) == [100, 200, 300]


def test_the_older_of_two_stops_and_the_objects_of_the_newer_stay(world: World) -> None:
    world.attach(1)
    with world.process(1) as old, world.process(2) as new:
        old.add_cut(100, now())
        core = old.attached().shell.core
        wait_until(lambda: core.visible_lsn == 80, TIMEOUT, "WAL to be given up")
        world.attach(2)
        new.add_cut(200, now())
        wait_until(lambda: core.mode is Mode.STALE, TIMEOUT, "the old one to be stale")
        assert core.visible_lsn == 80
        new.add_cut(300, now())
        assert [cut.end_lsn for cut in world.index().cuts] == [100, 200, 300]
        assert world.ends(FrameName) == [100, 200, 300]
        assert new.attached().shell.core.mode is Mode.SINGLE


def test_two_processes_of_one_node(world: World) -> None:
    """As a StatefulSet may run: the older one exits."""
    world.attach()
    with world.process() as old:
        old.add_cut(100, now())
        with world.process() as new:
            new.add_cut(200, now())
            reason = wait_until(lambda: old.process.end_reason, TIMEOUT, "the old one to end")
            assert "has a newer process" in reason[0] or "already claimed by" in reason[0]
            assert new.process.end_reason is None


def test_a_failing_store_is_tried_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.attach()
    failures = {"create": 3, "get": 2, "list": 2, "delete_many": 2}
    for name in failures:
        monkeypatch.setattr(world.store, name, failing(world.store, name, failures))
    monkeypatch.setattr("quorum_wal.pageserver.attachments.attachment_shell.RETRY_SECONDS", 0.02)
    monkeypatch.setattr("quorum_wal.pageserver.attachments.queue_shell.RETRY_SECONDS", 0.02)
    monkeypatch.setattr("quorum_wal.pageserver.process.REGISTER_RETRY_SECONDS", 0.02)
    with world.process() as node:
        node.add_cut(100, now() - 1000)
        node.add_cut(200, now() - 900)
        wait_until(lambda: world.ends(FrameName) == [200], TIMEOUT, "the old frame to go")
    assert failures == dict.fromkeys(failures, 0)


def failing(store: LocalStore, name: str, left: dict[str, int]) -> Callable[..., object]:
    """The first calls fail; a `create` fails after it was done, as when an answer is lost."""
    real = getattr(store, name)

    def call(*arguments: object) -> object:
        if left[name] > 0:
            left[name] -= 1
            if name == "create":
                real(*arguments)
            raise OSError("no answer")
        return real(*arguments)

    return call
