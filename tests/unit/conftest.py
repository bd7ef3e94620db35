"""Reproducible property tests: the same examples on every run, and no deadlines.

A failure prints the example and a `@reproduce_failure` blob. Search further, with other examples:
`pytest --hypothesis-profile=default --hypothesis-seed=N`.
"""

from __future__ import annotations

import pytest
from hypothesis import settings

settings.register_profile(
    "repeatable", derandomize=True, print_blob=True, deadline=None, database=None
)


def pytest_configure(config: pytest.Config) -> None:
    if not config.getoption("--hypothesis-profile", default=None):
        settings.load_profile("repeatable")
