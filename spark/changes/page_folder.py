"""`PageFolder`: the pages that one batch of a stream leaves for the next one, as files.

    redo        S1         S2         S3        the next batch starts here, or later
     |----------|----------|----------|
        file 1     file 2     file 3            together: all pages that the WAL since redo changed

With wal_level replica, a task needs the pages that changed since the last checkpoint. From these
files it has them without reading that WAL again.

Laws. The folder is only a cache, of a scratch folder: without it, or if anything in it is missing,
damaged, or of other WAL, the WAL is read. A state is used only if its last record is in the WAL,
with the same CRC and timeline, and if it followed all files that are followed now. Lost WAL after
it is a reason to read the older WAL, too. The folder has at most BYTES_MAX: files are removed when
a newer checkpoint makes them unnecessary, and a larger state is not stored.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import msgspec
import numpy as np
import structlog

from quorum_wal.pgwal.block_ref import PageImage
from quorum_wal.spark.changes.page_file import (
    PageFile,
    PagesLost,
    PageState,
    StoredPage,
    decode_page,
    encode_page,
    name_of,
    write_page_file,
)
from quorum_wal.spark.changes.page_spill import PageName
from quorum_wal.walrecords.record_index import Array

#: of one state
BYTES_MAX = 1 << 30
PAGES_MAX = 1 << 20
#: a state of more files is stored as one
FILES_MAX = 32

_NAME = re.compile(r"([0-9A-F]{16})-([0-9A-F]{16})\.pages")

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class PageFolder:
    """Of one stream, on one machine. It is created when the first state is stored."""

    path: Path

    @classmethod
    def of_stream(cls, stream: str) -> PageFolder | None:
        """In the scratch folder of this worker, which Spark removes; None outside of Spark.
        `stream` is a unique name."""
        scratch = Path(os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0])
        return cls(scratch / f"pages-{stream}") if scratch.is_absolute() else None

    def newest(self, lsn: int, system_id: int) -> KeptPages | None:
        """The last state that ends at or before `lsn`. Raises PagesLost if it cannot be used."""
        found = [each for each in self._files() if each[1] <= lsn]
        if not found:
            return None
        kept = KeptPages(self._chain(found))
        if kept.state.system_id != system_id or kept.begin_lsn > kept.state.redo_lsn:
            kept.close()
            raise PagesLost("a file of pages is missing, or of another cluster")
        return kept

    def put(
        self,
        state: PageState,
        files: Array,
        changed: Iterator[tuple[PageName, bytes]],
        before: KeptPages | None,
    ) -> None:
        """Stores the pages that changed since the state `before`. A state that cannot be stored is
        logged: the next batch reads more WAL. Raises PagesLost."""
        try:
            if before is not None and before.is_long:
                begin_lsn, changed = before.begin_lsn, before.joined(changed)
                state = msgspec.structs.replace(state, begin_lsn=begin_lsn)
            self.path.mkdir(mode=0o700, exist_ok=True)
            name = f"{state.begin_lsn:016X}-{state.end_lsn:016X}.pages"
            write_page_file(self.path / name, state, files, changed)
            self._clean(state)
        except OSError as error:
            log.warning("pages could not be stored for the next batch", error=str(error))
            self.remove()

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)

    def _files(self) -> list[tuple[int, int, Path]]:
        """(begin, end, path) of each file."""
        found = []
        for path in self.path.iterdir() if self.path.is_dir() else ():
            if match := _NAME.fullmatch(path.name):
                found.append((int(match[1], 16), int(match[2], 16), path))
        return found

    def _chain(self, found: list[tuple[int, int, Path]]) -> list[PageFile]:
        """The files of the last state of `found`, the newest first. Raises PagesLost."""
        by_end = {end: (begin, path) for begin, end, path in sorted(found, reverse=True)}
        at, opened = max(by_end), list[PageFile]()
        try:
            while at in by_end and (not opened or at > opened[0].state.redo_lsn):
                begin, path = by_end[at]
                if begin >= at or len(opened) > FILES_MAX:
                    raise PagesLost("the files of pages do not follow each other")
                opened.append(PageFile(path))
                if (opened[-1].state.begin_lsn, opened[-1].state.end_lsn) != (begin, at):
                    raise PagesLost(f"{path} has another name than its content")
                at = begin
        except BaseException:
            for each in opened:
                each.close()
            raise
        return opened

    def _clean(self, newest: PageState) -> None:
        """Removes files that the newest state does not need, or everything if it is too large."""
        files = [each for each in self._files() if each[1] <= newest.end_lsn]
        kept = self._chain(files)
        for each in kept:
            each.close()
        paths = {each.path for each in kept}
        for _, _, path in files:
            if path not in paths:
                path.unlink(missing_ok=True)
        size = sum(each.bytes for each in kept)
        if size > BYTES_MAX or sum(len(each.names) for each in kept) > PAGES_MAX:
            log.warning("the pages are too many to store them for the next batch", bytes=size)
            self.remove()


class KeptPages:
    """The pages of a state. Methods raise PagesLost."""

    def __init__(self, files: list[PageFile]) -> None:
        """`files`: the newest first. They are closed with this object."""
        self._files = files
        self.state = files[0].state
        self.begin_lsn = files[-1].state.begin_lsn
        #: the files of tables that all of them have followed
        self.files = files[0].files
        for each in files[1:]:
            self.files = np.intersect1d(self.files, each.files)
        names = np.concatenate([each.names for each in files])
        owners = np.repeat(np.arange(len(files)), [len(each.names) for each in files])
        numbers = np.concatenate([np.arange(len(each.names)) for each in files])
        order = np.argsort(names, kind="stable")  # of one page, the newest first
        self._names, self._owners, self._numbers = names[order], owners[order], numbers[order]

    @property
    def is_long(self) -> bool:
        """Whether the next state should be stored as one file."""
        return len(self._files) >= FILES_MAX

    def check_files(self, files: Array) -> None:
        """Whether the pages of all these files were followed."""
        if not np.isin(files, self.files).all():
            raise PagesLost("a table has a file that was not followed")

    def page(self, name: PageName) -> StoredPage | None:
        """None if it did not change."""
        number = np.uint64(name_of(name))
        at, end = np.searchsorted(self._names, number), len(self._names)
        image: PageImage | None = None
        layers: list[dict[int, bytes]] = []
        while at < end and self._names[at] == number and image is None:
            record = self._files[self._owners[at]].record(int(self._numbers[at]))
            image, tuples = decode_page(record)
            layers.append(tuples)
            at += 1
        if not layers:
            return None
        return image, dict(chain.from_iterable(each.items() for each in reversed(layers)))

    def joined(self, changed: Iterator[tuple[PageName, bytes]]) -> Iterator[tuple[PageName, bytes]]:
        """All pages, with the changes."""
        written = set[int]()
        for name, record in changed:
            written.add(name_of(name))
            image, tuples = decode_page(record)
            older = self.page(name) if image is None else None
            if older is not None:
                record = encode_page((older[0], {**older[1], **tuples}))
            yield name, record
        for number in np.unique(self._names).tolist():
            name = number >> 32, number & 0xFFFFFFFF
            if number not in written and (older := self.page(name)) is not None:
                yield name, encode_page(older)

    def close(self) -> None:
        for each in self._files:
            each.close()
