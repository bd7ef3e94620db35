"""Which modules run compiled: never a broken file, never one of other sources."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from quorum_wal.storage.compiled import INTERPRETED, SOURCES, sources_digest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
MODULES: list[str] = PROJECT["tool"]["hatch"]["build"]["hooks"]["custom"]["modules"]
#: Prints the class that the services would use, and the number of warnings.
PROGRAM = """
from quorum_wal.safekeeper.timeline import Timeline
from quorum_wal.storage.compiled import how_it_runs
from quorum_wal.walproposer.stream.incarnation import SteadyLeader, SteadyLoop
for taken in (Timeline.steady_path_class, SteadyLeader, SteadyLoop):
    print(taken.__module__.rpartition(".")[2])
for name in ("quorum_wal.safekeeper.steady_path", "quorum_wal.walproposer.stream.steady_loop") * 2:
    how_it_runs(name)
"""
ALL_COMPILED = ["steady_path_compiled", "steady_leader_compiled", "steady_loop_compiled"]
ALL_INTERPRETED = ["steady_path", "steady_leader", "steady_loop"]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The packages, with the compiled modules and the bytecode of what the program imports."""
    folder = tmp_path_factory.mktemp("installed")
    unwanted = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "quorum_wal", folder / "quorum_wal", ignore=unwanted)
    taken_in(folder)
    return folder


@pytest.fixture
def tree(installed: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(installed, tmp_path / "tree"))


def taken_in(tree: Path, **environment: str) -> tuple[list[str], list[str]]:
    """The loaded modules, and the content of stderr."""
    process = subprocess.run(
        [sys.executable, "-P", "-c", PROGRAM],
        env={**os.environ, "PYTHONPATH": str(tree), INTERPRETED: "", **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert process.returncode == 0, process.stderr
    return process.stdout.split(), process.stderr.splitlines()


def library(tree: Path, name: str) -> Path:
    (path,) = (tree / "quorum_wal").glob(f"{name}_compiled.*.so")
    return path


def test_compiled_modules_are_loaded(tree: Path) -> None:
    assert taken_in(tree) == (ALL_COMPILED, [])


def test_compiled_modules_are_not_loaded_if_disabled(tree: Path) -> None:
    assert taken_in(tree, **{INTERPRETED: "1"}) == (ALL_INTERPRETED, [])


def test_without_a_compiler_there_is_no_warning(tree: Path) -> None:
    for path in tree.rglob("*_compiled.*.so"):
        path.unlink()
    assert taken_in(tree) == (ALL_INTERPRETED, [])


@pytest.mark.parametrize("bytes_kept", [0, 100, 4096, -1])
def test_a_truncated_file_is_not_loaded(tree: Path, bytes_kept: int) -> None:
    path = library(tree, "safekeeper/steady_path")
    path.write_bytes(path.read_bytes()[:bytes_kept])
    taken, (warning,) = taken_in(tree)
    assert taken == ["steady_path", *ALL_COMPILED[1:]]
    assert "quorum_wal.safekeeper.steady_path runs interpreted" in warning
    assert path.name in warning


def test_a_file_that_does_not_load_ends_nothing(tree: Path) -> None:
    """It has the digest of these sources, but is, for example, for another machine."""
    path = library(tree, "walproposer/stream/steady_leader")
    digest = sources_digest(tree / "quorum_wal")
    assert digest is not None
    path.write_bytes(b"no library" + digest)
    taken, warnings = taken_in(tree)
    # The compiled loop uses the compiled leader's types.
    assert taken == ["steady_path_compiled", "steady_leader", "steady_loop"]
    assert len(warnings) == 2


def changed_in(tree: Path, name: str) -> None:
    with (tree / "quorum_wal" / name).open("a") as file:
        file.write("# changed\n")


@pytest.mark.parametrize("name", SOURCES)
def test_after_a_change_of_a_source_nothing_compiled_is_loaded(tree: Path, name: str) -> None:
    changed_in(tree, name)
    taken, warnings = taken_in(tree)
    assert taken == ALL_INTERPRETED
    assert len(warnings) == 3
    assert all("from other sources" in warning for warning in warnings)


def without_types(tree: Path) -> None:
    for path in tree.rglob("*.pxd"):
        path.unlink()


def without_a_digest(tree: Path) -> None:
    for path in tree.rglob("*_compiled.*.so"):
        path.write_bytes(path.read_bytes()[:-32])


@pytest.mark.parametrize(
    ("change", "expected"),
    [(without_types, ALL_COMPILED), (without_a_digest, ALL_INTERPRETED)],
    ids=["sources not installed", "a tool stripped the digest"],
)
def test_what_a_packager_may_do(
    tree: Path, change: Callable[[Path], None], expected: list[str]
) -> None:
    change(tree)
    taken, _ = taken_in(tree)
    assert taken == expected


def test_the_sources_are_all_that_is_compiled() -> None:
    """A further .pxd of a compiled module would not be part of the digest."""
    types = [
        str(path.relative_to(ROOT))
        for link in (ROOT / "quorum_wal").iterdir()
        if link.is_symlink()
        for path in link.resolve().rglob("*.pxd")
    ]
    assert sorted(SOURCES) == sorted([*MODULES, *types])
