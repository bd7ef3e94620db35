"""What `pip install .` makes: compiled where there is a compiler, whole where there is none."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from quorum_wal.storage.compiled import SOURCES, how_it_runs, sources_digest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
MODULES: list[str] = PROJECT["tool"]["hatch"]["build"]["hooks"]["custom"]["modules"]
#: Of the web page.
TEMPLATES = [str(p.relative_to(ROOT)) for p in ROOT.glob("telemetry/page/templates/*")]
COMPILED = tuple(path.removesuffix(".py") + "_compiled" for path in MODULES)


def build_wheel(folder: Path, **environment: str) -> tuple[list[str], list[bytes]]:
    """The names in the wheel that pip builds from the files that are in the repository, and how the
    libraries among them end."""
    source = folder / "source"
    source.mkdir()
    archive = subprocess.run(
        ["git", "archive", "HEAD"], cwd=ROOT, capture_output=True, check=True
    ).stdout
    subprocess.run(["tar", "-x", "-C", source], input=archive, check=True)
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--quiet", "-w", folder, source]
    subprocess.run(command, env={**os.environ, **environment}, check=True, timeout=600)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as file:
        names = file.namelist()
        return names, [file.read(name)[-32:] for name in names if name.endswith(".so")]


@pytest.mark.parametrize("has_compiler", [True, False], ids=["a compiler", "no compiler"])
def test_a_wheel_has_what_could_be_compiled(tmp_path: Path, has_compiler: bool) -> None:
    names, ends = build_wheel(tmp_path, CC="cc" if has_compiler else "/nonexistent/cc")
    assert set(SOURCES) <= set(names)
    assert set(TEMPLATES) <= set(names)
    assert set(ends) <= {sources_digest(tmp_path / "source")}, "of other sources: not loaded"
    libraries = [name for name in names if name.endswith(".so")]
    found = [module for module in COMPILED if any(n.startswith(module) for n in libraries)]
    assert found == (list(COMPILED) if has_compiler else [])
    assert len(libraries) == len(found)


def test_the_tests_run_what_is_compiled_from_these_sources() -> None:
    """Of an editable installation the compiled files are in the tree: of other ones no test would
    see anything. `make` renews them, also after a change of how they are compiled."""
    builder = (ROOT / "hatch_build.py").stat().st_mtime
    for name in COMPILED:
        (library,) = ROOT.glob(f"{name}.*.so")
        assert how_it_runs(name.removesuffix("_compiled").replace("/", ".")) == "compiled"
        assert library.stat().st_mtime >= builder, f"{library.name} is older: run make"
