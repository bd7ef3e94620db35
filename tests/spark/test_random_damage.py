"""Randomly damaged folders: each record is a row or inside a gap, for any cuts of the range."""

from __future__ import annotations

import random
import secrets
import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from wal_rows import lsns, rows_of

from quorum_wal.spark.inputs.folder_input import FolderInput
from quorum_wal.spark.inputs.wal_input import LostWal
from quorum_wal.spark.inputs.wal_reader import OnDamage

MIB = 1 << 20
COLUMNS = ("lsn", "end_lsn", "operation")
RUNS = 12


def damage(path: Path, rng: random.Random) -> str:
    """Damage in one of five ways; returns a description."""
    content = bytearray(path.read_bytes())
    way, at = rng.randrange(5), rng.randrange(len(content))
    page = at - at % 8192
    if way == 0:
        path.unlink()
        return f"{path.name} removed"
    if way == 1:
        del content[at:]
    elif way == 2:
        content[at] ^= rng.randrange(1, 256)
    elif way == 3:
        content[at : at + 9000] = bytes(len(content[at : at + 9000]))
    else:
        content[page : page + 24] = rng.randbytes(24)
    path.write_bytes(content)
    return f"{path.name} damaged in way {way} at {at}"


def test_nothing_is_lost_in_silence(server_wal: Path, tmp_path: Path) -> None:
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    names = [path.name for path in sorted(server_wal.iterdir()) if len(path.name) == 24]
    whole = rows_of(FolderInput(str(server_wal)), columns=COLUMNS)
    for run in range(RUNS):
        folder = tmp_path / str(run)
        folder.mkdir()
        for name in names:
            shutil.copy(server_wal / name, folder)
        done = [damage(folder / name, rng) for name in rng.sample(names[:-1], rng.randrange(1, 3))]
        print(done)
        check(FolderInput(str(folder)), whole)


def check(wal_input: FolderInput, whole: pa.Table) -> None:
    first_lsn, end_lsn = wal_input.extent()[0], wal_input.newest_lsn()
    rows = rows_of(wal_input, columns=COLUMNS, on_damage=OnDamage.SKIP)
    cuts = range(first_lsn, end_lsn, MIB)
    parts = [
        rows_of(wal_input, cut, min(cut + MIB, end_lsn), columns=COLUMNS, on_damage=OnDamage.SKIP)
        for cut in cuts
    ]
    assert pa.concat_tables(parts).equals(rows)

    gaps = [row for row in rows.to_pylist() if row["operation"] == "GAP"]
    found = {row["lsn"]: row["end_lsn"] for row in rows.to_pylist() if row not in gaps}
    for row in whole.to_pylist():
        lsn = row["lsn"]
        if first_lsn <= lsn < end_lsn and lsn not in found:
            assert any(gap["lsn"] <= lsn < gap["end_lsn"] for gap in gaps), (row, gaps)
    true = dict(zip(lsns(whole), whole["end_lsn"].to_pylist(), strict=True))
    assert found.items() <= true.items()

    stopped = rows_of(wal_input, columns=COLUMNS, on_damage=OnDamage.STOP)
    assert stopped.equals(rows.slice(0, stopped.num_rows))
    assert bool(gaps) == (stopped.num_rows < rows.num_rows)
    if gaps:
        with pytest.raises(LostWal):
            rows_of(wal_input, columns=COLUMNS)
    else:
        assert rows_of(wal_input, columns=COLUMNS).equals(rows)
