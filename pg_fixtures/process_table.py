"""The kernel's process table, read from /proc: who lives, who is whose child, who is in a session.

A pid alone names nothing for long, as the kernel uses it again; a `ProcessEntry` carries the start
time too, and the pair is unique. Source: proc(5).
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
    """One line of the table. `state` is the letter of ps(1): R, S, D, T (stopped), Z (dead)..."""

    pid: int
    parent_pid: int
    session_id: int
    state: str
    start_ticks: int

    @property
    def dead(self) -> bool:
        """It runs no more; a zombie only waits for its parent to look."""
        return self.state in "ZX"

    def now(self) -> ProcessEntry | None:
        """This very process as it is at this moment, None when it is gone."""
        entry = read_entry(self.pid)
        if entry is None or entry.start_ticks != self.start_ticks or entry.dead:
            return None
        return entry


def read_entry(pid: int) -> ProcessEntry | None:
    """The entry of `pid`, None when there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # pid (name) state ppid pgrp session ... starttime (the 22nd); a name may contain ")" and spaces
    fields = text[text.rindex(")") + 2 :].split()
    return ProcessEntry(pid, int(fields[1]), int(fields[3]), fields[0], int(fields[19]))


def process_table() -> list[ProcessEntry]:
    """Every process, the dead ones that nobody reaped included."""
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    return [entry for pid in pids if (entry := read_entry(pid)) is not None]


def session_members(session_id: int) -> list[ProcessEntry]:
    """The living processes of a session."""
    return [e for e in process_table() if e.session_id == session_id and not e.dead]


def family(pid: int) -> list[ProcessEntry]:
    """The living process `pid` and all its living descendants, parents first."""
    children: dict[int, list[ProcessEntry]] = defaultdict(list)
    members: list[ProcessEntry] = []
    for entry in process_table():
        if not entry.dead:
            children[entry.parent_pid].append(entry)
            if entry.pid == pid:
                members.append(entry)
    for member in members:  # grows while it is walked: breadth first
        members.extend(children[member.pid])
    return members


def signal_entry(entry: ProcessEntry, number: signal.Signals) -> None:
    """Send a signal, unless the process is gone already."""
    try:
        os.kill(entry.pid, number)
    except ProcessLookupError:
        pass  # what a signal could want of it has happened


def rss_bytes(pid: int) -> int:
    """Resident memory of one process, 0 when it is gone."""
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
