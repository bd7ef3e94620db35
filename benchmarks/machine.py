"""The machine and its load: one line for every figure."""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

FLUSH_PROBES = 200
FLUSH_BYTES = 8192
MEMORY_FILE_SYSTEMS = ("tmpfs", "ramfs")


@dataclass(frozen=True, slots=True)
class Machine:
    """`flush_us`: the median fdatasync of 8 KiB overwritten in place, on an idle disk."""

    cpu: str
    cpus: int
    memory_gib: float
    kernel: str
    file_system: str
    python: str
    postgres: str
    flush_us: float

    @property
    def is_memory_disk(self) -> bool:
        """fsync costs nothing there, so the figures say nothing about commits."""
        return self.file_system in MEMORY_FILE_SYSTEMS

    def format(self) -> str:
        return (
            f"{self.cpus} x {self.cpu}, {self.memory_gib:.0f} GiB, Linux {self.kernel}, "
            f"{self.file_system}, fdatasync {self.flush_us:.0f} us, "
            f"Postgres {self.postgres}, Python {self.python}"
        )


def describe_machine(directory: Path, postgres_version: str) -> Machine:
    """The machine, with the disk that `directory` is on."""
    return Machine(
        cpu=_field(Path("/proc/cpuinfo"), "model name") or platform.machine(),
        cpus=len(os.sched_getaffinity(0)),
        memory_gib=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30),
        kernel=platform.release(),
        file_system=_file_system(directory),
        python=platform.python_version(),
        postgres=postgres_version,
        flush_us=_flush_us(directory),
    )


def format_load() -> str:
    """The load averages, which show other work on the machine."""
    return "load " + " ".join(f"{load:.2f}" for load in os.getloadavg())


def _field(path: Path, name: str) -> str:
    for line in path.read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return ""


def _file_system(directory: Path) -> str:
    words = ["stat", "--file-system", "--format=%T", str(directory)]
    name = subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()
    return "ext4" if name == "ext2/ext3" else name  # one magic number for all three


def _flush_us(directory: Path) -> float:
    path = directory / "flush-probe"
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        os.pwrite(fd, bytes(FLUSH_PROBES * FLUSH_BYTES), 0)
        os.fsync(fd)
        times = []
        for number in range(FLUSH_PROBES):
            os.pwrite(fd, b"\1" * FLUSH_BYTES, number * FLUSH_BYTES)
            begun = time.perf_counter()
            os.fdatasync(fd)
            times.append(time.perf_counter() - begun)
    finally:
        os.close(fd)
        path.unlink()
    return statistics.median(times) * 1e6
