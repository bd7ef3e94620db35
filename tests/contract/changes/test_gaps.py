"""Lost WAL: nothing from before a gap is combined with WAL after it, and a look back ends only at
the beginning of all WAL."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from bugs_of_look_back import unreadable_wal_taken_for_the_beginning
from changed_logs import MIB, SETTINGS
from decoding import PASS, Row

from quorum_wal.pg_fixtures.postgres import Postgres
from quorum_wal.pgwal.lsn import format_lsn
from quorum_wal.spark.changes.catalog import Catalog
from quorum_wal.spark.changes.catalog_snapshot import take_catalog
from quorum_wal.spark.changes.change_reader import ChangeOptions, read_changes, restart_lsn
from quorum_wal.spark.changes.change_set import ChangeSet
from quorum_wal.spark.errors import WalInputError
from quorum_wal.spark.inputs.folder_input import FolderInput
from quorum_wal.spark.inputs.wal_input import LostWal, WalChunk
from quorum_wal.spark.inputs.wal_reader import OnDamage, WalRange

ROWS = 8


@dataclass(frozen=True, slots=True)
class Log:
    """`begin_lsns` are the starts of its parts, each in a segment of its own."""

    wal_input: FolderInput
    catalog: Catalog
    begin_lsns: list[int]
    end_lsn: int

    def read(
        self, begin_lsn: int, on_damage: OnDamage = OnDamage.FAIL, wal_input: Any = None
    ) -> list[Row]:
        wal_range = WalRange(begin_lsn, self.end_lsn, self.end_lsn)
        options = ChangeOptions(self.catalog, undecoded=PASS)
        batches = read_changes(wal_input or self.wal_input, wal_range, options, on_damage)
        return [row for batch in batches for row in batch.to_pylist()]

    def damaged(self, lsn: int, folder: Path) -> Log:
        """The segment of `lsn` is damaged in its first page."""
        shutil.copytree(self.wal_input.path, folder)
        with self.segment(folder, lsn).open("r+b") as file:
            file.seek(100)
            file.write(b"damage")
        return Log(FolderInput(str(folder)), self.catalog, self.begin_lsns, self.end_lsn)

    def segment(self, folder: Path, lsn: int) -> Path:
        (found,) = folder.glob(f"*{lsn // MIB // 4096:08X}{lsn // MIB % 4096:08X}")
        return found


@pytest.fixture(scope="module", params=["replica", "logical"])
def log(request: pytest.FixtureRequest, initdb_template: Any, pg_binaries: Any,
        tmp_path_factory: pytest.TempPathFactory) -> Iterator[Log]:  # fmt: skip
    """Rows of a page are changed repeatedly, in four parts; free space on the page is reused. There
    is a checkpoint before the first part and one in the last part."""
    scratch_dir = tmp_path_factory.mktemp("gaps")
    scratch_dir.chmod(0o755)
    settings = {**SETTINGS, "wal_level": request.param, "checkpoint_timeout": "1h"}
    postgres = Postgres(
        pg_binaries, scratch_dir / "data", settings=settings, wal_seg_size=MIB,
        template=initdb_template(pg_binaries, MIB),
    )  # fmt: skip
    with postgres:
        postgres.execute("CREATE TABLE t (id int PRIMARY KEY, a text, b text, c text)")
        postgres.execute("ALTER TABLE t ALTER a SET STORAGE PLAIN, ALTER b SET STORAGE PLAIN")
        postgres.execute(
            f"INSERT INTO t SELECT g, repeat('a', 300), repeat('b', 300), '' FROM"
            f" generate_series(1, {ROWS}) g"
        )
        postgres.execute("CHECKPOINT")
        begin_lsns = [write_part(postgres, number) for number in range(4)]
        catalog = take_catalog(postgres.dsn())
        postgres.stop()
        wal_input = FolderInput(str(postgres.pg_wal))
        yield Log(wal_input, catalog, begin_lsns, wal_input.newest_lsn())


def write_part(postgres: Postgres, number: int) -> int:
    postgres.execute("SELECT pg_switch_wal()")
    ((begin_lsn,),) = postgres.execute(
        "SELECT pg_logical_emit_message(false, '', 'x') - '0/0'::pg_lsn"
    )
    for step in range(60):
        if (number, step) == (3, 30):
            postgres.execute("CHECKPOINT")
        column = "ab"[step % 2]
        postgres.execute(
            f"UPDATE t SET {column} = repeat('{number}{chr(65 + step % 26)}', 150), c = %s"
            f" WHERE id = {1 + step % ROWS}",
            (str(step),),
        )
    return int(begin_lsn) // MIB * MIB


def test_nothing_is_joined_over_a_gap(log: Log, tmp_path: Path) -> None:
    """With on_damage=skip, a row has its values, or reports that they are unknown."""
    true = {row["lsn"]: row for row in log.read(log.begin_lsns[0])}
    assert len(true) == 4 * 60
    rest = log.damaged(log.begin_lsns[1], tmp_path / "wal")
    rows = rest.read(log.begin_lsns[0], OnDamage.SKIP)
    behind = [row for row in rows if row["lsn"] >= log.begin_lsns[2]]
    assert len(behind) == 2 * 60
    for row in behind:
        if row["operation"] == "unknown":
            assert (
                row["detail"]
                == "update: the row is not in the record, and its page has not been seen before"
            )
        else:
            assert row == true[row["lsn"]], format_lsn(row["lsn"])
    known = [row["operation"] == "update" for row in behind]
    assert all(known[-30 + ROWS :]), "a page is known again from its next image on"
    gaps = [row for row in rows if "is lost, with it" in (row["detail"] or "")]
    assert [row["lsn"] - row["lsn"] % MIB for row in gaps] == [log.begin_lsns[1]]


@pytest.mark.parametrize("log", ["replica"], indirect=True)
def test_a_planted_bug_is_seen(log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If pages are kept over a gap, rows of other times are mixed in."""
    monkeypatch.setattr(ChangeSet, "_forget_pages_at_gap", lambda self, index: None)
    with pytest.raises(AssertionError):
        test_nothing_is_joined_over_a_gap(log, tmp_path)


