"""What all rings share: the marker a folder sets, and that nothing is skipped unnoticed."""

from __future__ import annotations

import os
from collections.abc import Generator
from pathlib import Path

import pytest

TESTS = Path(__file__).parent

#: rings whose fixtures take minutes to make: an engine and its images, logs of servers, a JVM
TOGETHER = (("containers",), ("contract",), ("spark",))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite", action="store_true", help="write the golden scripts anew")


def pytest_itemcollected(item: pytest.Item) -> None:
    """Each test carries the marker of its ring, the first folder below tests/, and runs in the same
    process as those that share its fixtures."""
    folders = item.path.relative_to(TESTS).parts[:-1] if TESTS in item.path.parents else ()
    if folders:
        item.add_marker(folders[0])
    shares = "/".join(folders) if folders[:1] in TOGETHER else str(item.path)
    item.add_marker(pytest.mark.xdist_group(shares))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest runs of tests in one process first, so that the others end with them."""
    items.sort(key=lambda item: not any(item.get_closest_marker(ring) for (ring,) in TOGETHER))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """With SK_REQUIRE_ALL=1, as CI sets it, a missing part fails the test that needs it."""
    report = yield
    if report.skipped and os.environ.get("SK_REQUIRE_ALL") == "1":
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid} was skipped, and SK_REQUIRE_ALL=1: {reason}"
    return report
