"""Style rules that a program can check: sizes, docstrings, names, leftovers, and correct docs."""

from __future__ import annotations

import ast
import re
import subprocess
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

LINE_COLUMNS_MAX = 100
FUNCTION_LINES_MAX = 70
FILE_LINES_MAX = 500

# Names without a meaning.
BANNED_NAMES = {"utils", "util", "common", "manager", "helper", "helpers", "misc"}
BANNED_WORDS = re.compile(r"\b(FIX" + r"ME|TO" + r"DO|XX" + r"X)\b")


def tracked(*suffixes: str) -> list[Path]:
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    files = [ROOT / name for name in listing.stdout.splitlines()]
    return [f for f in files if f.suffix in suffixes and f.exists()]


PYTHON = tracked(".py")


#: Pauses that are the subject of the test, and not a wait for something without a condition.
PAUSES = {
    "tests/contract/objectstore/faulty_store.py": "a store that answers late",
    "tests/integration/qsync_client/test_qsync_cancellations.py": "the moment of a cancellation",
    "tests/integration/qsync_client/test_qsync_faults.py": "the age of an admission",
    "tests/integration/test_pg_fixtures_faults.py": "messages that are sent one after another",
    "tests/integration/test_primary_lifecycle.py": "the moment of a crash",
    "tests/integration/test_process_faults.py": "the length of a fault",
    "tests/interpreter_probe.py": "a clock that ticks beside what is measured",
    "tests/soak/members_run.py": "the time between two looks at a process of minutes",
    "tests/spark/test_ingest.py": "the moment of a kill",
    "tests/unit/test_interpreter_probe.py": "a call that waits",
}

#: Files of tests that may use private members, and why.
INSIDES = {
    "tests/containers/container_network.py": "testcontainers has no public way",
    "tests/integration/broken_promotion.py": "plants bugs",
    "tests/simulation/core_copies.py": "copies cores",
    "tests/soak/qsync_plants.py": "plants bugs",
    "tests/spark/test_object_store.py": "pyspark has no public way",
    "tests/spark/test_pg_wal_batch.py": "pyspark has no public way",
}

#: The packages of the installation.
OURS = tuple(link.name for link in (ROOT / "quorum_wal").iterdir() if link.is_symlink())


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


#: In these modules one thread decodes.
ONE_THREAD = ("benchmarks/", "spark/", "tests/", "safekeeper/data_directory.py")
#: Decodes types of reported_types.py, which prepares them.
PREPARED_ELSEWHERE = ("walproposer/timelines/status_page.py",)
_DECODES_A_TYPE = re.compile(r"\bdecode\([^)]*\btype=(?!dict|list)|msgspec\.convert\(")


def test_types_that_threads_decode_are_prepared() -> None:
    """msgspec prepares a type at its first use. Two threads that do so at once crash the process
    (msgspec 0.22); a decoder that the import makes has prepared it."""
    texts = {name_of(path): path.read_text() for path in PYTHON}
    unprepared = [
        name
        for name, text in texts.items()
        if _DECODES_A_TYPE.search(text) and not name.startswith(ONE_THREAD + PREPARED_ELSEWHERE)
        if not re.search(r"^_PREPARED = ", text, re.MULTILINE)
    ]
    assert unprepared == []


@pytest.mark.parametrize("path", PYTHON, ids=name_of)
def test_style_of_a_file(path: Path) -> None:
    name, text = name_of(path), path.read_text()
    lines, tree = text.splitlines(), ast.parse(text)
    problems = [*line_problems(lines), *size_problems(lines, tree)]
    if lines and not ast.get_docstring(tree):
        problems.append("no module docstring")
    if path.stem in BANNED_NAMES:
        problems.append("a name that says nothing")
    nodes = list(ast.walk(tree))
    problems += swallowed_exceptions(nodes, lines)
    problems += imports_by_another_name(nodes)
    if name.startswith("tests/"):
        problems += wrong_pauses(nodes, name)
    if name.startswith("tests/") and name not in INSIDES and not path.stem.startswith("bugs_of_"):
        problems += private_uses(nodes)
    assert not problems, f"{name}: " + "\n".join(problems)


