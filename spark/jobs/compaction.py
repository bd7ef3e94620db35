"""Merges the small files of each hour of a lake into large ones.

    ...0A-...0B.parquet  ...0B-...0C.parquet  ...0C-...0D.parquet      inputs, of one hour
    ...0A-...0D.parquet                                                output

    _ingest/compactions/KEY.json    exists from before the output is written until the inputs are
                                    deleted

Law: no row is ever missing. The output is written before an input is deleted. In between, a reader
of the folder sees rows twice. If the driver is killed in between, it completes the compaction when
it starts again. A reader that cannot accept duplicates must not run during a compaction, or must
drop rows with equal LSNs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from quorum_wal.objectstore.errors import ObjectNotFound
from quorum_wal.objectstore.store import ObjectInfo, ObjectStore
from quorum_wal.spark.jobs.lake import NONE
from quorum_wal.spark.jobs.lake_writer import parquet_writer

COMPACTIONS = "_ingest/compactions/"
SMALL_BYTES = 16 << 20
TARGET_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Compaction:
    """Files of one hour in the order of their ranges, and the file that replaces them."""

    inputs: tuple[str, ...]
    output: str


def plan_compactions(store: ObjectStore, open_hours: bool = False) -> list[Compaction]:
    """The compactions to do. The newest hour and the rows without an hour still grow; they are
    compacted only with `open_hours`. Raises ObjectStoreError."""
    files = (info for info in store.list("") if info.key.startswith("date="))
    hours = {hour: list(each) for hour, each in groupby(files, _folder)}
    newest = max((hour for hour in hours if NONE not in hour), default="")
    return [
        Compaction(tuple(info.key for info in run), _merged_key(run))
        for hour, infos in hours.items()
        if open_hours or (hour != newest and NONE not in hour)
        for run in _runs(infos)
    ]


def _folder(info: ObjectInfo) -> str:
    return info.key.rpartition("/")[0]


def _runs(files: Iterable[ObjectInfo]) -> Iterator[list[ObjectInfo]]:
    """Adjacent small files, as many as make a large one."""
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


def _merged_key(run: Sequence[ObjectInfo]) -> str:
    folder, _, first = run[0].key.rpartition("/")
    last = run[-1].key.rpartition("/")[2]
    return f"{folder}/{first.partition('-')[0]}-{last.partition('-')[2]}"


def compact(store: ObjectStore, compaction: Compaction) -> None:
    """Raises ObjectStoreError."""
    intent = f"{COMPACTIONS}{compaction.output.replace('/', '_')}.json"
    store.put(intent, msgspec.json.encode(compaction))
    _finish(store, compaction, intent)


def finish_compactions(store: ObjectStore) -> None:
    """Completes the compactions of a killed driver. Raises ObjectStoreError."""
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
    """The merged file, or None if an input was deleted, because then the output exists. Only one
    input at a time is in memory."""
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
