"""Pages that a batch leaves for the next one have no effect on the rows, whatever happens to them:
they only save the reading of WAL."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from changed_logs import ChangedLog, LogOf
from decoding import Row, read, read_all

from quorum_wal.pgwal.lsn import Lsn
from quorum_wal.spark.changes import page_folder
from quorum_wal.spark.changes.page_folder import PageFolder

CUTS = 24


@pytest.fixture
def rng() -> random.Random:
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    return random.Random(seed)


def flip(path: Path, rng: random.Random) -> None:
    data = bytearray(path.read_bytes())
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    path.write_bytes(data)


def cut_off(path: Path, rng: random.Random) -> None:
    path.write_bytes(path.read_bytes()[: rng.randrange(path.stat().st_size)])


def remove(path: Path, _: random.Random) -> None:
    path.unlink()


def swap(path: Path, rng: random.Random) -> None:
    other = rng.choice(sorted(path.parent.iterdir()))
    path.write_bytes(other.read_bytes())


Harm = Callable[[Path, random.Random], None]
HARMS: tuple[Harm, ...] = (flip, cut_off, remove, swap)


def read_in_parts(
    log: ChangedLog, cuts: list[int], folder: PageFolder, before: Callable[[], None]
) -> list[Row]:
    """Each part as a batch of a stream reads it, after a call of `before`."""
    rows: list[Row] = []
    for begin_lsn, end_lsn in itertools.pairwise(cuts):
        before()
        rows += read(log, begin_lsn, end_lsn, folder=folder, stores_pages=True)
    return rows


def random_cuts(log: ChangedLog, rng: random.Random, count: int) -> list[int]:
    inner = sorted(rng.sample(range(log.begin_lsn, log.end_lsn), count))
    return [log.begin_lsn, *inner, log.end_lsn]


@pytest.mark.parametrize("files_max", [3, 32])
def test_any_split(
    changed_log: LogOf,
    rng: random.Random,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    files_max: int,
) -> None:
    monkeypatch.setattr(page_folder, "FILES_MAX", files_max)
    log, folder = changed_log(15, "replica"), PageFolder(tmp_path / "pages")
    used: list[int] = []

    def count() -> None:
        files = list(folder.path.glob("*")) if folder.path.exists() else []
        assert len(files) <= files_max + 1
        used.append(len(files))

    cuts = random_cuts(log, rng, CUTS)
    assert read_in_parts(log, cuts, folder, count) == read_all(log), list(map(Lsn, cuts))
    assert max(used) > 1, "no batch has used the pages of the one before"


def test_any_harm(changed_log: LogOf, rng: random.Random, tmp_path: Path) -> None:
    log, folder = changed_log(15, "replica"), PageFolder(tmp_path / "pages")

    def harm() -> None:
        files = sorted(folder.path.glob("*")) if folder.path.exists() else []
        if files and rng.randrange(3):
            rng.choice(HARMS)(rng.choice(files), rng)

    cuts = random_cuts(log, rng, CUTS)
    assert read_in_parts(log, cuts, folder, harm) == read_all(log), list(map(Lsn, cuts))
