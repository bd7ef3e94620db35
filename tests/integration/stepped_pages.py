"""Stops a pageserver at any request to the store, and checks the laws meanwhile.

    python tests/integration/stepped_pages.py --steps 1-120              a folder
    PYTHONPATH=tests python tests/integration/stepped_pages.py --store s3 --node same

One pageserver has the timeline and stops (SIGSTOP) at its n-th request to the store, before or
after it. Another one takes over, makes cuts and deletes old objects. Then the first one continues.
The checks read the store: all objects that its newest index names exist, and that index covers all
WAL that was released.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import click

from quorum_wal.consensus.ids import TimelineId
from quorum_wal.generations.client import GenerationClient
from quorum_wal.objectstore.archive import ArchivedTimeline, TimelineArchive
from quorum_wal.objectstore.store import open_store
from quorum_wal.pageserver.cuts.page_objects import PageObjects
from quorum_wal.pageserver.objects.page_index import PageIndex
from quorum_wal.pageserver.objects.page_keys import ClaimName, IndexName, PageName
from quorum_wal.pg_fixtures.generations import GenerationProcess
from quorum_wal.pg_fixtures.http_status import http_get
from quorum_wal.pg_fixtures.pageserver import PageserverProcess
from quorum_wal.pg_fixtures.process_table import session_members
from quorum_wal.pg_fixtures.waiting import wait_until
from quorum_wal.pgwal.lsn import Lsn

TIMEOUT = 120.0
STEPPED_SK = (sys.executable, "-m", "tests.integration.stepped_sk")
TIMELINE = TimelineId(bytes(15) + b"\1", bytes(15) + b"\2")
TENANT = TIMELINE.tenant_id.hex()
#: The pending request, and then the first one that reads the present state.
LOOKS = 3
#: Deletions may continue: what was validated before remains valid.
WRITES = ("create", "put")


class Broken(Exception):
    """A law is broken."""


class SteppedPageserver(PageserverProcess):
    """`sk pageserver run` through stepped_sk.py."""

    def __init__(
        self, world: PagesWorld, name: str, node_id: int, arguments: Sequence[str]
    ) -> None:
        self._world = world
        self.step_log = world.root / f"{name}.steps"
        super().__init__(
            world.url,
            ["127.0.0.1:1"],
            world.root / name,
            node_id=node_id,
            arguments=[*world.archive_options, "--grace-hours", "0", "--history-days", "0",
                       *arguments],
        )  # fmt: skip
        self.program[:3] = STEPPED_SK
        # A store in another process is slower than a folder, most of all on a busy machine.
        self.env = {"STEP_PACE": str(5 if world.archive_options else 1)}
        self.env |= {"STEP_LOG": str(self.step_log), "STEP_CUTS": str(world.given_up)}

    @property
    def is_stopped(self) -> bool:
        return all(entry.state == "T" for entry in session_members(self.pid))

    def wait_stopped(self) -> None:
        self.wait_until(lambda: self.is_stopped, TIMEOUT, "it to stand still")

    def suffix(self) -> str:
        return str(self.timeline().get("suffix", ""))

    def wait_attached(self, above: str = "") -> None:
        """Wait until it is attached with the newest suffix, that is, after all claims."""

        def is_attached() -> bool:
            page, newest = self.timeline(), max(self._world.claims(), default="")
            return newest > above and (page.get("mode"), page.get("suffix")) == ("single", newest)

        self.wait_until(is_attached, TIMEOUT, "the timeline")

    def cut_lsn(self) -> int:
        return int(Lsn.parse(self.timeline().get("cut_lsn", "0/0")))

    def wait_cuts(self, count: int = 2) -> None:
        """Wait for that many more cuts."""
        behind_lsn = self.cut_lsn() + 100 * count
        self.wait_until(lambda: self.cut_lsn() >= behind_lsn, TIMEOUT, f"{count} more cuts")

    def wait_visible(self) -> None:
        """Wait until WAL is released and objects are deleted, from now on."""
        page, deleted = self.timeline(), self.status()["deleted_objects"]
        before = page["visible_lsn"]

        def goes_on() -> bool:
            is_up = self.timeline()["visible_lsn"] != before
            return is_up and self.status()["deleted_objects"] > deleted

        self.wait_until(goes_on, TIMEOUT, "WAL to be given up, and objects to be deleted")

    def looks(self) -> int:
        """How often it has listed the timelines to attach."""
        lines = self.step_log.read_text().splitlines()
        return sum(line.split() == [line.split()[0], "list"] for line in lines)

    def writes(self) -> int:
        """How many objects of the timeline's pages it has asked to create."""
        lines = self.step_log.read_text().splitlines()
        return sum(line.split()[1] in WRITES and "/pages/" in line for line in lines)


