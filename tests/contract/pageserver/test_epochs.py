"""The result of an epoch equals the files of a standby stopped at the same cut."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import random_merges
import random_pages
from page_world import PageWorld
from pg_versions import oldest_and_newest
from random_epochs import SEGMENT_BYTES, NotEqual, check_epoch, run_seed

from quorum_wal.pageserver.errors import PageserverError
from quorum_wal.pg_fixtures.postgres import Postgres
from quorum_wal.pg_server.binaries import PostgresBinaries

SEED = 20261125
EPOCHS, PAGES = 2, 6  # random_epochs.py and random_pages.py use more, and other seeds
MERGED_EPOCHS, MERGED_PAGES = 4, 2  # random_merges.py also uses more


@pytest.mark.parametrize("binaries", oldest_and_newest(), ids=lambda found: str(found.major))
def test_a_random_workload(binaries: PostgresBinaries, tmp_path: Path) -> None:
    print(f"seed {SEED}")
    tmp_path.chmod(0o755)
    try:
        run_seed(binaries, tmp_path, SEED, EPOCHS)
    except (NotEqual, PageserverError) as error:
        pytest.fail(f"{error} {getattr(error, 'hint', '')}")


@pytest.mark.parametrize("binaries", oldest_and_newest()[-1:], ids=lambda found: str(found.major))
def test_single_pages(binaries: PostgresBinaries, tmp_path: Path) -> None:
    """test_checks.py compares single pages with the oldest version."""
    print(f"seed {SEED}")
    tmp_path.chmod(0o755)
    try:
        assert random_pages.run_seed(binaries, tmp_path, SEED, PAGES).pages > 0
    except (NotEqual, PageserverError) as error:
        pytest.fail(f"{error} {getattr(error, 'hint', '')}")


def test_merged_layers(pg_binaries: PostgresBinaries, tmp_path: Path) -> None:
    """All reads at and above the horizon return the same pages; the layers become smaller."""
    print(f"seed {SEED}")
    tmp_path.chmod(0o755)
    try:
        merges = random_merges.run_seed(pg_binaries, tmp_path, SEED, MERGED_EPOCHS, MERGED_PAGES)
    except (NotEqual, PageserverError) as error:
        pytest.fail(f"{error} {getattr(error, 'hint', '')}")
    for merged in merges:
        assert merged.survey.live_pages < merged.survey.all_pages
        assert merged.after_bytes < merged.before_bytes


def test_an_epoch_without_a_change(
    pg_binaries: PostgresBinaries,
    initdb_template: Callable[[PostgresBinaries, int], Path],
    tmp_path: Path,
) -> None:
    tmp_path.chmod(0o755)
    template = initdb_template(pg_binaries, SEGMENT_BYTES)
    data_dir = tmp_path / "primary"
    server = Postgres(pg_binaries, data_dir, wal_seg_size=SEGMENT_BYTES, template=template)
    world = PageWorld(server, tmp_path)
    with server:
        world.start()
        world.take_base()
        check_epoch(world, "first")
        assert check_epoch(world, "second").page_count == 0
