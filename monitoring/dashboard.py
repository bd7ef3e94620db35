"""`python -m monitoring.dashboard > monitoring/dashboard.json`: the dashboard for Grafana.

The panels are in `log_panels.py` and `service_panels.py`. This module writes them in the format
that Grafana 10 expects, schema version 38. Each line has three panels.
"""

from __future__ import annotations

import itertools
import json
import string
import sys
from collections.abc import Iterator
from typing import Any

from monitoring.log_panels import LOG_ROWS
from monitoring.panel import Kind, Panel, Query, Row
from monitoring.service_panels import SERVICE_ROWS

SCHEMA_VERSION = 38
PAGE_COLUMNS = 24
PANEL_COLUMNS = 8
PANEL_HEIGHT = 7
ROW_HEIGHT = 1
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}

Json = dict[str, Any]


def dashboard() -> Json:
    """The dashboard in the format of Grafana's export."""
    return {
        "uid": "quorum-wal",
        "title": "Quorum WAL",
        "description": "Commits, proposers, safekeepers, archive and pageservers.",
        "tags": ["postgres", "quorum-wal"],
        "schemaVersion": SCHEMA_VERSION,
        "version": 1,
        "editable": True,
        "timezone": "browser",
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "graphTooltip": 1,
        "templating": {"list": [_datasource_variable(), *_label_variables()]},
        "annotations": {"list": []},
        "links": [],
        "panels": list(_panels()),
    }


# ---- variables


def _datasource_variable() -> Json:
    return {
        "type": "datasource",
        "name": "datasource",
        "label": "Data source",
        "query": "prometheus",
        "hide": 0,
        "refresh": 1,
        "multi": False,
        "includeAll": False,
        "current": {},
        "options": [],
        "regex": "",
    }


def _label_variables() -> Iterator[Json]:
    yield _label_variable("proposer", "Proposer", "label_values(sk_proposer_state, instance)")
    yield _label_variable("timeline", "Timeline", "label_values(sk_timeline_term, timeline_id)")


def _label_variable(name: str, label: str, query: str) -> Json:
    """A variable with any number of values of a label; initially all of them."""
    return {
        "type": "query",
        "name": name,
        "label": label,
        "datasource": DATASOURCE,
        "query": {"query": query, "refId": name},
        "hide": 0,
        "refresh": 2,  # when the time range changes
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
        "options": [],
        "regex": "",
    }


# ---- panels


def _panels() -> Iterator[Json]:
    """The rows from top to bottom, and the panels of each row from left to right."""
    ids = itertools.count(1)
    top = 0
    for row in (*LOG_ROWS, *SERVICE_ROWS):
        yield _row(row, next(ids), top)
        top += ROW_HEIGHT
        left = 0
        for panel in row.panels:
            if left == PAGE_COLUMNS:
                top, left = top + PANEL_HEIGHT, 0
            yield _panel(panel, next(ids), _position(left, top, PANEL_COLUMNS, PANEL_HEIGHT))
            left += PANEL_COLUMNS
        top += PANEL_HEIGHT


def _position(left: int, top: int, width: int, height: int) -> Json:
    return {"x": left, "y": top, "w": width, "h": height}


def _row(row: Row, number: int, top: int) -> Json:
    return {
        "id": number,
        "type": "row",
        "title": row.title,
        "collapsed": False,
        "gridPos": _position(0, top, PAGE_COLUMNS, ROW_HEIGHT),
        "panels": [],
    }


def _panel(panel: Panel, number: int, position: Json) -> Json:
    return {
        "id": number,
        "type": panel.kind.value,
        "title": panel.title,
        "description": panel.description,
        "datasource": DATASOURCE,
        "gridPos": position,
        "targets": list(map(_target, string.ascii_uppercase, panel.queries)),
        "fieldConfig": {"defaults": _defaults(panel), "overrides": []},
        "options": _options(panel),
    }


def _target(ref_id: str, query: Query) -> Json:
    return {
        "refId": ref_id,
        "datasource": DATASOURCE,
        "expr": query.expr,
        "legendFormat": query.legend,
        "editorMode": "code",
        "range": True,
    }


def _defaults(panel: Panel) -> Json:
    defaults: Json = {"unit": panel.unit.value}
    if panel.texts is not None:
        bad, good = panel.texts
        options = {
            "0": {"index": 0, "text": bad, "color": "red"},
            "1": {"index": 1, "text": good, "color": "green"},
        }
        defaults["mappings"] = [{"type": "value", "options": options}]
    elif panel.kind is Kind.GRAPH:
        defaults["min"] = 0
    return defaults


def _options(panel: Panel) -> Json:
    if panel.kind is Kind.NUMBER:
        return {
            "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
            "colorMode": "background" if panel.texts else "value",
            "graphMode": "none",
            "justifyMode": "auto",
            "orientation": "auto",
            "textMode": "auto",
        }
    return {
        "legend": {
            "showLegend": True,
            "displayMode": "list",
            "placement": "bottom",
            "calcs": [],
        },
        "tooltip": {"mode": "multi", "sort": "desc"},
    }


def text() -> str:
    """The contents of the file."""
    return json.dumps(dashboard(), indent=2) + "\n"


if __name__ == "__main__":
    sys.stdout.write(text())
