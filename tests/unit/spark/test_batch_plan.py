"""What is done to the tables of a mirror when their definitions change."""

from __future__ import annotations

from typing import Any

import pytest

from quorum_wal.spark.errors import MirrorError, OptionError
from quorum_wal.spark.mirror.batch_plan import FIRST, LAST, Event, plan_batch
from quorum_wal.spark.mirror.schema_change import ColumnSource, column_sources
from quorum_wal.spark.mirror.selection import Selection

ALL = Selection(("s.*",), ("s.tmp*",))


def definition(table: str, *columns: tuple[int, str, str], **more: Any) -> dict[str, Any]:
    parts = [dict(zip(("number", "name", "type"), each, strict=True)) for each in columns]
    return {"schema": "s", "table": table, "kind": "table", "columns": parts, "key": [], **more}


def schema(at: int, old: dict[str, Any] | None, new: dict[str, Any] | None) -> Event:
    named = new or old
    assert named is not None
    return Event((at, at, 0), "schema", "s", named["table"], old, new)


def truncate(at: int, table: str) -> Event:
    return Event((at, at, 1), "truncate", "s", table, None, None)


ONE = definition("a", (1, "id", "integer"))
TWO = definition("a", (1, "id", "integer"), (2, "b", "text"))


def test_a_table_is_cut_where_its_definition_changes() -> None:
    (plan,) = plan_batch([ONE], [schema(5, ONE, TWO)], ALL)
    first, second = plan.steps
    assert (first.definition, first.after, first.until) == (ONE, FIRST, (5, 5, 0))
    assert (second.definition, second.before) == (TWO, ONE)
    assert (second.after, second.until) == ((5, 5, 0), LAST)


def test_what_a_truncate_removes_is_not_applied() -> None:
    (plan,) = plan_batch([ONE], [schema(5, ONE, TWO), truncate(7, "a"), truncate(6, "a")], ALL)
    (step,) = plan.steps
    assert (step.is_emptied, step.definition, step.after) == (True, TWO, (7, 7, 1))


def test_a_rewritten_table_is_emptied() -> None:
    """Its rows come as inserts."""
    (plan,) = plan_batch([ONE], [schema(5, ONE, TWO), truncate(5, "a")], ALL)
    (step,) = plan.steps
    assert (step.is_emptied, step.definition, step.after) == (True, TWO, (5, 5, 1))


def test_new_dropped_and_renamed_tables() -> None:
    renamed = definition("b", (1, "id", "integer"))
    plans = plan_batch(
        [ONE],
        [
            schema(1, ONE, renamed),
            schema(2, None, ONE),
            schema(3, None, definition("tmp1")),
            schema(4, renamed, None),
        ],
        ALL,
    )
    old, new = plans
    assert old.is_dropped
    assert not any(step.has_rows for step in old.steps)
    assert (new.index, new.name, new.steps[0].after) == (None, "s.a", (2, 2, 0))


def test_a_table_that_is_selected_too_late() -> None:
    before = definition("tmp1", (1, "id", "integer"))
    with pytest.raises(MirrorError, match=r"s\.a at 0/3 is now one of the mirror's tables"):
        plan_batch([], [schema(3, before, ONE)], ALL)


def test_a_new_partition_of_a_selected_table() -> None:
    parent = definition("p", kind="partitioned table")
    part = definition("p1", partition_of="s.p")
    only = Selection(("s.p",))
    plans = plan_batch([parent], [schema(1, None, part)], only)
    assert [plan.name for plan in plans] == ["s.p", "s.p1"]


def test_patterns() -> None:
    assert Selection().selects("any.thing")
    assert ALL.selects("s.a")
    assert not ALL.selects("s.tmp_a")
    assert not ALL.selects("t.a")
    assert Selection(("s.p",)).selects("s.p1", ["s.p"])
    assert not Selection(("s.*",), ("s.p",)).selects("s.p1", ["s.p"])
    assert Selection(("s.*", "t.*")).unmatched(["s.a"]) == ["t.*"]
    with pytest.raises(OptionError, match='the pattern "orders" has no schema'):
        Selection(("orders",))


def test_where_columns_come_from() -> None:
    old = definition("a", (1, "id", "integer"), (2, "note", "text"), (4, "gone", "text"))
    new = definition("a", (1, "id", "integer"), (2, "text", "character varying(9)"))
    new["columns"] += [
        {"number": 5, "name": "n", "type": "integer"},
        {"number": 6, "name": "m", "type": "text", "missing_value": "ü"},
    ]
    assert column_sources(old, new) == [
        ColumnSource("id"),
        ColumnSource("note"),
        ColumnSource(None),
        ColumnSource(None, '"ü"'.encode()),
    ]


def test_renamed_labels() -> None:
    def state(*labels: str) -> dict[str, Any]:
        return {**definition("a"), "columns": [
            {"number": 1, "name": "state", "type": "mood", "labels": list(labels)}
        ]}  # fmt: skip

    def array(*labels: str) -> dict[str, Any]:
        (column,) = state(*labels)["columns"]
        return {**definition("a"), "columns": [{**column, "type": "mood[]"}]}

    (source,) = column_sources(state("new", "paid"), state("open", "paid"))
    assert source.labels == {"new": "open"}
    assert [source.renamed(text) for text in ("new", "paid", None)] == ["open", "paid", None]
    (source,) = column_sources(array("new", "paid"), array("open", "paid"))
    assert source.renamed('[["new",null],["paid","new"]]') == '[["open",null],["paid","open"]]'
    (source,) = column_sources(state("new", "paid"), state("new", "sent", "paid"))
    assert source.labels is None
    with pytest.raises(MirrorError, match="labels of column state were renamed and added at once"):
        column_sources(state("new", "paid"), state("open", "sent", "paid"))


@pytest.mark.parametrize(
    ("old", "new"), [("cidr", "inet"), ("integer", "oid"), ("text[]", "character varying(3)[]")]
)
def test_types_whose_values_need_a_server(old: str, new: str) -> None:
    with pytest.raises(MirrorError, match=r"changed from .* to .* without new rows") as raised:
        column_sources(definition("a", (1, "x", old)), definition("a", (1, "x", new)))
    assert "new mirror" in raised.value.hint
