"""An epoch: the WAL from one cut to the next, converted into a layer and a frame.

    redo(C1) ... C1 ......................... C2
    |--------------- WAL ---------------------|     surveyed, then replayed by stock Postgres over
                  frame 1 + base pages              files with holes
                                              -->   layer 2: pages as of C2       frame 2

Laws. An epoch returns output only if all of it was accepted (`redo`, `sparse_files`). The directory
is used once and removed. A failed epoch is repeated from the beginning.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from quorum_wal.pageserver.epochs.in_place_tablespaces import link_range
from quorum_wal.pageserver.epochs.redo import RedoServer
from quorum_wal.pageserver.epochs.sparse_files import SparseFiles
from quorum_wal.pageserver.epochs.touch_survey import TouchSurveyor
from quorum_wal.pageserver.epochs.wal_folder import WalFolder
from quorum_wal.pageserver.layers.control_file import ControlFile
from quorum_wal.pageserver.layers.fork_table import ForkTable
from quorum_wal.pageserver.layers.frame import Frame, write_frame
from quorum_wal.pageserver.layers.layer_file import PART_BYTES, Epoch, Limits, write_layer
from quorum_wal.pageserver.layers.page_stack import PageBase
from quorum_wal.pageserver.layers.touches import Checkpoint, Touches


@dataclass(frozen=True, slots=True)
class EpochInput:
    """Replay [redo_lsn, target.end_lsn) on the cut of `frame`, whose pages `source` provides."""

    frame: Frame
    source: PageBase
    wal: WalFolder
    redo_lsn: int
    target: Checkpoint


@dataclass(frozen=True, slots=True)
class EpochOutput:
    """`parts` are the files of the layer."""

    touches: Touches
    frame: Frame
    parts: tuple[Path, ...]


class EpochReplay:
    """`work_dir` is empty, and receives the parts (layer-0, ..) and the frame (frame.tar)."""

    def __init__(self, work_dir: Path, server: RedoServer, *, part_bytes: int = PART_BYTES) -> None:
        self._work_dir = work_dir
        self._server = server
        self._part_bytes = part_bytes

    def run(self, given: EpochInput, touches: Touches | None = None) -> EpochOutput:
        """`touches` is the result of `survey_epoch`, if known. Raises PageserverError."""
        touches = touches or survey_epoch(given)
        data_dir = self._work_dir / "data"
        data_dir.mkdir(mode=0o700)
        self._server.give(data_dir)
        try:
            return self._replay(given, touches, data_dir)
        finally:
            shutil.rmtree(data_dir)

    def _replay(self, given: EpochInput, touches: Touches, data_dir: Path) -> EpochOutput:
        frame, server = given.frame, self._server
        frame.unpack(data_dir, give=server.give, with_kept=False)
        control = frame.control_file()
        folder = control.version_folder(given.wal.server.pg_major)
        files = SparseFiles(data_dir, folder, server.give)
        files.build(frame.forks, touches, given.source)
        target = given.target
        link_range(
            given.wal, given.redo_lsn, target.end_lsn, target.tli,
            touches.tablespaces_created, data_dir, server.give,
        )  # fmt: skip
        server.replay(data_dir, given.target, max(control.prepared_max, touches.prepared_max))
        forks = frame.forks.after(touches, data_dir, folder)
        parts = self._write_layer(control, given, touches, files)
        return EpochOutput(touches, self._write_frame(frame, touches, forks, data_dir), parts)

    def _write_layer(
        self, control: ControlFile, given: EpochInput, touches: Touches, files: SparseFiles
    ) -> tuple[Path, ...]:
        paths: list[Path] = []

        def open_part(number: int) -> IO[bytes]:
            paths.append(self._work_dir / f"layer-{number}")
            return paths[-1].open("wb")

        limits = Limits(dict(touches.limits), touches.fresh_databases)
        epoch = Epoch(control.system_id, given.redo_lsn, given.target.end_lsn)
        write_layer(epoch, limits, files.pages(touches), open_part, part_bytes=self._part_bytes)
        return tuple(paths)

    def _write_frame(
        self, before: Frame, touches: Touches, forks: ForkTable, data_dir: Path
    ) -> Frame:
        spaces = dict(before.tablespaces)
        spaces |= {each.oid: each.location for each in touches.tablespaces_created}
        for oid in touches.tablespaces_dropped:
            spaces.pop(oid, None)
        return write_frame(self._work_dir / "frame.tar", data_dir, forks, spaces, before.kept)


def survey_epoch(given: EpochInput) -> Touches:
    """Raises SurveyError."""
    surveyor = TouchSurveyor(given.wal.server.pg_major)
    for index in given.wal.records(given.redo_lsn, given.target.end_lsn, given.target.tli):
        surveyor.feed(index)
    return surveyor.finish()
