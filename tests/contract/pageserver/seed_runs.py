"""Runs many seeds from the command line, each in its own folder, which is kept on failure."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import click

from quorum_wal.pg_server.binaries import PostgresBinaries, find_postgres


def run_seeds(
    pg_major: int | None, seeds: str, run: Callable[[PostgresBinaries, Path, int], str]
) -> None:
    """`seeds`: FIRST-LAST, exclusive of LAST. `run` returns a summary. Exits with 1 if a seed
    failed."""
    binaries = find_postgres(pg_major)
    failed = 0
    for seed in range(*map(int, seeds.split("-"))):
        root = Path(tempfile.mkdtemp(prefix="seed-"))
        root.chmod(0o755)
        name = f"{binaries.major} seed {seed}"
        try:
            click.echo(f"{name}: {run(binaries, root, seed)}")
        except Exception as error:
            failed += 1
            hint = getattr(error, "hint", "")
            click.echo(f"{name}: {type(error).__name__}: {error} {hint}\nin {root}")
            continue
        shutil.rmtree(root)
    raise SystemExit(1 if failed else 0)
