"""The usage of processes, as the kernel counts it. Source: proc(5)."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Usage:
    """Sums over some processes since their starts."""

    user_seconds: float
    sys_seconds: float
    context_switches: int

    @property
    def cpu_seconds(self) -> float:
        return self.user_seconds + self.sys_seconds

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.user_seconds + other.user_seconds,
            self.sys_seconds + other.sys_seconds,
            self.context_switches + other.context_switches,
        )

    def __sub__(self, earlier: Usage) -> Usage:
        return Usage(
            self.user_seconds - earlier.user_seconds,
            self.sys_seconds - earlier.sys_seconds,
            self.context_switches - earlier.context_switches,
        )


def read_usage(pids: Iterable[int]) -> Usage:
    """All threads of these processes: user and system time, each rounded down to a tick."""
    user = system = switches = 0
    for pid in pids:
        # pid (name) state ... utime stime (the 14th and 15th); a name may contain anything
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        user += int(fields[11])
        system += int(fields[12])
        for status in Path(f"/proc/{pid}/task").glob("*/status"):
            switches += _number(status, "voluntary_ctxt_switches")
            switches += _number(status, "nonvoluntary_ctxt_switches")
    return Usage(user / TICKS_PER_SECOND, system / TICKS_PER_SECOND, switches)


def idle_seconds() -> float:
    """The idle time of all processors together since the boot, including waits for a disk."""
    _, *fields = Path("/proc/stat").read_text().partition("\n")[0].split()
    return (int(fields[3]) + int(fields[4])) / TICKS_PER_SECOND


def rss_peak_bytes(pid: int) -> int:
    """The peak of resident memory of one process so far (VmHWM)."""
    return _number(Path(f"/proc/{pid}/status"), "VmHWM") * 1024


def descendants(pid: int) -> list[int]:
    """All processes below one, at any depth."""
    parents: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended
        parents.setdefault(parent, []).append(int(stat.parent.name))
    found = parents.get(pid, [])
    return found + [below for child in found for below in descendants(child)]


def _number(status: Path, name: str) -> int:
    for line in status.read_text().splitlines():
        key, _, value = line.partition(":")
        if key == name:
            return int(value.split()[0])
    raise LookupError(f'no "{name}" in {status}')
