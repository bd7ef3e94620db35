"""A check finds no damage on undamaged servers, and pages equal those of a standby at the same
position."""

from __future__ import annotations

from pathlib import Path

import pytest
from random_checks import run_seed
from random_epochs import NotEqual

from quorum_wal.pageserver.errors import PageserverError
from quorum_wal.pg_server.binaries import PostgresBinaries

SEED = 20261126
PAGES = 60  # random_checks.py uses more pages and other seeds


def test_sound_servers(pg_binaries: PostgresBinaries, tmp_path: Path) -> None:
    print(f"seed {SEED}")
    tmp_path.chmod(0o755)
    try:
        assert "stopped: " in run_seed(pg_binaries, tmp_path, SEED, PAGES)
    except (NotEqual, PageserverError) as error:
        pytest.fail(f"{error} {getattr(error, 'hint', '')}")
