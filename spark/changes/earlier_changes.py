"""`EarlierChanges`: what tasks must know about the tables that changed since the catalog snapshot.

The driver finds it once for each query, and goes on from batch to batch. A catalog with rows is
followed (`schema_search.py`); of one without rows only the altered tables are known
(`alteration_search.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from quorum_wal.spark.changes.alteration_search import find_alterations
from quorum_wal.spark.changes.alterations import Alterations, unseen_note
from quorum_wal.spark.changes.change_reader import ChangeOptions
from quorum_wal.spark.changes.change_schema import Note
from quorum_wal.spark.changes.schema_history import Problem, SchemaHistory
from quorum_wal.spark.changes.schema_search import SchemaSearch
from quorum_wal.spark.inputs.wal_input import WalInput
from quorum_wal.spark.inputs.wal_reader import OnDamage, WalRange


@dataclass(frozen=True, slots=True)
class KnownChanges:
    """Of one task. One of both is None."""

    alterations: Alterations | None = None
    history: SchemaHistory | None = None

    def options(self, changes: ChangeOptions) -> ChangeOptions:
        """The options of the task."""
        return replace(changes, alterations=self.alterations, history=self.history)

    def problems_before(self, lsn: int) -> list[Problem]:
        """What is reported because of WAL before `lsn`."""
        if self.alterations is not None:
            return [
                Problem(begin_lsn, begin_lsn, Note.NOT_SEARCHED, unseen_note(begin_lsn, end_lsn))
                for begin_lsn, end_lsn in self.alterations.unseen
            ]
        assert self.history is not None
        return self.history.problems_of(lsn, lsn)

    def without_problems_before(self, lsn: int) -> KnownChanges:
        if self.alterations is not None:
            return KnownChanges(alterations=replace(self.alterations, unseen=[]))
        assert self.history is not None
        problems = [each for each in self.history.problems if each.commit_lsn >= lsn]
        return KnownChanges(history=replace(self.history, gaps=[], problems=problems))


class EarlierChanges:
    """Lives on the driver."""

    def __init__(self, wal_input: WalInput, changes: ChangeOptions, on_damage: OnDamage) -> None:
        self._input = wal_input
        self._catalog = changes.catalog
        self._on_damage = on_damage
        self._alterations = changes.alterations
        self._search: SchemaSearch | None = None

    def of_tasks(self, parts: Sequence[WalRange]) -> list[KnownChanges]:
        """What each of these adjacent ranges must know; the first one reports the WAL before all of
        them that was not searched. Raises WalInputError."""
        whole = replace(parts[0], end_lsn=parts[-1].end_lsn)
        base = self._catalog.followed(whole.start_lsn)
        if base is None:
            return self._altered(parts)
        if self._search is None:
            self._search = SchemaSearch(self._input, base, self._on_damage)
        history = self._search.follow(whole)
        return [
            KnownChanges(
                history=history.part(part.start_lsn, part.end_lsn, is_first=part is parts[0])
            )
            for part in parts
        ]

    def __reduce__(self) -> tuple[object, ...]:
        """Spark sends readers to executors, which need only the tasks: nothing is sent."""
        return type(None), ()

    def _altered(self, parts: Sequence[WalRange]) -> list[KnownChanges]:
        starts = replace(parts[0], end_lsn=parts[-1].start_lsn)
        known = find_alterations(
            self._input, self._catalog, starts, self._on_damage, self._alterations
        )
        self._alterations = replace(known, unseen=[])
        return [
            KnownChanges(alterations=known if part is parts[0] else self._alterations)
            for part in parts
        ]
