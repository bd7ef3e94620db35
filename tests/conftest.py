"""What all rings share: the marker a folder sets, and that nothing is skipped unnoticed."""

from __future__ import annotations

import os
from collections.abc import Generator
from pathlib import Path

import pytest

TESTS = Path(__file__).parent


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite", action="store_true", help="write the golden scripts anew")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Each test carries the marker of its ring: the first folder below tests/."""
    for item in items:
        folders = item.path.relative_to(TESTS).parts[:-1] if TESTS in item.path.parents else ()
        if folders:
            item.add_marker(folders[0])


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
