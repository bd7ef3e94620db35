"""The dashboard: written by its generator, read by Grafana's own types, of metrics that exist."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from exposed_metrics import exposed, named_in
from grafana_foundation_sdk.cog import plugins
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import prometheus, stat, timeseries, units
from grafana_foundation_sdk.models.dashboard import Dashboard, RowPanel
from prometheus_server import ROOT, promtool, without_variables

from monitoring.dashboard import DATASOURCE, PAGE_COLUMNS, dashboard, text

PAGE = dashboard()
PANELS = [panel for panel in PAGE["panels"] if panel["type"] != "row"]
TARGETS = [target for panel in PANELS for target in panel["targets"]]


def test_the_file_is_what_the_generator_writes() -> None:
    """Else: python -m monitoring.dashboard > monitoring/dashboard.json."""
    assert (ROOT / "monitoring/dashboard.json").read_text() == text()


# ---- the form


def test_grafanas_types_know_every_field() -> None:
    """They come from the schemas of Grafana 11.6. They lose a field that they do not know."""
    plugins.register_default_plugins()
    read = Dashboard.from_json(PAGE)
    assert list(lost(PAGE, json.loads(JSONEncoder().encode(read)))) == []
    options = {"stat": stat.Options, "timeseries": timeseries.Options}
    for panel in read.panels or []:
        if isinstance(panel, RowPanel):
            continue
        assert type(panel.options) is options[panel.type_val]
        assert all(type(target) is prometheus.Dataquery for target in panel.targets or [])


def lost(before: Any, after: Any, path: str = "") -> Iterator[str]:
    """What is in `before` and differs in `after`, which may also have defaults."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key, value in before.items():
            yield from lost(value, after.get(key), f"{path}/{key}")
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for number, (one, other) in enumerate(zip(before, after, strict=True)):
            yield from lost(one, other, f"{path}/{number}")
    elif before != after:
        yield f"{path}: {before!r} became {after!r}"


def test_each_unit_is_one_of_grafanas() -> None:
    known = {value for value in vars(units).values() if isinstance(value, str)}
    assert {panel["fieldConfig"]["defaults"]["unit"] for panel in PANELS} <= known


def test_ids_are_unique_and_panels_do_not_overlap() -> None:
    ids = [panel["id"] for panel in PAGE["panels"]]
    assert len(ids) == len(set(ids))
    places = [panel["gridPos"] for panel in PAGE["panels"]]
    for place in places:
        assert place["x"] >= 0
        assert place["x"] + place["w"] <= PAGE_COLUMNS
    for one, other in itertools.combinations(places, 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        above = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert beside or above, f"{one} overlaps {other}"


def test_each_query_has_a_name_and_the_data_source_of_the_variable() -> None:
    names = {variable["name"] for variable in PAGE["templating"]["list"]}
    assert names == {"datasource", "proposer", "timeline"}
    for panel in PANELS:
        refs = [target["refId"] for target in panel["targets"]]
        assert refs
        assert len(refs) == len(set(refs))
        assert panel["description"].endswith(".")
        assert panel["datasource"] == DATASOURCE
    assert all(target["datasource"] == DATASOURCE for target in TARGETS)
    used = set(re.findall(r"\$(?!_)(\w+)", " ".join(t["expr"] for t in TARGETS)))
    assert used == names - {"datasource"}


# ---- the queries


def test_promtool_parses_each_query(tmp_path: Path) -> None:
    """As rules that record it."""
    rules = [
        {"record": f"panel:{number}", "expr": without_variables(target["expr"])}
        for number, target in enumerate(TARGETS)
    ]
    page = {"groups": [{"name": "dashboard", "rules": rules}]}
    (tmp_path / "rules.yml").write_text(yaml.safe_dump(page))
    promtool("check", "rules", tmp_path / "rules.yml")


def test_queries_name_only_metrics_that_exist_and_all_that_matter() -> None:
    shown = set().union(*(named_in(target["expr"]) for target in TARGETS))
    metrics = exposed()
    assert sorted(shown - metrics) == []
    parts = {name for name in metrics if name.endswith(("_sum", "_count"))}
    assert sorted(metrics - shown - parts - NOT_SHOWN) == []


#: Counts of what another panel shows as bytes, or by role.
NOT_SHOWN = {
    "sk_connections",
    "sk_connections_refused_total",
    "sk_scrub_passes_total",
    "sk_pageserver_base_pages_read_total",
    "sk_pageserver_checked_pages_total",
    "sk_pageserver_epochs_total",
    "sk_pageserver_merge_seconds_total",
    "sk_pageserver_merges_total",
    "sk_pageserver_replay_seconds_total",
    "sk_pageserver_replayed_pages_total",
}