def test_damage_before_the_range_is_no_beginning(log: Log, tmp_path: Path) -> None:
    """A look back reads it, for transactions that were open, and for pages."""
    rest = log.damaged(log.begin_lsns[2], tmp_path / "wal")
    name = rest.segment(tmp_path / "wal", log.begin_lsns[2]).name
    for on_damage in (OnDamage.FAIL, OnDamage.STOP):
        with pytest.raises(LostWal, match=name):
            rest.read(log.begin_lsns[3], on_damage)
    with pytest.raises(LostWal, match=name):
        restart_lsn(rest.wal_input, log.begin_lsns[3], ChangeOptions(log.catalog))
    said = [row for row in rest.read(log.begin_lsns[3], OnDamage.SKIP) if row["xid"] is None]
    assert [row["lsn"] - row["lsn"] % MIB for row in said] == [log.begin_lsns[2]]
    assert name in said[0]["detail"]


def test_a_missing_segment_is_no_beginning(log: Log, tmp_path: Path) -> None:
    rest = log.damaged(log.begin_lsns[2], tmp_path / "wal")
    rest.segment(tmp_path / "wal", log.begin_lsns[2]).unlink()
    with pytest.raises(LostWal, match="has no WAL of segment"):
        rest.read(log.begin_lsns[3])


def test_the_beginning_of_all_wal_is_said(log: Log, tmp_path: Path) -> None:
    rest = log.damaged(log.begin_lsns[2], tmp_path / "wal")
    damaged = rest.segment(tmp_path / "wal", log.begin_lsns[2])
    for file in (tmp_path / "wal").glob("0*"):
        if file.name <= damaged.name:
            file.unlink()
    for on_damage in OnDamage:
        first, *rows = rest.read(log.begin_lsns[3], on_damage)
        assert first["detail"].startswith(f"the WAL begins at {format_lsn(log.begin_lsns[3])}")
        assert len(rows) == 60


class AwayBelow(FolderInput):
    """A source that does not answer for WAL below a position."""

    lsn: int

    def read(self, lsn: int, end_lsn: int | None = None) -> Iterator[WalChunk]:
        if lsn < self.lsn:
            raise WalInputError("no safekeeper answers: all are away")
        return super().read(lsn, end_lsn)


@pytest.mark.parametrize("on_damage", OnDamage)
def test_silence_is_no_beginning(log: Log, on_damage: OnDamage) -> None:
    away = AwayBelow(log.wal_input.path)
    object.__setattr__(away, "lsn", log.begin_lsns[3])
    with pytest.raises(WalInputError, match="no safekeeper answers"):
        log.read(log.begin_lsns[3], on_damage, away)


@pytest.mark.parametrize("log", ["replica"], indirect=True)
@pytest.mark.parametrize(
    ("swallowed", "guard"),
    [
        (LostWal, lambda log, folder: test_damage_before_the_range_is_no_beginning(log, folder)),
        (WalInputError, lambda log, _: test_silence_is_no_beginning(log, OnDamage.FAIL)),
    ],
    ids=["damage", "silence"],
)
def test_a_look_back_that_ends_at_an_error_is_seen(
    log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    swallowed: type[WalInputError], guard: Callable[[Log, Path], None],
) -> None:  # fmt: skip
    unreadable_wal_taken_for_the_beginning(monkeypatch, swallowed)
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        guard(log, tmp_path / "wal")
