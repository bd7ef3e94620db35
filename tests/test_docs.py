"""The docs tell the truth: what they name exists, and what exists is named."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from safekeeper import metrics as keeper
from walproposer import metrics as proposer

ROOT = Path(__file__).parent.parent

_STEP = re.compile(r"`([a-z_]+/[a-z_]+\.py)` `([A-Za-z_.]+)`")


def symbols_of(path: Path) -> set[str]:
    """Top-level functions and classes, and `Class.method`."""
    found = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{m.name}" for m in node.body if isinstance(m, ast.FunctionDef)}
    return found


JOURNEY = _STEP.findall((ROOT / "docs/journey.md").read_text())


@pytest.mark.parametrize(("file", "symbol"), JOURNEY)
def test_the_journey_names_what_exists(file: str, symbol: str) -> None:
    assert symbol in symbols_of(ROOT / file)


def test_the_journey_is_whole() -> None:
    assert len(JOURNEY) >= 15


def test_every_metric_is_documented() -> None:
    ours = (
        proposer.GAUGES,
        proposer.PROTECTION,
        proposer.COUNTERS,
        proposer.SAFEKEEPER_GAUGES,
    )
    theirs = (
        *(keeper.TIMELINE_GAUGES, keeper.PROCESS_GAUGES, keeper.ROLE_GAUGES),
        *(keeper.COUNTERS, keeper.HISTOGRAMS),
    )
    names = {name for table in (*ours, *theirs) for name in table}
    operations = (ROOT / "docs/operations.md").read_text()
    assert not sorted(name for name in names if f"`{name}`" not in operations)
