"""`run_on_files`: a world whose safekeepers have real files, on disks that lose power."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from structlog.testing import capture_logs

from tests.dropping_disk import DroppingDisk

from .faults import Plan
from .file_node import FileNode
from .node import Node
from .trace import Trace
from .world import World

#: Files in memory, if there is such a folder.
MEMORY = Path("/dev/shm")


class FileWorld(World):
    """Created and run while `machine` records its calls."""

    def __init__(
        self,
        seed: int,
        machine: DroppingDisk,
        plan: Plan | None = None,
        trace: Trace | None = None,
    ) -> None:
        self.machine = machine
        super().__init__(seed, plan, trace)
        by_name = {node.name: node for node in self.nodes if isinstance(node, FileNode)}
        begin = len(machine.root) + 1

        def before_call(call: str, path: str) -> None:
            by_name[path[begin:].partition("/")[0]].before_call(call, path)

        machine.before = before_call

    def new_node(self, number: int) -> Node:
        return FileNode(self, number, self.membership, self.machine)


def run_on_files(seed: int, plan: Plan | None = None, trace: Trace | None = None) -> World:
    """The world after its run. Raises the errors of World.run."""
    with TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder:
        machine = DroppingDisk(Path(folder))
        with machine.watching(), capture_logs():
            world = FileWorld(seed, machine, plan, trace)
            world.run()
            machine.check_complete()
            return world
