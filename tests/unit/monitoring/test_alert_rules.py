"""The alert rules, run by promtool over series: each alert fires when it must, and none when all
is well."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from alert_cases import QUICK_CASES, SLOW_CASES, WELL, Case, Changes
from prometheus_server import ROOT, RULES, promtool, rules_by_name

FIRING = 'count by (alertname) (ALERTS{alertstate="firing"})'


ALERTS = rules_by_name()


# ---- the cases as promtool reads them


def notation(value: str, step_minutes: int, minutes: int) -> str:
    """A sequence of promtool: "5+2" is 5, and 2 more each minute."""
    if "x" in value:
        return value
    found = re.fullmatch(r"([0-9.]+)(?:([+-])([0-9.]+))?", value)
    assert found, value
    start, sign, step = found[1], found[2] or "+", float(found[3] or 0) * step_minutes
    return f"{start}{sign}{step:g}x{minutes // step_minutes + 1}"


def input_series(changes: Changes, step_minutes: int, minutes: int) -> list[dict[str, str]]:
    assert changes.keys() <= WELL.keys(), changes.keys() - WELL.keys()
    return [
        {"series": name, "values": notation(value, step_minutes, minutes)}
        for name, value in {**WELL, **changes}.items()
        if value is not None
    ]


def minutes_of(duration: str) -> float:
    number, unit = re.fullmatch(r"(\d+)([smhd])", duration).groups()  # type: ignore[union-attr]
    return int(number) * {"s": 1 / 60, "m": 1, "h": 60, "d": 1440}[unit]


def firing(at_minutes: int, names: Iterable[str]) -> dict[str, Any]:
    samples = [{"labels": f'{{alertname="{name}"}}', "value": 1} for name in sorted(names)]
    return {"expr": FIRING, "eval_time": f"{at_minutes}m", "exp_samples": samples}


def rendered(text: str, case: Case) -> str:
    """An annotation as Prometheus has to print it."""
    text = re.sub(r"\{\{ \$labels\.(\w+) \}\}", lambda found: case.labels[found[1]], text)
    if "$value" in text:
        assert case.value, f"{case.alert} prints a value"
    return re.sub(r"\{\{ \$value[^}]*\}\}", case.value, text)


def batches(cases: Iterable[Case]) -> list[list[Case]]:
    """Cases that do not touch each other's series, to be run in one world: promtool takes a third
    of a second for each world. A case that changes the proposer's state is alone, since other
    rules depend on it."""
    found: list[list[Case]] = []
    for case in cases:
        is_alone = any("sk_proposer_state" in name for name in case.changes)
        fitting = [batch for batch in found if not is_alone and fits(case, batch)]
        if fitting:
            fitting[0].append(case)
        else:
            found.append([case])
    return found


def fits(case: Case, batch: list[Case]) -> bool:
    return all(
        case.alert != other.alert
        and not case.changes.keys() & other.changes.keys()
        and not any("sk_proposer_state" in name for name in other.changes)
        for other in batch
    )


def alert_tests(case: Case) -> list[dict[str, Any]]:
    """It fires, with these labels and texts; and it does not before its time."""
    rule = ALERTS[case.alert]
    expected = {
        "exp_labels": {**case.labels, **rule["labels"]},
        "exp_annotations": {k: rendered(v, case) for k, v in rule["annotations"].items()},
    }
    found = [(case.minutes, [expected])]
    early_minutes = int(minutes_of(rule.get("for", "0s"))) - 1
    if early_minutes >= 0:
        found.append((early_minutes, []))
    return [
        {"alertname": case.alert, "eval_time": f"{minutes}m", "exp_alerts": alerts}
        for minutes, alerts in found
    ]


def unit_test(batch: list[Case], step_minutes: int) -> dict[str, Any]:
    """At its end the alerts of the batch fire, and no other."""
    minutes = max(case.minutes for case in batch)
    changes = {name: value for case in batch for name, value in case.changes.items()}
    return {
        "interval": f"{step_minutes}m",
        "input_series": input_series(changes, step_minutes, minutes),
        "promql_expr_test": [firing(minutes, [case.alert for case in batch])],
        "alert_rule_test": [test for case in batch for test in alert_tests(case)],
    }


def well_test(step_minutes: int, minutes: int) -> dict[str, Any]:
    return {
        "interval": f"{step_minutes}m",
        "input_series": input_series({}, step_minutes, minutes),
        "promql_expr_test": [firing(minutes, ()), firing(minutes // 2, ())],
    }


@pytest.mark.parametrize(
    ("cases", "step_minutes", "evaluation_interval", "well_minutes"),
    [(QUICK_CASES, 1, "1m", 120), (SLOW_CASES, 5, "20m", 60 * 60)],
    ids=["quick", "slow"],
)
def test_each_alert_fires_and_none_when_all_is_well(
    cases: tuple[Case, ...],
    step_minutes: int,
    evaluation_interval: str,
    well_minutes: int,
    tmp_path: Path,
) -> None:
    tests = [unit_test(batch, step_minutes) for batch in batches(cases)]
    page = {
        "rule_files": [str(RULES)],
        "evaluation_interval": evaluation_interval,
        "tests": [well_test(step_minutes, well_minutes), *tests],
    }
    (tmp_path / "tests.yml").write_text(yaml.safe_dump(page))
    promtool("test", "rules", tmp_path / "tests.yml")


def test_each_alert_has_a_case() -> None:
    assert {case.alert for case in (*QUICK_CASES, *SLOW_CASES)} == ALERTS.keys()


# ---- the form of the rules


def test_promtool_accepts_the_rules_and_the_example_of_a_configuration() -> None:
    promtool("check", "rules", "--lint=all", "--lint-fatal", RULES)
    promtool("check", "config", ROOT / "monitoring/prometheus.yml")


@pytest.mark.parametrize("name", ALERTS)
def test_an_alert_says_how_urgent_it_is_and_where_to_read_on(name: str) -> None:
    rule: Mapping[str, Any] = ALERTS[name]
    assert rule["labels"].keys() == {"severity"}
    assert rule["labels"]["severity"] in ("page", "ticket")
    annotations = rule["annotations"]
    assert annotations.keys() == {"summary", "description", "runbook_url"}
    assert annotations["runbook_url"] == f"docs/runbook.md#{name.lower()}"
    for text in (annotations["summary"], annotations["description"]):
        assert text.endswith("."), text
