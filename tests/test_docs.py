"""The docs are correct: what they name exists, and what exists is named."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import pytest

from quorum_wal.generations import metrics as generations
from quorum_wal.safekeeper import metrics as keeper
from quorum_wal.walproposer import metrics as proposer

ROOT = Path(__file__).parent.parent

_STEP = re.compile(r"`((?:[a-z_]+/)+[a-z_]+\.py)` `([A-Za-z_.]+)`")
_ROW = re.compile(r"^\| .*\|$", re.MULTILINE)
_FILE = re.compile(r"`((?:[a-z_]+/)*[a-z_]+\.py)`")


def symbols_of(path: Path) -> set[str]:
    """Top-level functions and classes, and `Class.method`."""
    found = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{m.name}" for m in node.body if isinstance(m, ast.FunctionDef)}
    return found


JOURNEY_TEXT = (ROOT / "docs/journey.md").read_text()
JOURNEY = _STEP.findall(JOURNEY_TEXT)
#: The modules that a byte crosses from the primary to the disks, and its answer back, on either
#: path.
PATH_OF_A_COMMIT = {
    *(f"pgwire/{name}.py" for name in ("copy_calls", "copy_stream", "framing", "transport")),
    *(f"storage/{name}.py" for name in ("big_endian", "durable")),
    *(f"safekeeper/{name}.py" for name in ("receive_wal", "steady_path", "timeline", "acceptor")),
    *(f"safekeeper/{name}.py" for name in ("wal_store", "checked_wal", "block_sums")),
    *(f"walproposer/stream/{name}.py" for name in ("incarnation", "event_loop", "proposer")),
    *(f"walproposer/stream/{name}.py" for name in ("leader", "steady_leader", "steady_loop")),
    *(f"walproposer/stream/{name}.py" for name in ("upstream", "plain_copy", "copy_connection")),
    *(f"walproposer/stream/{name}.py" for name in ("peer_connections", "wal_window")),
    *("consensus/codec.py", "consensus/quorum.py", "pgwal/boundary.py"),
}
PACKAGES = sorted(path.parent.name for path in ROOT.glob("*/__init__.py"))


@pytest.mark.parametrize(("file", "symbol"), JOURNEY)
def test_the_journey_names_what_exists(file: str, symbol: str) -> None:
    assert symbol in symbols_of(ROOT / file)


def test_each_step_of_the_journey_names_where() -> None:
    rows = [row for row in _ROW.findall(JOURNEY_TEXT) if "| where |" not in row]
    steps = [row for row in rows if not set(row) <= set("|- ") and "| Postgres |" not in row]
    assert len(steps) >= 15
    assert [row for row in steps if not _STEP.search(row)] == []


def test_the_journey_passes_each_module_of_the_path_of_a_commit() -> None:
    """The modules that every byte crosses."""
    files = {file for file, _ in JOURNEY}
    assert sorted(PATH_OF_A_COMMIT - files) == []


@pytest.mark.parametrize("package", PACKAGES)
def test_a_module_names_files_that_exist(package: str) -> None:
    folders = [ROOT / each for each in (*PACKAGES, "tests")]
    found = [path for folder in folders for path in folder.rglob("*.py")]
    ends = {f"/{path.relative_to(ROOT)}" for path in (*found, *ROOT.glob("*.py"))}
    for path in (ROOT / package).rglob("*.py"):
        for name in _FILE.findall(path.read_text()):
            is_there = any(end.endswith(f"/{name}") for end in ends)
            assert is_there, f"{path.relative_to(ROOT)} names {name}"


def test_every_metric_is_documented() -> None:
    ours = (
        *(proposer.GAUGES, proposer.STATE_GAUGES),
        proposer.PROTECTION,
        proposer.COUNTERS,
        proposer.SAFEKEEPER_GAUGES,
        *(proposer.QSYNC_GAUGES, proposer.QSYNC_COUNTERS, [proposer.QSYNC_OWNER]),
    )
    theirs = (
        *(keeper.TIMELINE_GAUGES, keeper.PROCESS_GAUGES, keeper.ROLE_GAUGES),
        keeper.STATE_GAUGES,
        *(keeper.COUNTERS, keeper.HISTOGRAMS),
    )
    numbers = (generations.GAUGES, generations.COUNTERS)
    names = {name for table in (*ours, *theirs, *numbers) for name in table}
    operations = (ROOT / "docs/operations.md").read_text()
    assert not sorted(name for name in names if f"`{name}`" not in operations)


_DEPENDENCY = re.compile(r"^\| `([a-z0-9-]+)` \| ([^|]+) \| ([^|]{5,}) \|$", re.MULTILINE)
_REQUIREMENT = re.compile(r"[A-Za-z0-9-]+")


def test_each_dependency_has_a_reason() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    project = settings["project"]
    lists = (
        settings["build-system"]["requires"],
        project["dependencies"],
        *project["optional-dependencies"].values(),
    )
    required = {
        name for names in lists for each in names for name in _REQUIREMENT.findall(each)[:1]
    }
    section = (ROOT / "ARCHITECTURE.md").read_text().partition("## Dependencies")[2]
    named = [name for name, _, _ in _DEPENDENCY.findall(section.partition("\n## ")[0])]
    assert sorted(named) == sorted(required)


def test_a_build_without_a_network_has_what_a_build_requires() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    quoted = " ".join(f"'{each}'" for each in settings["build-system"]["requires"])
    text = (ROOT / "docs/containers.md").read_text()
    assert f"    pip download --dest wheels {quoted} .\n" in text
