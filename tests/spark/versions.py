"""Tries versions of Spark: `python -m tests.spark.versions 4.0.5 4.1.4`.

For each version it makes an environment with that pyspark, and otherwise the packages of this one;
runs some tests of the ring in it; and prints a row for each feature:

    feature                     4.0.5      4.1.4
    batch of pg_wal             works      works
    stream of pg_wal            refused    refused

`refused` means that the test ended with our error UnsupportedSpark, which is printed once. The
command exits with 1 if a feature fails in another way. It needs 0.5 GB of disk and some minutes for
each version, so it is not part of the suite.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).parents[2]
RING = Path(__file__).parent
#: the tests of each feature; all of them must pass
FEATURES: Mapping[str, tuple[str, ...]] = {
    "batch of pg_wal": ("test_pg_wal_batch.py::test_all_columns_of_all_records",),
    "filters of a query": ("test_pg_wal_batch.py::test_filters_of_spark",),
    "stream of pg_wal": (
        "test_pg_wal_stream.py::test_limited_batches_and_a_restart_where_the_folder_has_grown",
    ),
    "batch of pg_changes": (
        "test_pg_changes.py::test_batch",
        "test_pg_changes.py::test_typed_columns",
        "test_shown_by_spark.py::test_the_error_of_a_batch",
    ),
    "stream of pg_changes": (
        "test_pg_changes.py::test_stream_with_a_transaction_over_its_batches",
    ),
    "batches by Spark Connect": ("spark_connect.py::test_batches",),
    "streams by Spark Connect": ("spark_connect.py::test_streams",),
    "sk spark ingest": (
        "test_ingest.py::test_the_lake_has_every_record_once",
        "test_pg_changes_strict.py::test_a_lake",
    ),
    "sk spark mirror": (
        "test_mirror.py::test_random_changes_while_it_is_taken_and_later[logical-16]",
    ),
    "sk spark report": ("test_report.py::test_its_sums_are_those_of_the_records",),
    "sk spark replay-table": ("test_replay_table.py::test_the_table_at_a_moment",),
}
_REFUSED = re.compile(r"quorum_wal\.spark\.errors\.UnsupportedSpark: (streams .+|Spark .+)")
TIMEOUT = 1800.0  # seconds


class Result(Enum):
    WORKS = "works"
    REFUSED = "refused"
    FAILED = "failed"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("versions", nargs="+", metavar="VERSION")
    parser.add_argument("--dir", help="keeps the environments, for the next run")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="spark-versions-") as scratch:
        folder = Path(arguments.dir or scratch)
        results = {version: try_version(folder, version) for version in arguments.versions}
    width = max(map(len, FEATURES))
    print(" " * width, *(f"{version:10}" for version in results))
    for feature in FEATURES:
        row = (f"{found[feature].value:10}" for found in results.values())
        print(f"{feature:{width}}", *row)
    return any(Result.FAILED in found.values() for found in results.values())


def try_version(folder: Path, version: str) -> dict[str, Result]:
    """Runs the tests with this version."""
    python, report = environment(folder, version), folder / f"{version}.xml"
    tests = dict.fromkeys(test for tests in FEATURES.values() for test in tests)
    done = subprocess.run(
        [python, "-m", "pytest", "-q", "-p", "no:randomly", "-p", "no:cacheprovider",
         "-W", "ignore::pytest.PytestUnraisableExceptionWarning",  # of PySpark 4.0 itself
         f"--junit-xml={report}", *(RING / test for test in tests)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": str(python)},
        stdout=subprocess.PIPE,
        text=True,
        timeout=TIMEOUT,
    )  # fmt: skip
    found = results_of(report)
    results = {feature: combined(found, tests) for feature, tests in FEATURES.items()}
    for line in dict.fromkeys(_REFUSED.findall(done.stdout)):
        print(f"{version} refuses: {line}")
    if Result.FAILED in results.values():
        print(done.stdout)
    return results


def environment(folder: Path, version: str) -> Path:
    """The Python of an environment with this version. Other packages are those of this process."""
    home = folder / version
    python = home / "bin/python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", home], check=True)
        pip = [sys.executable, "-m", "pip", "--python", python, "install", "-q"]
        packages = (f"pyspark[connect]=={version}", "pandas<3")  # of a newer one PySpark warns
        subprocess.run([*pip, *packages], check=True, timeout=TIMEOUT)
    (packages,) = home.glob("lib/python*/site-packages")
    # Written after pip has run, which would otherwise find the pyspark of this process.
    (packages / "of_this_process.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


def results_of(report: Path) -> dict[str, list[Result]]:
    """By file and test, without parameters, as in FEATURES."""
    found: dict[str, list[Result]] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        problems = [*case.iter("failure"), *case.iter("error"), *case.iter("skipped")]
        text = "".join(f"{each.get('message')}{each.text}" for each in problems)
        result = Result.FAILED if problems else Result.WORKS
        if _REFUSED.search(text):
            result = Result.REFUSED
        file = case.get("classname", "").rpartition(".")[2] + ".py"
        name = case.get("name", "").partition("[")[0]
        found.setdefault(f"{file}::{name}", []).append(result)
    return found


def combined(found: Mapping[str, list[Result]], tests: tuple[str, ...]) -> Result:
    """The worst one. A test that did not run has failed. A test that was refused may also have
    failed to clean up."""
    results = []
    for test in tests:
        of_test = found.get(test.partition("[")[0], [Result.FAILED])
        results += [Result.REFUSED] if Result.REFUSED in of_test else of_test
    return max(results, key=list(Result).index)


if __name__ == "__main__":
    sys.exit(main())
