"""Writes a page built from the WAL into a file of a stopped server, and keeps the old page.

    page-repair/base.5.16384-7-20261125T221058.123456Z.page     8192 bytes: the old page

The files of a stopped server contain all changes before the redo position of its last checkpoint,
and perhaps later ones. Its start replays the WAL from that redo position. It expects each page as
of that position, whether the server was shut down, crashed, or was a standby, and whatever follows
in the WAL. So the page as of `redo` is written, never a later one. Preconditions: the control file
is valid; the server starts from it (no backup_label exists); the WAL between the cut and the redo
position is complete and of this cluster and timeline; pg_resetwal has not been run.

Laws. No server is running, according to postmaster.pid and its process. The old page is durable
before any byte of it is overwritten. Only whole pages are written: pages that the file has, or the
one after its end.
Source: Postgres `StartupXLOG` in `xlog.c`, `InitWalRecovery` in `xlogrecovery.c`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import numpy as np

from quorum_wal.pageserver.checks.directory_check import DataDirectory, OpenPoint
from quorum_wal.pageserver.checks.page_comparison import Expectation, Verdict, compare
from quorum_wal.pageserver.errors import PageNotFound, PageserverError
from quorum_wal.pageserver.layers.control_file import CONTROL_FILE, ControlFile
from quorum_wal.pageserver.layers.fork import PAGE_BYTES, SEGMENT_BLOCKS, Fork, ForkKind
from quorum_wal.pageserver.layers.fork_table import fork_blocks
from quorum_wal.pageserver.layers.page_header import PageHeader, page_checksum
from quorum_wal.pageserver.layers.page_stack import ZERO_PAGE
from quorum_wal.pageserver.pitr.page_at import PageReader
from quorum_wal.pg_server.postmaster_file import POSTMASTER_FILE, is_process_alive
from quorum_wal.storage.durable import (
    replace_file,
    storage_errors,
    sync_data,
    sync_directory,
    write_all,
)

KEPT_FOLDER = "page-repair"
_CHECKSUM_AT = 8


@dataclass(frozen=True, slots=True)
class Repair:
    """`found` is None if the file ends just before the block. `good` is the page as of `at_lsn`.
    `damage` describes the damage of `found`, or is "" if there is none. If the page was changed
    after the checkpoint (`is_newer`), damage cannot be determined."""

    fork: Fork
    block: int
    path: Path
    found: bytes | None
    good: bytes
    at_lsn: int
    damage: str
    is_newer: bool


class PageRepair:
    """Repairs pages of one data directory."""

    def __init__(self, directory: DataDirectory) -> None:
        self._directory = directory

    def plan(self, open_point: OpenPoint, reader: PageReader, fork: Fork, block: int) -> Repair:
        """Writes nothing. Raises PageserverError, ObjectStoreError, BackupError."""
        check_stopped(self._directory.path)
        if fork.kind is ForkKind.FSM:
            raise PageserverError(
                "free space maps are not stored",
                hint="Delete the file while the server is stopped. VACUUM creates it again.",
            )
        point = self._directory.open_point(open_point)
        folder = point.frame.control_file().version_folder(point.wal.server.pg_major)
        init = Fork(fork.tablespace, fork.database, fork.number, ForkKind.INIT)
        if fork.kind is not ForkKind.INIT and (self._directory.path / init.path(folder)).exists():
            raise PageserverError(
                f"{fork} is unlogged and has no WAL",
                hint="Restart after a crash, REINDEX or TRUNCATE empties it.",
            )
        length = fork_blocks(self._directory.path, fork, folder)
        if length is None or block > length:
            raise PageNotFound(
                f"{fork.path(folder)} "
                + ("does not exist" if length is None else f"has {length} blocks, not {block}"),
                hint="Write missing blocks in order, beginning with the first one.",
            )
        found = self._directory.read(fork, folder, np.array([block], np.uint32)).get(block)
        good = self._with_checksum(reader.read(point, fork, block).content, block)
        damage, is_newer = self._compare(fork, folder, block, found, good, point.target_lsn)
        path = self._directory.path / fork.file(folder, block // SEGMENT_BLOCKS)
        return Repair(fork, block, path, found, good, point.target_lsn, damage, is_newer)

    def _compare(
        self, fork: Fork, folder: str, block: int, found: bytes | None, good: bytes, at_lsn: int
    ) -> tuple[str, bool]:
        if found is None:
            return "the file ends before the page", False
        has_checksum = self._directory.control.has_checksums
        wanted = Expectation(
            good, at_lsn,
            are_bits_valid=lambda heap_block, bits: self._directory.are_bits_valid(
                fork, folder, heap_block, bits, at_lsn
            ),
        )  # fmt: skip
        finding = compare(fork.kind, block, found, wanted, has_checksum=has_checksum)
        return finding.reason, finding.verdict is Verdict.NEWER

    def _with_checksum(self, page: bytes, block: int) -> bytes:
        """Sets the checksum if the cluster uses checksums."""
        if page == ZERO_PAGE or not self._directory.control.has_checksums:
            return page
        checksum = page_checksum(page, block).to_bytes(2, "little")
        return page[:_CHECKSUM_AT] + checksum + page[_CHECKSUM_AT + 2 :]

    def write(self, repair: Repair, now: datetime) -> Path | None:
        """Returns where the old page is kept, or None if there was none. Raises StorageError;
        PageserverError if a server has run in the meantime."""
        data_dir = self._directory.path
        check_stopped(data_dir)
        if ControlFile.parse((data_dir / CONTROL_FILE).read_bytes()) != self._directory.control:
            raise PageserverError(
                f'a server has run in "{data_dir}" since the page was read',
                hint="Run the command again.",
            )
        kept = self._save_old_page(repair, now) if repair.found is not None else None
        at = repair.block % SEGMENT_BLOCKS * PAGE_BYTES
        with storage_errors(repair.path, "open"):
            # The next segment may not exist yet; its mode is that of the first one.
            is_new = not repair.path.exists()
            fd = os.open(repair.path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            if is_new:
                owner = data_dir.stat()
                with storage_errors(repair.path, "give"):
                    os.fchown(fd, owner.st_uid, owner.st_gid)
            elif repair.found is not None and os.pread(fd, PAGE_BYTES, at) != repair.found:
                raise PageserverError(
                    f'the page in "{repair.path}" has changed since it was read',
                    hint="Run the command again.",
                )
            write_all(fd, repair.good, at, repair.path)
            sync_data(fd, repair.path)
        finally:
            os.close(fd)
        if is_new:
            sync_directory(repair.path.parent)
        return kept

    def _save_old_page(self, repair: Repair, now: datetime) -> Path:
        """In a separate folder, because pg_checksums rejects unknown names beside relation
        files."""
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
        return  # the server crashed: its start replays the WAL
    raise PageserverError(
        f'a server is running in "{data_dir}"' + (f", pid {pid}" if pid else f': "{path}" exists'),
        hint="Stop it with pg_ctl stop. A running server may overwrite or not see the new page.",
    )


def differing_headers(found: bytes, good: bytes) -> dict[str, tuple[int, int]]:
    """The header fields that differ: (found, good)."""
    one, other = PageHeader.parse(found), PageHeader.parse(good)
    return {
        name: (getattr(one, name), getattr(other, name))
        for name in PageHeader.__slots__
        if getattr(one, name) != getattr(other, name)
    }
