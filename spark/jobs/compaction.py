"""Small files of a lake become large ones, hour by hour.

    ...0A-...0B.parquet  ...0B-...0C.parquet  ...0C-...0D.parquet      inputs, of one hour
    ...0A-...0D.parquet                                                output

    _ingest/compactions/KEY.json    from before the output is there until the inputs are gone

Law: no row is ever missing. The output is there before an input is deleted; for that moment a
reader of the folder sees rows twice, and a driver that was killed in it ends it when it starts
again. A reader that needs better runs while nothing is compacted, or drops equal LSNs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from objectstore.errors import ObjectNotFound
from objectstore.store import ObjectInfo, ObjectStore
from spark.jobs.lake import NONE
from spark.jobs.lake_writer import parquet_writer

COMPACTIONS = "_ingest/compactions/"
SMALL_BYTES = 16 << 20
TARGET_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Compaction:
    """Keys of files of one hour, in the order of their ranges, and the one that replaces them."""

    inputs: tuple[str, ...]
    output: str


def plan_compactions(store: ObjectStore, open_hours: bool = False) -> list[Compaction]:
    """What there is to do; where more comes, in the newest hour and where rows have none, only if
    asked. Raises ObjectStoreError."""
    files = (info for info in store.list("") if info.key.startswith("date="))
    hours = {hour: list(each) for hour, each in groupby(files, _folder)}
    newest = max((hour for hour in hours if NONE not in hour), default="")
    return [
        Compaction(tuple(info.key for info in run), _hull(run))
        for hour, infos in hours.items()
        if open_hours or (hour != newest and NONE not in hour)
        for run in _runs(infos)
    ]


def _folder(info: ObjectInfo) -> str:
    return info.key.rpartition("/")[0]


def _runs(files: Iterable[ObjectInfo]) -> Iterator[list[ObjectInfo]]:
    """Small files side by side, as many as make a large one."""
    run: list[ObjectInfo] = []
    for info in files:
        is_small = info.size_bytes < SMALL_BYTES
        if not is_small or sum(each.size_bytes for each in run) >= TARGET_BYTES:
            if len(run) > 1:
                yield run
            run = []
        if is_small:
            run.append(info)
    if len(run) > 1:
        yield run


def _hull(run: Sequence[ObjectInfo]) -> str:
    folder, _, first = run[0].key.rpartition("/")
    last = run[-1].key.rpartition("/")[2]
    return f"{folder}/{first.partition('-')[0]}-{last.partition('-')[2]}"


def compact(store: ObjectStore, compaction: Compaction) -> None:
    """Raises ObjectStoreError."""
    intent = f"{COMPACTIONS}{compaction.output.replace('/', '_')}.json"
    store.put(intent, msgspec.json.encode(compaction))
    _finish(store, compaction, intent)


def finish_compactions(store: ObjectStore) -> None:
    """Those that a killed driver has left. Raises ObjectStoreError."""
    for info in list(store.list(COMPACTIONS)):
        compaction = msgspec.convert(msgspec.json.decode(store.get(info.key)), Compaction)
        _finish(store, compaction, info.key)


def _finish(store: ObjectStore, compaction: Compaction, intent: str) -> None:
    merged = _merged(store, compaction.inputs)
    if merged is not None:
        store.put(compaction.output, merged)
    for key in compaction.inputs:
        store.delete(key)
    store.delete(intent)


def _merged(store: ObjectStore, keys: Sequence[str]) -> bytes | None:
    """One file of all; None when an input is gone, since then the output is there. One of them at
    a time is in memory."""
    sink = pa.BufferOutputStream()
    writer: pq.ParquetWriter | None = None
    for key in keys:
        try:
            table = pq.read_table(pa.BufferReader(store.get(key)))
        except ObjectNotFound:
            return None
        if writer is None:
            writer = parquet_writer(sink, table.schema)
        writer.write_table(table)
    assert writer is not None
    writer.close()
    return bytes(sink.getvalue())
