"""`pip install .` installs one import name, the compiled modules, and manual pages.

It works beside packages that have the names of our folders.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from pathlib import Path

import pytest

from quorum_wal.cli.man_pages import man_pages
from quorum_wal.pg_fixtures.waiting import wait_until
from quorum_wal.storage.compiled import SOURCES, how_it_runs

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
MODULES: list[str] = PROJECT["tool"]["hatch"]["build"]["hooks"]["custom"]["modules"]
#: Of the web page.
TEMPLATES = [str(p.relative_to(ROOT)) for p in ROOT.glob("telemetry/page/templates/*")]
COMPILED = tuple(path.removesuffix(".py") + "_compiled" for path in MODULES)
PARTS = sorted(link.name for link in (ROOT / "quorum_wal").iterdir() if link.is_symlink())
TIMEOUT = 120.0
#: Variables of an environment that would lead to the repository.
OF_THE_TESTS = ("PYTHONPATH", "PYTHONSAFEPATH", "VIRTUAL_ENV")
WITHOUT_THEM = {name: value for name, value in os.environ.items() if name not in OF_THE_TESTS}

IMPORT_ALL = """
import importlib, pkgutil, sys
import quorum_wal
for module in pkgutil.walk_packages(quorum_wal.__path__, "quorum_wal."):
    if not module.name.startswith("quorum_wal.pg_server.launcher"):
        importlib.import_module(module.name)
print(quorum_wal.__file__, len([name for name in sys.modules if name.startswith("quorum_wal.")]))
"""
LOAD_PLUGIN = """
from importlib.metadata import entry_points
(plugin,) = entry_points(group="pytest11", name="pg_fixtures")
print(plugin.load().__name__)
"""


def program(tool: str) -> Path:
    """Of the environment of the tests."""
    path = Path(sys.executable).with_name(tool)
    if not path.exists():
        pytest.skip(f"{tool} is not installed: run make")
    return path


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of the tracked files, built where there is no compiler. The Debian package has the compiled
    modules."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    source.mkdir()
    archive = subprocess.run(
        ["git", "archive", "HEAD"], cwd=ROOT, capture_output=True, check=True
    ).stdout
    subprocess.run(["tar", "-x", "-C", source], input=archive, check=True)
    # uv makes the environment of a build in a tenth of pip's time.
    command = [program("uv"), "build", "--wheel", "-q", "-o", folder, source]
    environment = {**os.environ, "CC": "/nonexistent/cc"}
    subprocess.run(command, env=environment, check=True, timeout=600)
    (wheel,) = folder.glob("*.whl")
    return wheel


def test_a_wheel_without_compiled_modules_has_all_sources(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as file:
        names = file.namelist()
    assert {f"quorum_wal/{name}" for name in SOURCES} <= set(names)
    assert {f"quorum_wal/{name}" for name in TEMPLATES} <= set(names)
    assert [name for name in names if name.endswith(".so")] == []


def test_a_wheel_has_one_import_name_and_a_page_for_each_command(wheel: Path) -> None:
    """Beside the two modules whose names Spark looks for."""
    with zipfile.ZipFile(wheel) as file:
        names = file.namelist()
    top = {name.partition("/")[0] for name in names}
    assert {name for name in top if not name.startswith("quorum_wal-")} == {
        *("quorum_wal", "pyspark_pg_wal.py", "pyspark_pg_changes.py"),
    }
    pages = {Path(name).name for name in names if "/data/share/man/man1/" in name}
    assert pages == set(man_pages())


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a package of each of our names, which cannot be imported."""
    folder = tmp_path_factory.mktemp("foreign")
    make_foreign_packages(folder)
    return folder


