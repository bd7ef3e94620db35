"""What the engine makes of an epoch is what a standby has that was stopped at the same cut."""

from __future__ import annotations

from pathlib import Path

import pytest
from random_epochs import NotEqual, run_seed

from pageserver.errors import PageserverError
from pg_server.binaries import PostgresBinaries, all_postgres

SEED = 20261125


@pytest.mark.parametrize("binaries", all_postgres(), ids=lambda found: str(found.major))
def test_a_random_workload(binaries: PostgresBinaries, tmp_path: Path) -> None:
    print(f"seed {SEED}")
    tmp_path.chmod(0o755)
    try:
        run_seed(binaries, tmp_path, SEED)
    except (NotEqual, PageserverError) as error:
        pytest.fail(f"{error} {getattr(error, 'hint', '')}")