def line_problems(lines: list[str]) -> Iterator[str]:
    for number, line in enumerate(lines, 1):
        if len(line) > LINE_COLUMNS_MAX:
            yield f"line {number}: {len(line)} columns"
        if found := BANNED_WORDS.search(line):
            yield f"line {number}: {found[0]}"


def size_problems(lines: list[str], tree: ast.Module) -> Iterator[str]:
    if len(lines) > FILE_LINES_MAX:
        yield f"{len(lines)} lines"
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            size = (node.end_lineno or 0) - node.lineno + 1
            if size > FUNCTION_LINES_MAX:
                yield f"line {node.lineno}: {node.name} has {size} lines"


def swallowed_exceptions(nodes: list[ast.AST], lines: list[str]) -> Iterator[str]:
    """An empty handler needs a reason beside it."""
    for node in nodes:
        match node:
            case ast.ExceptHandler(body=[ast.Pass(lineno=number)]) if "#" not in lines[number - 1]:
                yield f"line {number}: an exception is swallowed without a reason"


def imports_by_another_name(nodes: list[ast.AST]) -> Iterator[str]:
    """Users import from `quorum_wal`; by any other name a module would be loaded twice."""
    for node in nodes:
        if isinstance(node, ast.Import):
            imported = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            imported = [node.module]
        else:
            continue
        for module in imported:
            if module.split(".")[0] in OURS:
                yield f"line {node.lineno}: import {module} below quorum_wal"


def wrong_pauses(nodes: list[ast.AST], name: str) -> Iterator[str]:
    """Each of PAUSES has one pause; any other wait has a condition and a deadline (wait_until)."""
    found = sum(
        isinstance(node, ast.Call) and ast.unparse(node.func) in ("time.sleep", "asyncio.sleep")
        for node in nodes
    )
    if found != (name in PAUSES):
        yield f"{found} calls of sleep, expected {int(name in PAUSES)}: wait for a condition"


_PRIVATE = re.compile("_[a-z]")


def private_uses(nodes: list[ast.AST]) -> Iterator[str]:
    """Bugs are planted inside (bugs_of_*); everything else uses public interfaces. Names with one
    underscore: those of others than `self`, and imports."""
    for node in nodes:
        if isinstance(node, ast.Attribute) and _PRIVATE.match(node.attr):
            owner = ast.unparse(node.value)
            if owner not in ("self", "cls", "super()", "os", "other"):
                yield f"line {node.lineno}: {owner}.{node.attr} is private"
        elif isinstance(node, ast.ImportFrom):
            names = [each.name for each in node.names if _PRIVATE.match(each.name)]
            yield from (f"line {node.lineno}: {name} is private" for name in names)


def test_the_exceptions_of_these_rules_exist() -> None:
    gone = [name for name in (*PAUSES, *INSIDES) if not (ROOT / name).exists()]
    assert gone == []


def test_no_two_files_of_tests_have_one_name() -> None:
    """Folders of tests are no packages: pytest takes a second file with the same name for the
    first."""
    names = Counter(path.name for path in PYTHON if path.name.startswith("test_"))
    assert [name for name, count in names.items() if count > 1] == []


#: The cores, and the code that executes their actions: mypy reports a missing case as an error.
CLOSED = (*ROOT.glob("walproposer/stream/*.py"), ROOT / "safekeeper/acceptor.py")
CLOSED += (ROOT / "safekeeper/timeline.py",)


@pytest.mark.parametrize("path", CLOSED, ids=name_of)
def test_a_match_of_a_core_names_every_case(path: Path) -> None:
    """A wildcard may only assert that it is never reached; without one mypy demands every case."""
    problems = [
        f"{path}:{case.pattern.lineno}"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Match)
        for case in node.cases
        if is_wildcard(case) and "assert_never" not in ast.dump(case.body[0])
    ]
    assert not problems, "\n".join(problems)


def is_wildcard(case: ast.match_case) -> bool:
    return isinstance(case.pattern, ast.MatchAs) and case.pattern.pattern is None


def test_mypy_demands_every_case() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mypy"]
    assert settings["strict"]
    assert "exhaustive-match" in settings["enable_error_code"]


def test_links_in_docs_lead_somewhere() -> None:
    problems = []
    for page in tracked(".md"):
        for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
            if "://" not in target and not (page.parent / target).exists():
                problems.append(f"{name_of(page)}: {target}")
    assert not problems, "\n".join(problems)
