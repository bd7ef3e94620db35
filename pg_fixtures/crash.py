"""`crash_postmaster`: kills a whole Postgres at one instant, as a power failure does.

Killing only the postmaster is not enough: its children would notice and end later, and meanwhile
write and even acknowledge commits. Killing one process after the other is not enough either: the
postmaster would begin crash recovery. So all processes are stopped first, then killed.

The files stay as they are, except that postmaster.pid and the shared memory named in it are
removed. A power failure also loses the memory; and the pid may soon belong to another process,
which would prevent the next start.
"""

from __future__ import annotations

import ctypes
import errno
import signal
from collections.abc import Collection

from quorum_wal.pg_fixtures.data_directory import DataDirectory
from quorum_wal.pg_fixtures.process_table import ProcessEntry, family, signal_entry
from quorum_wal.pg_fixtures.waiting import wait_until
from quorum_wal.pg_server.account import Account
from quorum_wal.pg_server.program import run_program

IPC_RMID = 0  # sys/ipc.h
FREEZE_TIMEOUT = 30.0  # seconds; a process stops late only while it waits for its disk

libc = ctypes.CDLL(None, use_errno=True)


def crash_postmaster(pid: int, data: DataDirectory) -> None:
    """Kills the postmaster `pid` and every process below it. Returns when all have ended."""
    members = _freeze(pid)
    for entry in members:
        signal_entry(entry, signal.SIGKILL)
    wait_until(
        lambda: not any(e.now() for e in members), FREEZE_TIMEOUT, "a killed Postgres to end"
    )
    postmaster_file = data.postmaster_file()
    if postmaster_file is not None and postmaster_file.pid == pid:
        if postmaster_file.shared_memory_id is not None:
            _remove_shared_memory(postmaster_file.shared_memory_id, data.account)
        (data.path / "postmaster.pid").unlink(missing_ok=True)


def _remove_shared_memory(id: int, account: Account | None) -> None:
    """Removes the segment. A segment that does not exist is not an error."""
    if libc.shmctl(id, IPC_RMID, None) != 0 and ctypes.get_errno() == errno.EPERM:
        # In a container root may lack CAP_SYS_ADMIN; then only the owner may.
        run_program(["ipcrm", "--shmem-id", str(id)], account=account, check=False)


def _freeze(pid: int) -> list[ProcessEntry]:
    """Stops all processes. Repeats the search, which finds children that were forked meanwhile."""
    frozen: dict[int, ProcessEntry] = {}
    while newcomers := [entry for entry in family(pid) if entry.pid not in frozen]:
        for entry in newcomers:
            signal_entry(entry, signal.SIGSTOP)
            frozen[entry.pid] = entry
        wait_until(lambda: _are_still(frozen.values()), FREEZE_TIMEOUT, "Postgres to stop")
    return list(frozen.values())


def _are_still(entries: Collection[ProcessEntry]) -> bool:
    """All have stopped or ended, or wait for a child that has stopped: between vfork(2) and exec(2)
    of the child, as in system(3) of the archiver, the kernel stops the parent only afterwards."""
    present = [now for entry in entries if (now := entry.now()) is not None]
    stopped_parents = {now.parent_pid for now in present if now.state == "T"}
    return all(
        now.state == "T" or (now.state == "D" and now.pid in stopped_parents) for now in present
    )
