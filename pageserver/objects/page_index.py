"""The index of a timeline's pages: the objects that are needed, and their positions. Pure.

    sealed (objectstore/sealed.py), JSON:
    {"format": 1, "base_backup_id": "20261121T101500.123Z-0000000005000028",
     "horizon_lsn": 83886120,
     "cuts": [{"redo_lsn": ..., "checkpoint_lsn": ..., "end_lsn": ..., "tli": 1,
               "time_unix_s": ...}],
     "layers": [{"end_lsn": ..., "part": 0, "suffix": "000007000300001A", "seq": 42,
                 "size_bytes": ...}],
     "frames": [{"end_lsn": ..., "suffix": ..., "seq": ..., "size_bytes": ...}]}

Laws. An index is never changed; a newer one replaces it. Each reference contains the suffix and the
sequence number of its object, even if another attachment writes the index. Cuts ascend in all their
positions, and none is below the horizon. A layer or a frame is named once. An index that violates
these laws is damaged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import cached_property
from itertools import pairwise
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from quorum_wal.generations.errors import GenerationError
from quorum_wal.generations.suffix import Suffix
from quorum_wal.objectstore.errors import ObjectDamaged
from quorum_wal.objectstore.sealed import seal, unseal
from quorum_wal.pageserver.objects.page_keys import (
    LSN_MAX,
    PART_MAX,
    SEQ_MAX,
    FrameName,
    LayerName,
    StoredName,
)

FORMAT = 1


class Cut(Struct, frozen=True):
    """A position to which a restore needs no other WAL than [redo_lsn, end_lsn).

    `checkpoint_lsn` is the start of its checkpoint record and `end_lsn` the end. `redo_lsn` and
    `time_unix_s` are fields of the record (CheckPoint in catalog/pg_control.h).
    """

    redo_lsn: int
    checkpoint_lsn: int
    end_lsn: int
    tli: int
    time_unix_s: int


class LayerRef(Struct, frozen=True):
    """Names a layer in the store."""

    end_lsn: int
    part: int
    suffix: Suffix
    seq: int
    size_bytes: int

    @property
    def name(self) -> LayerName:
        return LayerName(self.end_lsn, self.part, self.suffix, self.seq)


class FrameRef(Struct, frozen=True):
    """Names a frame in the store."""

    end_lsn: int
    suffix: Suffix
    seq: int
    size_bytes: int

    @property
    def name(self) -> FrameName:
        return FrameName(self.end_lsn, self.suffix, self.seq)


class PageIndex(Struct, frozen=True, dict=True):
    """The contents of one index. `horizon_lsn`: the end of the oldest promised cut, or 0 if all
    cuts are promised. `base_backup_id`: the base backup below all layers, or "" before the first
    cut."""

    horizon_lsn: int = 0
    cuts: tuple[Cut, ...] = ()
    layers: tuple[LayerRef, ...] = ()
    frames: tuple[FrameRef, ...] = ()
    base_backup_id: str = ""

    @property
    def newest_redo_lsn(self) -> int:
        """The start of the WAL that it still needs; 0 means all WAL."""
        return self.cuts[-1].redo_lsn if self.cuts else 0

    @property
    def newest_end_lsn(self) -> int:
        return self.cuts[-1].end_lsn if self.cuts else 0

    @cached_property
    def names(self) -> frozenset[StoredName]:
        """The names of all objects that it needs."""
        frames = frozenset[StoredName](frame.name for frame in self.frames)
        return frames.union(layer.name for layer in self.layers)

    def with_cut(
        self,
        cut: Cut,
        layers: Iterable[LayerRef],
        frames: Iterable[FrameRef],
        base_backup_id: str = "",
    ) -> PageIndex:
        """`base_backup_id` is set by the first cut; later cuts use the same base backup."""
        return PageIndex(
            self.horizon_lsn,
            (*self.cuts, cut),
            (*self.layers, *layers),
            (*self.frames, *frames),
            self.base_backup_id or base_backup_id,
        )

    def with_merged(self, parts: Iterable[LayerRef], merged: Iterable[LayerRef]) -> PageIndex:
        """Replaces `merged` layers by the parts of one layer."""
        gone = set(merged)
        kept = [layer for layer in self.layers if layer not in gone]
        return PageIndex(
            self.horizon_lsn, self.cuts, (*parts, *kept), self.frames, self.base_backup_id
        )


# ---- bytes

_Lsn = Annotated[int, Meta(ge=0)]  # up to LSN_MAX, which Meta cannot express
_Count = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
_Seq = Annotated[int, Meta(ge=0, le=SEQ_MAX)]
_Part = Annotated[int, Meta(ge=0, le=PART_MAX)]
_Tli = Annotated[int, Meta(ge=1, lt=1 << 32)]


class _Format(Struct):
    format: int


class _CutPage(Struct, forbid_unknown_fields=True):
    redo_lsn: _Lsn
    checkpoint_lsn: _Lsn
    end_lsn: _Lsn
    tli: _Tli
    time_unix_s: _Count


class _LayerPage(Struct, forbid_unknown_fields=True):
    end_lsn: _Lsn
    part: _Part
    suffix: str
    seq: _Seq
    size_bytes: _Count


class _FramePage(Struct, forbid_unknown_fields=True):
    end_lsn: _Lsn
    suffix: str
    seq: _Seq
    size_bytes: _Count


class _Page(Struct, forbid_unknown_fields=True):
    format: int
    base_backup_id: str
    horizon_lsn: _Lsn
    cuts: list[_CutPage]
    layers: list[_LayerPage]
    frames: list[_FramePage]


_FORMAT_DECODER = msgspec.json.Decoder(_Format)
_DECODER = msgspec.json.Decoder(_Page)


def encode_index(index: PageIndex) -> bytes:
    """The sealed object."""
    page = _Page(
        FORMAT,
        index.base_backup_id,
        index.horizon_lsn,
        [
            _CutPage(c.redo_lsn, c.checkpoint_lsn, c.end_lsn, c.tli, c.time_unix_s)
            for c in index.cuts
        ],
        [
            _LayerPage(r.end_lsn, r.part, r.suffix.format(), r.seq, r.size_bytes)
            for r in index.layers
        ],
        [_FramePage(r.end_lsn, r.suffix.format(), r.seq, r.size_bytes) for r in index.frames],
    )
    return seal(msgspec.json.encode(page))


def decode_index(data: bytes, key: str) -> PageIndex:
    """`key` names the object in errors. Raises ObjectDamaged."""
    content = unseal(data, key)
    try:
        found = _FORMAT_DECODER.decode(content).format
        if found > FORMAT:
            raise ObjectDamaged(
                f'object "{key}" has format {found}, expected {FORMAT}',
                hint="A newer version of sk has written it. Upgrade sk.",
            )
        if found < FORMAT:
            raise _damaged(key, f"expected format {FORMAT}, found {found}")
        page = _DECODER.decode(content)
        index = PageIndex(
            page.horizon_lsn,
            tuple(
                Cut(c.redo_lsn, c.checkpoint_lsn, c.end_lsn, c.tli, c.time_unix_s)
                for c in page.cuts
            ),
            tuple(
                LayerRef(r.end_lsn, r.part, Suffix.parse(r.suffix), r.seq, r.size_bytes)
                for r in page.layers
            ),
            tuple(
                FrameRef(r.end_lsn, Suffix.parse(r.suffix), r.seq, r.size_bytes)
                for r in page.frames
            ),
            page.base_backup_id,
        )
    except (msgspec.MsgspecError, GenerationError, UnicodeDecodeError, RecursionError) as error:
        raise _damaged(key, " ".join(str(error).split())) from error
    if problem := _problem(index):
        raise _damaged(key, problem)
    return index


def _problem(index: PageIndex) -> str:
    """The violated law, or ""."""
    lsns = [index.horizon_lsn, *(cut.end_lsn for cut in index.cuts)]
    lsns += [ref.end_lsn for ref in index.layers]
    lsns += [ref.end_lsn for ref in index.frames]
    if max(lsns) > LSN_MAX:
        return f"expected 64-bit positions, found {max(lsns):X}"
    for cut in index.cuts:
        if not cut.redo_lsn <= cut.checkpoint_lsn < cut.end_lsn:
            return f"expected redo <= checkpoint < end, found {cut}"
    for before, cut in pairwise(index.cuts):
        if not (before.redo_lsn <= cut.redo_lsn and before.end_lsn < cut.end_lsn):
            return f"expected ascending cuts, found one that ends at {cut.end_lsn:X}"
    if index.cuts and index.horizon_lsn > index.cuts[0].end_lsn:
        return f"its first cut is below its horizon {index.horizon_lsn:X}"
    if len(index.names) != len(index.layers) + len(index.frames):
        return f"it names {_first_duplicate(index)} twice"
    return ""


def _first_duplicate(index: PageIndex) -> str:
    names: Counter[StoredName] = Counter(layer.name for layer in index.layers)
    names.update(frame.name for frame in index.frames)
    return names.most_common(1)[0][0].format()


def _damaged(key: str, why: str) -> ObjectDamaged:
    return ObjectDamaged(f'object "{key}" is damaged: {why}')
