"""The kernel's process table, read from /proc: states, parents and sessions of processes.

The kernel reuses pids. A `ProcessEntry` also has the start time, which makes it unique. Source:
proc(5).
"""

from __future__ import annotations

import os
import select
import signal
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class ProcessEntry:
    """An entry of the table. `state` is the letter of ps(1): R, S, D, T (stopped), Z (dead)..."""

    pid: int
    parent_pid: int
    session_id: int
    state: str
    start_ticks: int

    @property
    def dead(self) -> bool:
        """It has ended; a zombie waits for its parent to read its exit code."""
        return self.state in "ZX"

    def now(self) -> ProcessEntry | None:
        """The present entry of the same process, or None if it has ended."""
        entry = read_entry(self.pid)
        if entry is None or entry.start_ticks != self.start_ticks or entry.dead:
            return None
        return entry


def read_entry(pid: int) -> ProcessEntry | None:
    """The entry of `pid`, or None if there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
            text = file.read()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # pid (name) state ppid pgrp session ... starttime (the 22nd); a name may contain ")" and spaces
    fields = text[text.rindex(b")") + 2 :].split()
    state = fields[0].decode()
    return ProcessEntry(pid, int(fields[1]), int(fields[3]), state, int(fields[19]))


def process_table() -> list[ProcessEntry]:
    """All processes, including zombies."""
    return [entry for pid in all_pids() if (entry := read_entry(pid)) is not None]


def all_pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def session_members(session_id: int) -> list[ProcessEntry]:
    """The running processes of a session. Only their entries are read: getsid(2) takes a hundredth
    of that."""
    found = [read_entry(pid) for pid in all_pids() if session_of(pid) == session_id]
    return [e for e in found if e is not None and e.session_id == session_id and not e.dead]


def session_of(pid: int) -> int | None:
    """None if there is no such process."""
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return None


def family(pid: int) -> list[ProcessEntry]:
    """The running process `pid` and all its running descendants, parents first."""
    children: dict[int, list[ProcessEntry]] = defaultdict(list)
    members: list[ProcessEntry] = []
    for entry in process_table():
        if not entry.dead:
            children[entry.parent_pid].append(entry)
            if entry.pid == pid:
                members.append(entry)
    for member in members:  # the list grows during the loop: breadth first
        members.extend(children[member.pid])
    return members


def signal_entry(entry: ProcessEntry, number: signal.Signals) -> None:
    """Sends a signal, unless the process has ended."""
    try:
        os.kill(entry.pid, number)
    except ProcessLookupError:
        pass  # it has ended, which is the effect of most signals


def rss_bytes(pid: int) -> int:
    """Resident memory of one process; 0 if it has ended."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE_BYTES
    except (FileNotFoundError, ProcessLookupError):
        return 0


def ends_within(pid: int, seconds: float) -> bool:
    """Whether a process that is to be reaped yet ends in that time. The kernel reports it at once,
    see pidfd_open(2)."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        return bool(poll.poll(seconds * 1000))
    finally:
        os.close(descriptor)
