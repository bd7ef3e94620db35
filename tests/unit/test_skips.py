"""A missing part is said once, with the number of tests that lack it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

TESTS = """
import pytest

@pytest.mark.parametrize("number", range(30))
def test_one(number):
    pytest.skip("no Java found")

@pytest.mark.skipif(True, reason="no engine runs")
def test_other():
    pass
"""


def run(tests: Path, **environment: str) -> str:
    command = [sys.executable, "-m", "pytest", "-c", str(ROOT / "pyproject.toml"), "-q"]
    command += ["-p", "tests.conftest", "-p", "no:cacheprovider", str(tests)]
    before = {key: text for key, text in os.environ.items() if key != "SK_REQUIRE_ALL"}
    done = subprocess.run(
        command, cwd=ROOT, env={**before, **environment}, capture_output=True, text=True
    )
    return done.stdout


def test_a_skip_is_one_line_for_each_missing_part(tmp_path: Path) -> None:
    tests = tmp_path / "test_parts.py"
    tests.write_text(TESTS)
    lines = run(tests).splitlines()
    assert [line for line in lines if "no Java found" in line] == ["   30  no Java found"]
    assert [line for line in lines if "no engine runs" in line] == ["    1  no engine runs"]
    assert "31 skipped" in lines[-1]


def test_where_nothing_may_be_missing_each_is_a_failure(tmp_path: Path) -> None:
    tests = tmp_path / "test_parts.py"
    tests.write_text(TESTS)
    assert "30 failed, 1 error" in run(tests, SK_REQUIRE_ALL="1").splitlines()[-1]