def make_foreign_packages(folder: Path) -> None:
    for name in PARTS:
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text(f'raise ImportError("a foreign {name}")')


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with the wheel, and with foreign packages of all names. It finds
    the dependencies of the wheel in the environment of the tests."""
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    python = folder / "bin/python"
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index"]
    subprocess.run([*pip, "-q", wheel], env=WITHOUT_THEM, check=True, timeout=TIMEOUT)
    (packages,) = folder.glob("lib/python*/site-packages")
    paths = (sysconfig.get_path("purelib"), *(path for path in sys.path if "-packages" in path))
    (packages / "of_the_tests.pth").write_text("\n".join(dict.fromkeys(paths)))
    make_foreign_packages(packages)
    return python


def run(folder: Path, *command: str | Path) -> str:
    """The output."""
    done = subprocess.run(
        command, cwd=folder, env=WITHOUT_THEM, capture_output=True, text=True, timeout=TIMEOUT
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_each_module_is_imported_beside_packages_of_all_names(python: Path, foreign: Path) -> None:
    file, count = run(foreign, python, "-c", IMPORT_ALL).split()
    assert Path(file).is_relative_to(python.parents[1])
    assert int(count) > 500
    assert run(foreign, python, "-c", LOAD_PLUGIN).split() == ["quorum_wal.pg_fixtures.plugin"]


def test_a_program_of_a_user_finds_the_client(python: Path, foreign: Path) -> None:
    (foreign / "program.py").write_text(
        "from quorum_wal.qsync import Qsync\n"
        "try: import qsync\n"
        "except ImportError as error: print(Qsync.__module__, error)\n"
    )
    said = run(foreign, python, "program.py")
    assert said.startswith("quorum_wal.qsync.")
    assert "a foreign qsync" in said, "the test proves nothing"


def test_sk_runs_a_cluster_beside_packages_of_all_names(python: Path, foreign: Path) -> None:
    """Its services are separate processes, which must find the package again."""
    sk = python.with_name("sk")
    assert run(foreign, sk, "--version").startswith("sk, version ")
    assert "safekeeper" in run(foreign, python, "-m", "quorum_wal.cli.main", "--help")
    out = foreign / "out"
    with out.open("w") as file:
        process = subprocess.Popen(
            [sk, "dev", "--members", "1"], cwd=foreign, env=WITHOUT_THEM, stdout=file, stderr=file
        )
    try:
        wait_until(lambda: "Ctrl-C" in out.read_text() or process.poll() is not None, TIMEOUT, "sk")
        assert process.poll() is None, out.read_text()
        process.send_signal(signal.SIGINT)
        assert process.wait(TIMEOUT) == 0, out.read_text()
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("tool", ["pipx", "uv"])
def test_a_tool_for_programs_installs_sk(
    wheel: Path, tmp_path: Path, foreign: Path, tool: str
) -> None:
    """With all dependencies, from the package index; with `pipx` the manual pages are found,
    too."""
    home, bin_folder = tmp_path / "home", tmp_path / "bin"
    settings = {
        "pipx": {"PIPX_HOME": home, "PIPX_BIN_DIR": bin_folder, "PIPX_MAN_DIR": tmp_path / "man"},
        "uv": {"UV_TOOL_DIR": home, "UV_TOOL_BIN_DIR": bin_folder},
    }[tool]
    install = ["install"] if tool == "pipx" else ["tool", "install"]
    subprocess.run(
        [program(tool), *install, "--python", sys.executable, wheel],
        env={**WITHOUT_THEM, **{name: str(value) for name, value in settings.items()}},
        check=True,
        timeout=600,
    )
    assert run(foreign, bin_folder / "sk", "--version").startswith("sk, version ")
    assert "--safekeepers" in run(foreign, bin_folder / "sk", "attach", "--help")
    if tool == "pipx":
        assert (tmp_path / "man/man1/sk-attach.1").exists()


def test_the_compiled_modules_are_of_these_sources() -> None:
    """In an editable installation the compiled files are in the tree. Stale ones would hide a
    change from the tests. `make` compiles them again, also after a change of the build."""
    builder = (ROOT / "hatch_build.py").stat().st_mtime
    for name in COMPILED:
        (library,) = ROOT.glob(f"{name}.*.so")
        module = "quorum_wal." + name.removesuffix("_compiled").replace("/", ".")
        assert how_it_runs(module) == "compiled"
        assert library.stat().st_mtime >= builder, f"{library.name} is older: run make"
