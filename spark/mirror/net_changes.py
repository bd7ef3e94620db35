"""`net_changes`: the changes of a batch to one table, folded into one change for each key.

    insert 1 a, update 1 b          ->  key 1: row b            no row before the batch
    update 2 c                      ->  key 2: row c            a row before it
    update 3 -> 4, d without big    ->  key 3: none             a row before it
                                        key 4: row d, column big is that of key 3 before the batch
    insert 5, delete 5              ->  nothing

Laws. The result does not depend on how the changes were cut into batches. It is a set of
assignments that take effect at once: `source` names a key as it was before the batch. Each net
change knows whether its key has a row before the batch, which the writer checks: a lost or a
repeated change does not pass. Values are JSON as `pg_changes` prints them; they are not read here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import msgspec

from quorum_wal.pgwal.lsn import format_lsn
from quorum_wal.spark.errors import MirrorError

#: column -> its value as JSON
Row: TypeAlias = Mapping[str, bytes]
#: the values of the key columns, as a JSON array
Key: TypeAlias = bytes
#: (commit_lsn, lsn, seq), which orders all changes
Place: TypeAlias = tuple[int, int, int]

_ROW = msgspec.json.Decoder(dict[str, msgspec.Raw])
_KEY = msgspec.json.Decoder(list[msgspec.Raw])


@dataclass(frozen=True, slots=True)
class Change:
    """An insert, an update or a delete. `old_key` is the key before an update, if it changed."""

    place: Place
    operation: str
    key: Key
    old_key: Key | None = None
    new: Row | None = None


@dataclass(frozen=True, slots=True)
class NetChange:
    """`row` is None if the key has no row after the batch. If `row` lacks columns, they are those
    of the row that `source` had before the batch."""

    key: Key
    row: Row | None
    source: Key | None
    had_row: bool


@dataclass(frozen=True, slots=True)
class _State:
    row: Row | None
    source: Key | None = None


def net_changes(changes: Iterable[Change], columns: Sequence[str]) -> list[NetChange]:
    """`columns` are those of the table. Raises MirrorError if the changes contradict each other."""
    states: dict[Key, _State] = {}
    had_row: dict[Key, bool] = {}
    for change in sorted(changes, key=lambda each: each.place):
        _apply(change, states, had_row, columns)
    return [
        NetChange(key, state.row, state.source, had_row[key])
        for key, state in states.items()
        if state.row is not None or had_row[key]
    ]


def _apply(
    change: Change, states: dict[Key, _State], had_row: dict[Key, bool], columns: Sequence[str]
) -> None:
    old_key = change.key if change.old_key is None else change.old_key
    before = _State(None)
    if change.operation != "insert":
        before = _existing(change, old_key, states, had_row)
        states[old_key] = _State(None)
    if change.operation == "delete":
        return
    _require_free(change, states, had_row)
    assert change.new is not None
    row = {**(before.row or {}), **change.new}
    is_whole = all(column in row for column in columns)
    if not is_whole and before.source is None:
        missing = [column for column in columns if column not in row]
        raise MirrorError(
            f"the change at {_place(change)} lacks the columns {', '.join(missing)}",
            hint="The definition of the table and the row do not fit. Begin a new mirror.",
        )
    states[change.key] = _State(row, None if is_whole else before.source)


def _existing(
    change: Change, key: Key, states: Mapping[Key, _State], had_row: dict[Key, bool]
) -> _State:
    """The row that an update or a delete changes."""
    state = states.get(key)
    if state is None:
        had_row[key] = True
        return _State({}, key)
    if state.row is None:
        raise _contradiction(change, key, "has no row, but a change needs one")
    return state


def _require_free(change: Change, states: Mapping[Key, _State], had_row: dict[Key, bool]) -> None:
    state = states.get(change.key)
    if state is None:
        had_row[change.key] = False
    elif state.row is not None:
        raise _contradiction(change, change.key, "has a row already")


def _contradiction(change: Change, key: Key, what: str) -> MirrorError:
    return MirrorError(
        f"key {key.decode()} {what}: {change.operation} at {_place(change)}",
        hint="Deferrable primary keys are not supported. Otherwise the mirror and the WAL do not "
        "fit: begin a new mirror.",
    )


def _place(change: Change) -> str:
    return format_lsn(change.place[1])


# ---- rows of pg_changes


def change_of(row: Mapping[str, object], key: Sequence[str]) -> Change:
    """A row of `pg_changes` with the columns `commit_lsn`, `lsn`, `seq`, `operation`, `key`, `new`
    and `old`. `key` are the key columns; without any, each row is a key of its own.

    Raises MirrorError if the table has no key and the change is not an insert.
    """
    commit_lsn, lsn, seq = row["commit_lsn"], row["lsn"], row["seq"]
    assert isinstance(commit_lsn, int)
    assert isinstance(lsn, int)
    assert isinstance(seq, int)
    place = commit_lsn, lsn, seq
    operation = str(row["operation"])
    new = None if row["new"] is None else row_of(str(row["new"]))
    old = None if row["old"] is None else row_of(str(row["old"]))
    if not key:
        if operation != "insert":
            raise MirrorError(
                f"{operation} at {format_lsn(lsn)} of a table without a primary key",
                hint="A mirror needs a key to find the row: add a primary key, or exclude the "
                "table. Without a key, rows can only be inserted.",
            )
        return Change(place, operation, f'["{commit_lsn}/{lsn}/{seq}"]'.encode(), new=new)
    named = {} if row["key"] is None else row_of(str(row["key"]))
    # An out-of-line key that an update did not change is only in the old row.
    current = key_of({**(old or {}), **named}, key, lsn)
    if new is not None:
        new = {**new, **{name: named[name] for name in key if name in named}}
    old_key = None
    if operation == "update" and old is not None:
        old_key = key_of({**named, **old}, key, lsn)
    return Change(place, operation, current, None if old_key == current else old_key, new)


def row_of(text: str | bytes) -> dict[str, bytes]:
    """The columns of a JSON object. Raises MirrorError."""
    try:
        return {name: bytes(value) for name, value in _ROW.decode(text).items()}
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise MirrorError(f"a row of pg_changes is not a JSON object: {error}") from error


def key_of(row: Row, key: Sequence[str], lsn: int) -> Key:
    """Raises MirrorError."""
    missing = [name for name in key if name not in row]
    if missing:
        raise MirrorError(f"the change at {format_lsn(lsn)} lacks the key {', '.join(missing)}")
    return b"[" + b",".join(row[name] for name in key) + b"]"


def values_of(key: Key) -> list[bytes]:
    """The values of the key columns."""
    return [bytes(value) for value in _KEY.decode(key)]


def json_of(row: Row) -> bytes:
    """The row as a JSON object, with the values as they are."""
    return msgspec.json.encode({name: msgspec.Raw(value) for name, value in row.items()})
