"""What the tests of sources compare: all rows of a range, and damage to segment files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
from archived_log import TIMELINE

from quorum_wal.objectstore.archive import ArchivedTimeline, TimelineArchive
from quorum_wal.objectstore.keys import ArchivedWal
from quorum_wal.objectstore.local import LocalStore
from quorum_wal.pgwal.segment import format_segment_name
from quorum_wal.spark.inputs.folder_input import FolderInput
from quorum_wal.spark.inputs.wal_input import WalInput
from quorum_wal.spark.inputs.wal_reader import OnDamage, WalRange, read_records
from quorum_wal.spark.records.wal_schema import WAL_SCHEMA

MIB = 1 << 20
COLUMNS = tuple(WAL_SCHEMA.names)


def rows_of(
    wal_input: WalInput,
    start_lsn: int | None = None,
    end_lsn: int | None = None,
    *,
    columns: Sequence[str] = COLUMNS,
    on_damage: OnDamage = OnDamage.FAIL,
    is_boundary: bool = False,
) -> pa.Table:
    """All rows at once, by default of the whole log."""
    first_lsn, newest_lsn = wal_input.extent()[0], wal_input.newest_lsn()
    start_lsn = first_lsn if start_lsn is None else start_lsn
    end_lsn = newest_lsn if end_lsn is None else end_lsn
    wal_range = WalRange(start_lsn, end_lsn, newest_lsn, is_boundary)
    batches = read_records(wal_input, wal_range, columns=columns, on_damage=on_damage)
    return pa.Table.from_batches(list(batches), _schema(columns))


def lsns(table: pa.Table) -> list[int]:
    found: list[int] = table["lsn"].to_pylist()
    return found


def segment(folder: Path, number: int) -> Path:
    """The n-th segment of a folder with one timeline."""
    return sorted(path for path in folder.iterdir() if len(path.name) == 24)[number]


def flip(path: Path, offset: int) -> None:
    """Damage one byte."""
    content = bytearray(path.read_bytes())
    content[offset] ^= 0xFF
    path.write_bytes(content)


def name_of(segno: int, tli: int = 1) -> str:
    return format_segment_name(tli, segno, MIB)


def archive_of(server_wal: Path, folder: Path) -> TimelineArchive:
    """The last segment only up to its last record, as an archiver leaves it."""
    source = FolderInput(str(server_wal))
    facts, (first_lsn, end_lsn) = source.facts(), source.extent()
    timeline = ArchivedTimeline(facts.system_id, facts.pg_version, MIB, 1, first_lsn)
    archive = TimelineArchive.create(LocalStore(str(folder)), TIMELINE, timeline)
    wal = b"".join(chunk.data for chunk in source.read(first_lsn))
    for begin in range(first_lsn, end_lsn, MIB):
        end = min(begin + MIB, end_lsn)
        content = wal[begin - first_lsn : end - first_lsn]
        archive.put_wal(ArchivedWal(1, begin // MIB, end), content)
    return archive


def _schema(columns: Sequence[str]) -> pa.Schema:
    return pa.schema([WAL_SCHEMA.field(name) for name in columns])
