"""Every metric with an "alert when" has an alert, or a reason why it has none."""

from __future__ import annotations

import re

from exposed_metrics import exposed, named_in
from prometheus_server import ROOT, rules_by_name

from quorum_wal.cluster.verdict import Condition

RULES = rules_by_name()
ALERTED = set().union(*(named_in(rule["expr"]) for rule in RULES.values()))
METRICS = exposed()
_ROW = re.compile(r"^\|([^|]+)\|([^|]+)\|([^|]*)\|$", re.MULTILINE)


def rows_below(page: str, heading: str) -> list[tuple[str, str, str]]:
    """The rows of the table of three columns there, without its head."""
    text = (ROOT / page).read_text().partition(f"\n{heading}\n")[2].partition("\n## ")[0]
    rows: list[tuple[str, str, str]] = _ROW.findall(text)
    return rows[2:]


def names_in(cell: str) -> set[str]:
    """The names, as Prometheus has them."""
    found = set()
    for name in re.findall(r"`(sk_[a-z_]+)`", cell):
        spellings = {name, f"{name}_total", f"{name}_bucket"} & METRICS
        assert spellings, f"{name} does not exist"
        found |= spellings
    return found


def watched() -> set[str]:
    """The metrics with an "alert when"."""
    rows = rows_below("docs/operations.md", "## What to watch")
    assert len(rows) > 80
    return set().union(*(names_in(metric) for metric, _, when in rows if when.strip()))


def without_alert() -> set[str]:
    """The metrics that docs/monitoring.md excuses."""
    rows = rows_below("docs/monitoring.md", "## Metrics without an alert of their own")
    assert all(reason.strip() for _, reason, _ in rows)
    return set().union(*(names_in(metric) for metric, _, _ in rows))


def test_each_metric_to_watch_has_an_alert_or_a_reason_why_not() -> None:
    assert sorted(watched() - ALERTED - without_alert()) == []
    assert sorted(without_alert() & ALERTED) == [], "these have an alert now"
    assert sorted(without_alert() - watched()) == [], "these need none"


def test_the_table_has_every_metric_and_no_other() -> None:
    rows = rows_below("docs/operations.md", "## What to watch")
    listed = set().union(*(names_in(metric) for metric, _, _ in rows))
    parts = {name for name in METRICS if name.endswith(("_sum", "_count"))}
    assert sorted(METRICS - parts - listed) == []


def test_alerts_name_only_metrics_that_exist() -> None:
    assert sorted(ALERTED - METRICS) == []


def test_the_table_of_alerts_is_that_of_the_rules() -> None:
    """docs/monitoring.md lists them, with their severity."""
    rows = rows_below("docs/monitoring.md", "## The alerts")
    severities = {name: rule["labels"]["severity"] for name, rule in RULES.items()}
    assert {name.strip(" `"): severity.strip() for name, severity, _ in rows} == severities


def test_each_verdict_has_an_alert_or_a_reason_why_not() -> None:
    text = (ROOT / "docs/monitoring.md").read_text().partition("## Verdicts and alerts\n")[2]
    rows = dict(re.findall(r"^\| ([A-Z ]+) \| ([^|]+) \|$", text, re.MULTILINE))
    assert rows.keys() == {condition.value for condition in Condition}
    for verdict, alerts in rows.items():
        named = set(re.findall(r"`(Sk\w+)`", alerts))
        assert named <= RULES.keys(), verdict
        assert named or verdict == "OK", verdict