class PagesWorld:
    """A store with a timeline, a generation service, and readers of the store."""

    def __init__(
        self, root: Path, url: str, options: Mapping[str, str], service: GenerationProcess
    ) -> None:
        self.root = root
        self.url = url
        self.service = service
        self.given_up = root / "given-up"
        self.given_up.touch()
        given = (("--archive-option", f"{name}={value}") for name, value in options.items())
        self.archive_options = [word for pair in given for word in pair]
        self.store = open_store(url, options)
        TimelineArchive.create(self.store, TIMELINE, ArchivedTimeline(7, 150018, 1 << 20, 1, 0))
        self.objects = PageObjects(self.store, TIMELINE)

    def pageserver(self, name: str, node_id: int, *arguments: str) -> SteppedPageserver:
        return SteppedPageserver(
            self, name, node_id, ["--generations", self.service.url, *arguments]
        )

    def place(self, node_id: int) -> None:
        """Attach the tenant there, wherever it was: `sk generations fence`."""
        GenerationClient(self.service.url).fence_tenant(TENANT, node_id)

    def claims(self) -> list[str]:
        names = self.objects.pages()
        return [str(name.suffix) for name in names if isinstance(name, ClaimName)]

    # ---- the laws

    def check(self) -> PageIndex:
        """Returns the chosen index. Raises Broken."""
        while True:
            given_up_lsn = max(map(int, self.given_up.read_text().split()), default=0)
            name, index = self._newest()
            there = self._names()
            if max(self.objects.indices()) != name:
                continue  # it was replaced, and the objects that it named may be deleted
            missing = index.names - there
            if missing:
                raise Broken(f"{name} names what is not there: {missing}")
            if index.newest_redo_lsn < given_up_lsn:
                raise Broken(f"WAL was given up to {given_up_lsn}; {name} needs it from "
                             f"{index.newest_redo_lsn} on")  # fmt: skip
            return index

    def _newest(self) -> tuple[IndexName, PageIndex]:
        while True:
            name = max(self.objects.indices())
            index = self.objects.index(name)
            if index is not None:
                return name, index

    def _names(self) -> set[PageName]:
        return set(self.objects.pages())

    def check_until(self, condition: Callable[[], Any], what: str) -> Any:
        """Check repeatedly until the condition holds."""

        def checked() -> Any:
            self.check()
            return condition()

        return wait_until(checked, TIMEOUT, what)


@contextmanager
def pages_world(root: Path, url: str, options: Mapping[str, str]) -> Iterator[PagesWorld]:
    database, log = str(root / "numbers.sqlite"), root / "numbers.log"
    with GenerationProcess(database, log_path=log) as service:
        yield PagesWorld(root, url, options, service)


def run_step(
    world: PagesWorld, newer: SteppedPageserver, step: int, *, is_done: bool, is_same_node: bool
) -> str:
    """`newer` is node 2, and runs. Returns the request at which the older one stopped. Raises
    Broken."""
    node_id = 2 if is_same_node else 1
    older = world.pageserver(f"older-{step}-{int(is_done)}", node_id)
    older.env |= {"STEP_AT": str(step), "STEP_IS_DONE": "1" if is_done else ""}
    before = newer.suffix()
    if is_same_node:
        newer.kill()
    else:
        world.place(1)
    with older:
        older.wait_stopped()
        what = older.step_log.read_text().splitlines()[step - 1]
        if is_same_node:
            newer.start()
        else:
            world.place(2)
        newer.wait_attached(above=before)
        newer.wait_cuts()
        newer.wait_visible()
        world.check()
        looks = older.looks()
        older.resume()
        world.check_until(lambda: _knows(older, looks), f"the older one to see it, {what}")
        # What it had decided to write before may be written now, but nothing after its next look.
        looks = older.looks()
        world.check_until(
            lambda: not older.alive or older.looks() > looks + 1, "the older one to look again"
        )
        writes = older.writes()
        newer.wait_cuts()
        newer.wait_visible()
        world.check()
        if older.writes() != writes:
            raise Broken(f"the older one writes on, {what}")
    return what


def _knows(older: SteppedPageserver, looks: int) -> bool:
    """Whether it knows that it was replaced: it reports so, or has exited, or has listed the
    attachments and found none."""
    if not older.alive:
        assert older.exit_code == 1
        assert any(why in older.log_text() for why in ("newer process", "already claimed by",
                                                       "was replaced by"))  # fmt: skip
        return True
    try:
        page = older.status()
    except OSError:
        return False  # it has not started, or exits now
    if not page["node_generation"]:
        return False
    if not page["timelines"]:
        return older.looks() > looks + LOOKS
    (timeline,) = page["timelines"].values()
    if timeline["mode"] != "stale":
        return False
    try:
        code, health = http_get(older.http_address, "/healthz")
    except OSError:
        return False  # it exits now
    assert (code, "is stale" in health, "is stale" in timeline["problem"]) == (503, True, True)
    assert "is stale" in older.log_text()
    return True


@click.command()
@click.option("--steps", default="1-80", help="FIRST-LAST, without the last.")
@click.option("--store", type=click.Choice(["folder", "s3"]), default="folder")
@click.option("--node", type=click.Choice(["other", "same"]), default="other", help="Of the newer.")
def main(steps: str, store: str, node: str) -> None:
    """Exits with 1 at the first step that breaks a law."""
    root = Path(tempfile.mkdtemp(prefix="steps-"))
    with ExitStack() as stack:
        url, options = str(root / "archive"), dict[str, str]()
        if store == "s3":
            from s3_server import S3Server

            server = stack.enter_context(S3Server(root / "s3.log"))
            url, options = server.new_bucket(), server.options()
        world = stack.enter_context(pages_world(root, url, options))
        world.place(2)
        newer = stack.enter_context(world.pageserver("newer", 2))
        newer.wait_cuts()
        for step in range(*map(int, steps.split("-"))):
            for is_done in (False, True):
                where = "behind" if is_done else "before"
                what = run_step(world, newer, step, is_done=is_done, is_same_node=node == "same")
                click.echo(f"{store}, {node} node, {where} {what}: nothing was lost")


if __name__ == "__main__":
    main()
