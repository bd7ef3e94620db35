"""Concurrent requests of threads and of killed processes: each number is assigned once."""

from __future__ import annotations

import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

from quorum_wal.generations.messages import TenantGeneration
from quorum_wal.generations.operations import Generations, embedded_generations
from quorum_wal.pg_fixtures.processes import ServiceProcess

TIMEOUT = 60.0
THREADS, CALLS = 8, 6
PROCESSES, NUMBERS, KILLS = 3, 8, 2
NODE = 3
KINDS = ("node", "tenant")
PROGRAM = Path(__file__).with_name("registering_process.py")


def test_threads_get_numbers_of_their_own(generations: Generations, tenant: str) -> None:
    def start(_: int) -> list[tuple[int, int]]:
        found = []
        for _ in range(CALLS):
            generation = generations.register_node(NODE, "a thread").node_generation
            state = generations.fence_tenant(tenant, NODE)
            asked = [TenantGeneration(tenant, state.attachment_generation)]
            generations.validate(NODE, generation, asked)
            found.append((generation, state.attachment_generation))
        return found

    with ThreadPoolExecutor(THREADS) as threads:
        found = [pair for pairs in threads.map(start, range(THREADS)) for pair in pairs]
    everything = list(range(1, THREADS * CALLS + 1))
    assert sorted(generation for generation, _ in found) == everything
    assert sorted(generation for _, generation in found) == everything


class Registering(ServiceProcess):
    def __init__(self, database: str, tenant: str, log_path: Path) -> None:
        program: list[str | Path] = [sys.executable, PROGRAM, database, str(NODE), tenant]
        super().__init__(program, log_path=log_path)

    @property
    def numbers(self) -> list[tuple[str, int]]:
        """The numbers answered so far. An incomplete last line, cut off by a kill, is ignored."""
        lines = self.log_text().splitlines(keepends=True)
        told = [line for line in lines if line.startswith(KINDS) and line.endswith("\n")]
        return [(line.split()[0], int(line.split()[1])) for line in told]

    def wait_more(self, count: int) -> None:
        before = len(self.numbers)
        self.wait_until(lambda: len(self.numbers) >= before + count, TIMEOUT, "more numbers")


def test_killed_processes_never_share_a_number(database: str, tenant: str, tmp_path: Path) -> None:
    """kill -9 at any point of a transaction. The next process opens the database as it is."""
    with ExitStack() as stack:
        processes = [
            stack.enter_context(Registering(database, tenant, tmp_path / f"process-{number}"))
            for number in range(PROCESSES)
        ]
        for _ in range(KILLS):
            for process in processes:
                process.wait_more(NUMBERS)
                process.kill()
                process.start()
    given = Counter(number for process in processes for number in process.numbers)
    assert len(given) >= PROCESSES * NUMBERS * KILLS
    assert [number for number, count in given.items() if count > 1] == []
    after = embedded_generations(database)
    try:
        last = {kind: max(n for k, n in given if k == kind) for kind in KINDS}
        assert after.register_node(NODE, "x").node_generation > last["node"]
        assert after.fence_tenant(tenant).attachment_generation > last["tenant"]
    finally:
        after.close()
