"""The changes are the same however the WAL is cut, and an omitted change is reported."""

from __future__ import annotations

import itertools
import random
import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from changed_logs import MIB, ChangedLog, LogOf
from decoding import PASS, Row, read, read_all

from quorum_wal.pgwal.lsn import Lsn
from quorum_wal.spark.changes import change_reader
from quorum_wal.spark.changes.change_reader import ChangeOptions, read_changes, restart_lsn
from quorum_wal.spark.inputs.folder_input import FolderInput
from quorum_wal.spark.inputs.wal_input import LostWal
from quorum_wal.spark.inputs.wal_reader import OnDamage, WalRange

LOGS = [(18, "logical"), (15, "replica")]


@pytest.fixture
def rng() -> random.Random:
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    return random.Random(seed)


@pytest.mark.parametrize(("major", "wal_level"), LOGS)
def test_any_split(changed_log: LogOf, rng: random.Random, major: int, wal_level: str) -> None:
    """Cuts are anywhere, also inside transactions, records and page headers."""
    log = changed_log(major, wal_level)
    whole = read_all(log)
    assert len(whole) > 1000
    for count in (1, 5, 20):
        inner = sorted(rng.sample(range(log.begin_lsn, log.end_lsn), count))
        cuts = [log.begin_lsn, *inner, log.end_lsn]
        parts: list[Row] = []
        for begin_lsn, end_lsn in itertools.pairwise(cuts):
            parts += read(log, begin_lsn, end_lsn)
        assert parts == whole, [str(Lsn(cut)) for cut in cuts]
    assert_total_order(whole)


def assert_total_order(rows: list[Row]) -> None:
    """Each row has a place of its own, and they come in the order of their places."""
    places = [(row["commit_lsn"], row["lsn"], row["seq"]) for row in rows]
    assert places == sorted(places)
    assert len(set(places)) == len(places)
    assert max(seq for *_, seq in places) > 60, "COPY writes many rows with one record"


@pytest.mark.parametrize(("major", "wal_level"), LOGS)
def test_a_place_depends_on_the_record_alone(
    changed_log: LogOf, major: int, wal_level: str
) -> None:
    """So a row that is decoded later, with another catalog, has the place that it had before."""
    log = changed_log(major, wal_level)
    whole = {place_of(row): row for row in read_all(log) if row["operation"] != "unknown"}
    for catalog in log.catalogs:
        found = [row for row in read_all(log, catalog) if row["operation"] != "unknown"]
        for row in found:
            assert row["operation"] == whole[place_of(row)]["operation"]
            assert row["ctid"] == whole[place_of(row)]["ctid"]


def place_of(row: Row) -> tuple[int, int, int]:
    return row["commit_lsn"], row["lsn"], row["seq"]


@pytest.mark.parametrize(("major", "wal_level"), LOGS)
def test_windows(
    changed_log: LogOf, monkeypatch: pytest.MonkeyPatch, major: int, wal_level: str
) -> None:
    log = changed_log(major, wal_level)
    whole = read_all(log)
    assert log.end_lsn - log.begin_lsn > MIB
    monkeypatch.setattr(change_reader, "WINDOW_BYTES", MIB)
    assert read_all(log) == whole


@pytest.mark.parametrize("major", [16])
def test_restart_lsn_is_enough(
    changed_log: LogOf, rng: random.Random, tmp_path: Path, major: int
) -> None:
    """After any position, all changes are decoded with only the WAL from restart_lsn on."""
    log = changed_log(major, "logical")
    options = ChangeOptions(log.catalogs[0])
    boundaries = [row["lsn"] for row in read_all(log)]
    for number in range(3):
        place_lsn = rng.choice(boundaries)
        first_lsn = restart_lsn(log.wal_input, place_lsn, options)
        assert first_lsn <= place_lsn
        rest = with_wal_from(log, first_lsn, tmp_path / str(number))
        found = [row for row in read(rest, place_lsn, log.end_lsn) if row["xid"] is not None]
        assert found == read(log, place_lsn, log.end_lsn), str(Lsn(place_lsn))


@pytest.mark.parametrize("major", [16])
def test_wal_that_begins_too_late(changed_log: LogOf, tmp_path: Path, major: int) -> None:
    """Transactions that may have begun before are reported once."""
    log = changed_log(major, "logical")
    begin_lsn = log.begin_lsn - log.begin_lsn % MIB + MIB
    rest = with_wal_from(log, begin_lsn, tmp_path / "rest")
    first, *rows = read(rest, begin_lsn, log.end_lsn)
    assert first["operation"] == "unknown"
    assert first["detail"].startswith(f"the WAL begins at {Lsn(begin_lsn)} and does not list")
    assert rows[-1] == read_all(log)[-1]


def with_wal_from(log: ChangedLog, lsn: int, folder: Path) -> ChangedLog:
    folder.mkdir()
    for file in sorted(Path(log.wal_input.path).iterdir()):
        if len(file.name) == 24 and int(file.name[8:16], 16) * 4096 + int(file.name[16:], 16) >= (
            lsn // MIB
        ):
            shutil.copy(file, folder)
    wal_input = FolderInput(str(folder))
    return ChangedLog(wal_input, log.begin_lsn, log.end_lsn, log.catalogs, log.expected)


def test_damage_is_said(changed_log: LogOf, tmp_path: Path) -> None:
    """With on_damage=skip, the gap is a row, and later transactions are decoded."""
    log = changed_log(16, "logical")
    rest = with_wal_from(log, log.begin_lsn, tmp_path / "rest")
    damaged = sorted(Path(rest.wal_input.path).iterdir())[0]
    bad_lsn = log.begin_lsn + 200_000
    with damaged.open("r+b") as file:
        file.seek(bad_lsn % MIB)
        file.write(b"damage")
    wal_range = WalRange(log.begin_lsn, log.end_lsn, log.end_lsn)
    options = ChangeOptions(log.catalogs[0].merged(log.catalogs[1]), undecoded=PASS)
    with pytest.raises(LostWal, match=damaged.name):
        list(read_changes(rest.wal_input, wal_range, options))
    batches = read_changes(rest.wal_input, wal_range, options, OnDamage.SKIP)
    rows = pa.Table.from_batches(batches).to_pylist()
    said = [row for row in rows if "is lost, with it changes" in (row["detail"] or "")]
    assert len(said) == 1
    assert said[0]["lsn"] <= bad_lsn
    segment_end_lsn = bad_lsn - bad_lsn % MIB + MIB
    behind = [row for row in rows if (row["commit_lsn"] or 0) > segment_end_lsn]
    assert behind[-1] == read_all(log)[-1]
