"""The net changes of a batch, applied at once, give what the changes give one by one."""

from __future__ import annotations

import json
import secrets
from random import Random
from typing import Any

import pytest

from quorum_wal.spark.errors import MirrorError
from quorum_wal.spark.mirror.net_changes import (
    Change,
    change_of,
    json_of,
    net_changes,
    row_of,
    values_of,
)

COLUMNS = ("id", "note", "big")
Table = dict[bytes, dict[str, bytes]]


def key(number: int) -> bytes:
    return f"[{number}]".encode()


def row(number: int, rng: Random, **more: bytes) -> dict[str, bytes]:
    return {"id": b"%d" % number, "note": b"%d" % rng.randrange(1000), **more}


def random_change(table: Table, place: int, rng: Random) -> Change:
    """A change that the table allows; updates may leave `big` unchanged, which they lack then."""
    at = (place // 3, place, 0)
    used = sorted(table)
    free = [key(number) for number in range(12) if key(number) not in table]
    big = {} if rng.random() < 0.6 else {"big": b"%d" % rng.randrange(1000)}
    kind = rng.choice(("insert", "update", "update", "move", "delete"))
    if not used or (kind == "insert" and free):
        new = rng.choice(free)
        number = int(new[1:-1])
        return Change(at, "insert", new, new=row(number, rng, big=b"%d" % rng.randrange(1000)))
    old = rng.choice(used)
    if kind == "delete":
        return Change(at, "delete", old)
    if kind == "move" and free:
        new = rng.choice(free)
        return Change(at, "update", new, old, row(int(new[1:-1]), rng, **big))
    return Change(at, "update", old, None, row(int(old[1:-1]), rng, **big))


def replayed(table: Table, change: Change) -> None:
    before = table.pop(change.old_key or change.key, {})
    if change.operation != "delete":
        assert change.new is not None
        table[change.key] = {**before, **change.new}


def applied(table: Table, changes: list[Change]) -> Table:
    """All net changes at once, checked as a mirror does."""
    net = net_changes(changes, COLUMNS)
    assert all(each.had_row == (each.key in table) for each in net)
    result = {name: value for name, value in table.items() if name not in {e.key for e in net}}
    for each in net:
        if each.row is not None:
            source = {} if each.source is None else table[each.source]
            result[each.key] = {**source, **each.row}
            assert set(result[each.key]) == set(COLUMNS)
    return result


def test_random_changes_in_random_batches() -> None:
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    rng = Random(seed)
    for _ in range(200):
        truth: Table = {}
        mirror: Table = {}
        place = 0
        for _ in range(rng.randint(1, 5)):
            batch = []
            for _ in range(rng.randint(0, 25)):
                change = random_change(truth, place, rng)
                replayed(truth, change)
                batch.append(change)
                place += 1
            rng.shuffle(batch)
            mirror = applied(mirror, batch)
            assert mirror == truth


def test_what_is_not_left_is_not_written() -> None:
    rng = Random(1)
    insert = Change((1, 1, 0), "insert", key(1), new=row(1, rng, big=b"1"))
    assert net_changes([insert, Change((1, 2, 0), "delete", key(1))], COLUMNS) == []


@pytest.mark.parametrize(
    ("operations", "message"),
    [
        (("insert", "insert"), r"key \[1\] has a row already: insert at 0/1"),
        (("delete", "delete"), r"key \[1\] has no row, but a change needs one: delete at 0/1"),
        (("insert", "delete", "update"), "has no row"),
    ],
)
def test_changes_that_contradict_each_other(operations: tuple[str, ...], message: str) -> None:
    whole = {"id": b"1", "note": b"1", "big": b"1"}
    changes = [
        Change((1, place, 0), operation, key(1), new=None if operation == "delete" else whole)
        for place, operation in enumerate(operations)
    ]
    with pytest.raises(MirrorError, match=message):
        net_changes(changes, COLUMNS)


def test_an_inserted_row_must_be_whole() -> None:
    with pytest.raises(MirrorError, match="lacks the columns big"):
        net_changes([Change((1, 1, 0), "insert", key(1), new=row(1, Random(1)))], COLUMNS)


def changed(operation: str, **values: Any) -> dict[str, Any]:
    texts = {name: None if value is None else json.dumps(value) for name, value in values.items()}
    return {
        "commit_lsn": 9, "lsn": 8, "seq": 7, "operation": operation,
        "key": None, "new": None, "old": None, **texts,
    }  # fmt: skip


def test_rows_of_pg_changes() -> None:
    found = change_of(
        changed("update", key={"b": "x", "a": 2}, new={"a": 2, "b": "x"}, old={"a": 1, "b": "x"}),
        ("a", "b"),
    )
    assert (found.place, found.key, found.old_key) == ((9, 8, 7), b'[2,"x"]', b'[1,"x"]')
    assert values_of(found.key) == [b"2", b'"x"']
    same = changed("update", key={"a": 1}, new={"a": 1}, old={"a": 1, "b": 2})
    assert change_of(same, ("a",)).old_key is None
    assert change_of(changed("delete", key={"a": 1}), ("a",)).key == b"[1]"


def test_a_key_that_an_update_did_not_write() -> None:
    """It is out of line, and only the old row has it."""
    found = change_of(changed("update", key={}, new={"b": 2}, old={"a": "long", "b": 1}), ("a",))
    assert (found.key, found.old_key) == (b'["long"]', None)
    with pytest.raises(MirrorError, match="lacks the key a"):
        change_of(changed("update", key={}, new={"b": 2}), ("a",))


def test_without_a_key_rows_can_only_be_inserted() -> None:
    insert = change_of(changed("insert", new={"a": 1}), ())
    assert insert.key == b'["9/8/7"]'
    with pytest.raises(MirrorError, match="delete at 0/8 of a table without a primary key"):
        change_of(changed("delete", key={"a": 1}), ())


def test_json_keeps_its_text() -> None:
    text = b'{"a":1.500,"b":{"x":  [1e3]},"c":null}'
    assert json_of(row_of(text)) == text


@pytest.mark.parametrize("text", [b"[1]", b'{"a":', b'{"\xe1":1}', b'{"a":' + b"[" * 100_000])
def test_a_row_that_is_no_json_object(text: bytes) -> None:
    with pytest.raises(MirrorError, match="is not a JSON object"):
        row_of(text)
