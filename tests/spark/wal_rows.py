"""What the tests of sources compare: all rows of a range, and damage to segment files."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from pgwal.segment import format_segment_name
from spark.wal_input import WalInput
from spark.wal_reader import OnDamage, WalRange, read_records
from spark.wal_schema import WAL_SCHEMA

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
    """In one go, of all there is by default."""
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
    return format_segment_name(tli, segno, 1 << 20)


def copy_all(source: Path, target: Path) -> None:
    target.mkdir()
    for path in source.iterdir():
        if path.is_file():
            shutil.copy(path, target)


def _schema(columns: Sequence[str]) -> pa.Schema:
    return pa.schema([WAL_SCHEMA.field(name) for name in columns])
