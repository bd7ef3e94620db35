"""`BatchPlan`: the rounds in which a batch is applied, cut where definitions of tables change.

    public.orders   rows | schema | rows            | rows
    public.items    rows            | truncate       | rows
                    (   round 1    ) (  round 2  )  ...    at most one part of each table

Pure. Laws. A part of a table has one definition. What a TRUNCATE removes is not applied first. A
table is identified by its name at the time of a row; a renamed table stays in the mirror. A table
that exists before it is selected is an error, because its rows are not known.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from quorum_wal.pgwal.lsn import format_lsn
from quorum_wal.spark.changes.table_definition import Definition
from quorum_wal.spark.errors import MirrorError
from quorum_wal.spark.mirror.net_changes import Place
from quorum_wal.spark.mirror.selection import Selection
from quorum_wal.spark.mirror.version import parents_of

FIRST: Place = (-1, -1, -1)
LAST: Place = (1 << 63, 1 << 63, 1 << 31)


@dataclass(frozen=True, slots=True)
class Step:
    """Of one table: what is done to its files first, and the changes that follow.

    `definition` is the one after the step's beginning. If `is_emptied`, all files are removed;
    otherwise, if `before` is given, they are rewritten from that definition. Then the rows between
    `after` and `until` are applied, if `has_rows`.
    """

    definition: Definition
    before: Definition | None
    is_emptied: bool
    after: Place
    until: Place = LAST
    has_rows: bool = True

    @property
    def is_whole(self) -> bool:
        """Whether all rows of the batch with the table's name are applied."""
        return self.after == FIRST and self.until == LAST


@dataclass(slots=True)
class TablePlan:
    """`index` is the table's place in the version, or None if the batch created it."""

    index: int | None
    steps: list[Step] = field(default_factory=list)
    is_dropped: bool = False

    @property
    def definition(self) -> Definition:
        return self.steps[-1].definition

    @property
    def name(self) -> str:
        return name_of(self.definition)


@dataclass(frozen=True, slots=True)
class Event:
    """A row with operation `schema` or `truncate`."""

    place: Place
    operation: str
    schema: str
    table: str
    old: Definition | None
    new: Definition | None

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Event:
        """From a row of pg_changes."""
        old, new = (json.loads(row[name]) if row[name] else None for name in ("old", "new"))
        place = row["commit_lsn"], row["lsn"], row["seq"]
        return cls(place, row["operation"], row["schema"], row["table"], old, new)


def plan_batch(
    definitions: Sequence[Definition], events: Iterable[Event], selection: Selection
) -> list[TablePlan]:
    """`definitions` are those of the tables of the version. Raises MirrorError."""
    ordered = sorted(events, key=lambda event: event.place)
    plans = [
        TablePlan(index, [Step(each, None, is_emptied=False, after=FIRST)])
        for index, each in enumerate(definitions)
    ]
    current = {plan.name: plan for plan in plans}
    rewritten = {
        (event.place[0], event.schema, event.table)
        for event in ordered
        if event.operation == "truncate"
    }
    for event in ordered:
        if event.operation == "truncate":
            _truncate(current, event)
        else:
            _change(current, plans, event, selection, rewritten)
    return plans


def _truncate(current: Mapping[str, TablePlan], event: Event) -> None:
    plan = current.get(f"{event.schema}.{event.table}")
    if plan is not None:
        _empty(plan, plan.definition, event.place)


def _empty(plan: TablePlan, definition: Definition, place: Place) -> None:
    """No step before it has an effect."""
    plan.steps = [Step(definition, None, is_emptied=True, after=place)]


def _change(
    current: dict[str, TablePlan],
    plans: list[TablePlan],
    event: Event,
    selection: Selection,
    rewritten: set[tuple[int, str, str]],
) -> None:
    old_name, new_name = name_of(event.old), name_of(event.new)
    plan = current.get(old_name) if old_name else None
    if event.new is None:
        if plan is not None:
            plan.is_dropped = True
            plan.steps = [replace(plan.steps[-1], before=None, is_emptied=True, has_rows=False)]
            del current[old_name]
        return
    if plan is None:
        if not _is_selected(event.new, current, selection):
            return
        if event.old is not None:
            raise MirrorError(
                f"table {new_name} at {format_lsn(event.place[1])} is now one of the mirror's "
                "tables, but its rows are not in the mirror",
                hint="It was renamed, or attached as a partition. Begin a new mirror in another "
                "folder, or exclude the table.",
            )
        plan = TablePlan(None, [Step(event.new, None, is_emptied=True, after=event.place)])
        plans.append(plan)
    elif (event.place[0], event.new["schema"], event.new["table"]) in rewritten:
        _empty(plan, event.new, event.place)
    else:
        last = plan.steps[-1]
        plan.steps[-1] = replace(last, until=event.place)
        plan.steps.append(Step(event.new, last.definition, is_emptied=False, after=event.place))
    current.pop(old_name, None)
    current[new_name] = plan


def _is_selected(
    definition: Definition, current: Mapping[str, TablePlan], selection: Selection
) -> bool:
    known = {name: plan.definition for name, plan in current.items()}
    return selection.selects(name_of(definition), parents_of(definition, known))


def name_of(definition: Definition | None) -> str:
    return "" if definition is None else f"{definition['schema']}.{definition['table']}"
