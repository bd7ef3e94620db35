"""Logs that real servers of each version left behind, made once per session."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from full_logs import MIB, LogMaker, make_full_log


@pytest.fixture(scope="session")
def scratch_dir() -> Iterator[Path]:
    """A folder that the server's account can reach, which pytest's own is not."""
    with tempfile.TemporaryDirectory(prefix="pgwal-", ignore_cleanup_errors=True) as path:
        Path(path).chmod(0o755)
        yield Path(path)


@pytest.fixture(scope="session")
def full_log(scratch_dir: Path) -> LogMaker:
    """`full_log(major, seg_mib)`: a log that has every shape of record; made once."""
    return cache(lambda major, seg_mib: make_full_log(scratch_dir, major, seg_mib * MIB))


@pytest.fixture
def rng() -> random.Random:
    """Draws the cuts and the damage; the seed is printed when the test fails."""
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    return random.Random(seed)
