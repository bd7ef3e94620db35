"""Writes the page that the WAL says into a file of a stopped server, and keeps what was there.

    page-repair/base.5.16384-7-20261125T221058.123456Z.page     8192 bytes: what was there

Which page it is. The files of a stopped server are those of its last checkpoint, and perhaps newer.
Its start replays the WAL from that checkpoint's redo on: a page as of the redo is what it expects,
whether it was stopped cleanly, crashed, or was a standby, and whatever came behind. So the page as
of `redo` is written, never a later one. That relies on: the control file is sound; the server
starts from it (there is no backup_label); full WAL lies between the cut and that place, of this
cluster and this branch; and pg_resetwal has not been run.

Laws. No server runs, as far as postmaster.pid and its process tell. What was there is durable
before a byte of it is overwritten. Only whole pages that the file has, or the next one behind it,
are written. Source: Postgres `StartupXLOG` in `xlog.c`, `InitWalRecovery` in `xlogrecovery.c`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import numpy as np

from pageserver.checks.directory_check import DataDirectory, OpenPoint
from pageserver.checks.page_comparison import Expectation, Verdict, compare
from pageserver.errors import PageNotFound, PageserverError
from pageserver.layers.control_file import CONTROL_FILE, ControlFile
from pageserver.layers.fork import PAGE_BYTES, SEGMENT_BLOCKS, Fork, ForkKind
from pageserver.layers.fork_table import fork_blocks
from pageserver.layers.page_header import PageHeader, page_checksum
from pageserver.layers.page_stack import ZERO_PAGE
from pageserver.moments.page_at import PageReader
from pg_server.postmaster_file import POSTMASTER_FILE, is_process_alive
from storage.durable import replace_file, storage_errors, sync_data, sync_directory, write_all

KEPT_FOLDER = "page-repair"
_CHECKSUM_AT = 8


@dataclass(frozen=True, slots=True)
class Repair:
    """`found` None: the file ends before the block, which is the next one. `good`: as of `at_lsn`.
    `damage`: what is wrong with the found one; "" when nothing is, or none can be told: then
    `is_newer`, changed behind the checkpoint."""

    fork: Fork
    block: int
    path: Path
    found: bytes | None
    good: bytes
    at_lsn: int
    damage: str
    is_newer: bool


class PageRepair:
    """Of one data directory."""

    def __init__(self, directory: DataDirectory) -> None:
        self._directory = directory

    def plan(self, open_point: OpenPoint, reader: PageReader, fork: Fork, block: int) -> Repair:
        """Writes nothing. Raises PageserverError, ObjectStoreError, BackupError."""
        check_stopped(self._directory.path)
        if fork.kind is ForkKind.FSM:
            raise PageserverError(
                "free-space maps are not stored",
                hint="Delete that file while the server is stopped; VACUUM makes it anew.",
            )
        point = self._directory.open_point(open_point)
        folder = point.frame.control_file().version_folder(point.wal.server.pg_major)
        init = Fork(fork.tablespace, fork.database, fork.number, ForkKind.INIT)
        if fork.kind is not ForkKind.INIT and (self._directory.path / init.path(folder)).exists():
            raise PageserverError(
                f"{fork} is unlogged: there is no WAL of it",
                hint="A restart after a crash empties it; REINDEX or TRUNCATE does so, too.",
            )
        length = fork_blocks(self._directory.path, fork, folder)
        if length is None or block > length:
            raise PageNotFound(
                f"{fork.path(folder)} "
                + ("is not there" if length is None else f"has {length} blocks, not {block}"),
                hint="What is missing is written in order, the first missing block first.",
            )
        found = self._directory.read(fork, folder, np.array([block], np.uint32)).get(block)
        good = self._with_checksum(reader.read(point, fork, block).content, block)
        damage, is_newer = self._judge(fork, folder, block, found, good, point.target_lsn)
        path = self._directory.path / fork.file(folder, block // SEGMENT_BLOCKS)
        return Repair(fork, block, path, found, good, point.target_lsn, damage, is_newer)

    def _judge(
        self, fork: Fork, folder: str, block: int, found: bytes | None, good: bytes, at_lsn: int
    ) -> tuple[str, bool]:
        if found is None:
            return "the file ends before it", False
        has_checksum = self._directory.control.has_checksums
        wanted = Expectation(
            good, at_lsn,
            are_right=lambda heap_block, bits: self._directory.are_right(
                fork, folder, heap_block, bits, at_lsn
            ),
        )  # fmt: skip
        finding = compare(fork.kind, block, found, wanted, has_checksum=has_checksum)
        return finding.reason, finding.verdict is Verdict.NEWER

    def _with_checksum(self, page: bytes, block: int) -> bytes:
        """As the cluster wants it."""
        if page == ZERO_PAGE or not self._directory.control.has_checksums:
            return page
        checksum = page_checksum(page, block).to_bytes(2, "little")
        return page[:_CHECKSUM_AT] + checksum + page[_CHECKSUM_AT + 2 :]

    def write(self, repair: Repair, now: datetime) -> Path | None:
        """Where the old page is kept; None when there was none. Raises PageserverError, when a
        server has run since; StorageError."""
        data_dir = self._directory.path
        check_stopped(data_dir)
        if ControlFile.parse((data_dir / CONTROL_FILE).read_bytes()) != self._directory.control:
            raise PageserverError(f"a server has run in {data_dir} meanwhile", hint="Begin anew.")
        kept = self._keep(repair, now) if repair.found is not None else None
        at = repair.block % SEGMENT_BLOCKS * PAGE_BYTES
        with storage_errors(repair.path, "open"):
            # The next segment of a file may not be there yet; its mode is that of the first.
            is_new = not repair.path.exists()
            fd = os.open(repair.path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            if is_new:
                owner = data_dir.stat()
                with storage_errors(repair.path, "give"):
                    os.fchown(fd, owner.st_uid, owner.st_gid)
            elif repair.found is not None and os.pread(fd, PAGE_BYTES, at) != repair.found:
                raise PageserverError(
                    f"the page has changed since it was read: {repair.path}", hint="Begin anew."
                )
            write_all(fd, repair.good, at, repair.path)
            sync_data(fd, repair.path)
        finally:
            os.close(fd)
        if is_new:
            sync_directory(repair.path.parent)
        return kept

    def _keep(self, repair: Repair, now: datetime) -> Path:
        """In a folder of its own: pg_checksums refuses strange names beside files of relations."""
        assert repair.found is not None
        data_dir = self._directory.path
        folder = data_dir / KEPT_FOLDER
        with storage_errors(folder, "create"):
            folder.mkdir(mode=0o700, exist_ok=True)
            owner = data_dir.stat()
            os.chown(folder, owner.st_uid, owner.st_gid)
        sync_directory(data_dir)
        file = str(repair.path.relative_to(data_dir)).replace("/", ".")
        kept = folder / f"{file}-{repair.block}-{now.strftime('%Y%m%dT%H%M%S.%fZ')}.page"
        replace_file(kept, repair.found, like=data_dir / CONTROL_FILE)
        return kept


def check_stopped(data_dir: Path) -> None:
    """Raises PageserverError while a server may run there."""
    path = data_dir / POSTMASTER_FILE
    try:
        first = path.read_text(errors="replace").splitlines()[:1]
        pid = abs(int(first[0])) if first else 0  # negative in single-user mode
    except FileNotFoundError:
        return
    except ValueError:
        pid = 0
    if pid and not is_process_alive(pid):
        return  # it has crashed: its start replays the WAL
    raise PageserverError(
        f"a server runs in {data_dir}" + (f", pid {pid}" if pid else f": {path} is there"),
        hint="Stop it first: pg_ctl stop. It would overwrite the page, or not see it.",
    )


def differing_headers(found: bytes, good: bytes) -> dict[str, tuple[int, int]]:
    """Fields of the two headers that differ: (found, good)."""
    one, other = PageHeader.parse(found), PageHeader.parse(good)
    return {
        name: (getattr(one, name), getattr(other, name))
        for name in PageHeader.__slots__
        if getattr(one, name) != getattr(other, name)
    }
