"""Compares the files of a data directory with the WAL. The server may be running.

    pg_control: redo X         every page changed before X is in its file: recovery begins at X
    |------------X-----------  a page changed after X has a greater LSN

Laws. X is read before the first page. While the server runs, a page read may be torn: a page that
seems damaged is read again, and counts as damaged only if it stays so. A file that is neither in
the cut nor in the WAL is counted, not judged. The check writes nothing.
Source: Postgres `CreateCheckPoint` in `xlog.c`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

import numpy as np

from quorum_wal.consensus.messages import ServerFacts
from quorum_wal.pageserver.checks.check_report import CheckReport, DamagedPage, Skip
from quorum_wal.pageserver.checks.page_comparison import (
    Expectation,
    Finding,
    Verdict,
    compare,
    page_damage,
)
from quorum_wal.pageserver.checks.page_sample import choose_pages
from quorum_wal.pageserver.checks.visibility_bits import are_bits_valid
from quorum_wal.pageserver.errors import PageNotFound, PageserverError
from quorum_wal.pageserver.layers.control_file import CONTROL_FILE, ControlFile
from quorum_wal.pageserver.layers.fork import PAGE_BYTES, SEGMENT_BLOCKS, Fork, ForkKind
from quorum_wal.pageserver.layers.fork_table import relation_files, relation_folders
from quorum_wal.pageserver.layers.page_header import PageHeader
from quorum_wal.pageserver.layers.touches import Numbers
from quorum_wal.pageserver.pitr.page_at import PageReader, PagesAt
from quorum_wal.pageserver.pitr.restore_point import RestorePoint
from quorum_wal.pageserver.pitr.restore_points import RecoveryTarget
from quorum_wal.pg_server.postmaster_file import POSTMASTER_FILE
from quorum_wal.pgwal.history import TimelineHistory
from quorum_wal.pgwal.lsn import format_lsn
from quorum_wal.walrecords.record_index import as_boundary

BACKUP_LABEL = "backup_label"
READ_BLOCKS = 4096
#: attempts to read a page that the server may be writing, and the pause between them
READ_ATTEMPTS, READ_PAUSE_SECONDS = 5, 0.1
#: size limit of a shutdown checkpoint record, including headers of WAL pages in it
LAST_RECORD_BYTES_MAX = 512

OpenPoint = Callable[[RecoveryTarget], RestorePoint]
_SKIPS = {Verdict.NEWER: Skip.NEWER, Verdict.UNKNOWN: Skip.UNKNOWN, Verdict.MOVING: Skip.MOVING}


@dataclass(frozen=True, slots=True)
class DataDirectory:
    """`control` is the control file as read by open()."""

    path: Path
    control: ControlFile
    wal_seg_size: int

    @classmethod
    def open(cls, path: Path, server: ServerFacts, history: TimelineHistory) -> DataDirectory:
        """Opens a data directory of that cluster and timeline. Raises PageserverError."""
        if (path / BACKUP_LABEL).exists():
            raise PageserverError(
                f'"{path}" is a base backup that has not been started: its pages do not match its '
                "control file",
                hint="Start the server once.",
            )
        try:
            control = ControlFile.parse((path / CONTROL_FILE).read_bytes())
        except OSError as error:
            raise PageserverError(
                f'could not read "{path / CONTROL_FILE}": {error.strerror}',
                hint="Specify the data directory of a server.",
            ) from error
        if control.system_id != server.system_id:
            raise PageserverError(
                f'"{path}" belongs to another cluster: expected system identifier '
                f"{server.system_id}, found {control.system_id}"
            )
        on = {history.tli_at(control.redo_lsn), history.tli_at(max(0, control.redo_lsn - 1))}
        if control.tli not in on:
            raise PageserverError(
                f'"{path}" is on another timeline: at {format_lsn(control.redo_lsn)} it is on '
                f"timeline {control.tli}, the archive is on timeline {max(on)}",
                hint="The server is a former primary. Use sk rejoin.",
            )
        return cls(path, control, server.wal_seg_size)

    @property
    def is_running(self) -> bool:
        """Whether postmaster.pid exists. The server may have crashed."""
        return (self.path / POSTMASTER_FILE).exists()

    def open_point(self, open_point: OpenPoint, *, may_end: bool = False) -> RestorePoint:
        """The pages as of the redo position of its checkpoint, or as of the end of the WAL. Raises
        PageserverError."""
        lsn = as_boundary(self.control.redo_lsn, self.wal_seg_size)
        try:
            return open_point(RecoveryTarget(lsn=lsn, may_end=may_end))
        except PageNotFound as error:
            redo = format_lsn(self.control.redo_lsn)
            raise PageNotFound(
                f'the last checkpoint of "{self.path}" begins at {redo}: {error}',
                hint=f"{error.hint} The files of a server are comparable after a later checkpoint.",
            ) from error

    def read(self, fork: Fork, version_folder: str, blocks: Numbers) -> dict[int, bytes]:
        """Returns the blocks that exist completely."""
        found = {}
        fds: dict[int, int | None] = {}
        try:
            for block in blocks.tolist():
                segment, at = divmod(block, SEGMENT_BLOCKS)
                if segment not in fds:
                    fds[segment] = _open(self.path / fork.file(version_folder, segment))
                fd = fds[segment]
                page = b"" if fd is None else os.pread(fd, PAGE_BYTES, at * PAGE_BYTES)
                if len(page) == PAGE_BYTES:
                    found[block] = page
        finally:
            for fd in fds.values():
                if fd is not None:
                    os.close(fd)
        return found

    def are_bits_valid(
        self, fork: Fork, version_folder: str, heap_block: int, bits: int, at_lsn: int
    ) -> bool:
        """Whether the heap page allows these visibility map bits. A heap page newer than `at_lsn`
        may be ahead of its map."""
        heap = replace(fork, kind=ForkKind.MAIN)
        page = self.read(heap, version_folder, np.array([heap_block], np.uint32)).get(heap_block)
        if page is not None and PageHeader.parse(page).lsn > at_lsn:
            return True
        return are_bits_valid(bits, page)


class DirectoryCheck:
    """One check of one data directory. `only`: check no other file than this fork's."""

    def __init__(
        self, directory: DataDirectory, reader: PageReader, *, only: Fork | None = None
    ) -> None:
        self._directory = directory
        self._reader = reader
        self._only = only
        self._report = CheckReport()

    def run(self, open_point: OpenPoint, count: int | None, rng: Random) -> CheckReport:
        """Checks `count` pages, or all. Raises PageserverError, ObjectStoreError, BackupError."""
        chosen = choose_pages(self._checkable(), count, rng)
        point = self._directory.open_point(open_point, may_end=True)
        with self._reader.open(point, chosen) as pages:
            for fork, blocks in chosen.items():
                for first in range(0, len(blocks), READ_BLOCKS):
                    self._check(pages, fork, blocks[first : first + READ_BLOCKS])
        return self._report

    def _checkable(self) -> dict[Fork, int]:
        """The lengths of the forks that can be checked; counts all others. Raises
        PageserverError."""
        lengths: dict[Fork, int] = {}
        data_dir, only, skipped = self._directory.path, self._only, self._report.skipped
        for folder in relation_folders(data_dir):
            for fork, _, path in relation_files(data_dir, folder):
                lengths[fork] = lengths.get(fork, 0) + _size(path) // PAGE_BYTES
        if only is not None and only not in lengths:
            raise PageserverError(f'"{data_dir}" has no file of {only}')
        found = {}
        for fork, length in lengths.items():
            if only is not None and fork != only:
                continue
            if fork.kind is ForkKind.FSM:
                skipped[Skip.FREE_SPACE] += length
            elif fork.kind is not ForkKind.INIT and replace(fork, kind=ForkKind.INIT) in lengths:
                skipped[Skip.UNLOGGED] += length
            else:
                found[fork] = length
        return found

    def _check(self, pages: PagesAt, fork: Fork, blocks: Numbers) -> None:
        folder = pages.version_folder
        held = self._directory.read(fork, folder, blocks)
        self._report.skipped[Skip.GONE] += len(blocks) - len(held)
        has_checksum = self._directory.control.has_checksums
        if pages.is_copied(fork):
            for block, page in held.items():
                wrong = page_damage(page, block, has_checksum=has_checksum)
                self._note(pages, fork, block, _damage_finding(wrong))
            return
        existing = np.array(sorted(held), np.uint32)
        expected = pages.read(fork, existing)
        for block, page in held.items():
            wanted = Expectation(
                expected.get(block), pages.point.target_lsn, pages.is_known(fork),
                end_lsn=self._end_lsn(),
                are_bits_valid=lambda heap_block, bits: self._directory.are_bits_valid(
                    fork, folder, heap_block, bits, pages.point.target_lsn
                ),
            )  # fmt: skip
            for page_again in self._reads(fork, folder, block, page):
                finding = compare(fork.kind, block, page_again, wanted, has_checksum=has_checksum)
                if finding.verdict is not Verdict.DAMAGED:
                    break
            self._note(pages, fork, block, finding)

    def _reads(self, fork: Fork, folder: str, block: int, page: bytes) -> Iterator[bytes]:
        """That page; if a server may be writing it, reads it again several times."""
        yield page
        for _ in range(READ_ATTEMPTS if self._directory.is_running else 0):
            time.sleep(READ_PAUSE_SECONDS)
            again = self._directory.read(fork, folder, np.array([block], np.uint32))
            yield again.get(block, page)

    def _end_lsn(self) -> int | None:
        """Known only for a primary that was shut down: no page is newer than its checkpoint
        record."""
        control = self._directory.control
        is_last = control.is_shut_down and not self._directory.is_running
        return control.checkpoint_lsn + LAST_RECORD_BYTES_MAX if is_last else None

    def _note(self, pages: PagesAt, fork: Fork, block: int, finding: Finding | None) -> None:
        if finding is None:
            self._report.skipped[Skip.COPIED] += 1
            return
        if finding.verdict in _SKIPS:
            self._report.skipped[_SKIPS[finding.verdict]] += 1
            return
        self._report.checked += 1
        if finding.verdict is Verdict.DAMAGED:
            self._report.damaged.append(
                DamagedPage(
                    fork,
                    fork.path(pages.version_folder),
                    block,
                    "",
                    "",
                    finding.reason,
                    pages.point.target_lsn,
                )
            )


def _damage_finding(wrong: str) -> Finding | None:
    """The finding for a page that is not in the WAL: None if it is valid."""
    return Finding(Verdict.DAMAGED, wrong) if wrong else None


def _open(path: Path) -> int | None:
    try:
        return os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return None


def _size(path: Path) -> int:
    """Returns 0 if the file was removed in the meantime."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
