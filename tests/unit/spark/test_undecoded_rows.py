"""Rows that could not be decoded: an error, a dead letter, or rows like all others."""

from __future__ import annotations

import json
import pickle
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from quorum_wal.spark.changes.change_schema import CHANGES_SCHEMA, Note
from quorum_wal.spark.changes.undecoded_rows import OnUnknown, UndecodedPolicy
from quorum_wal.spark.errors import DeadLetterError, OptionError, UndecodedChange
from quorum_wal.spark.inputs.wal_reader import WalRange
from quorum_wal.spark.sources.pg_changes_options import parse_input_options, parse_undecoded

RANGE = WalRange(0x1000028, 0x2000000, 0x2000000)
INSERTED = {
    "commit_lsn": 0x1000100, "xid": 7, "operation": "insert", "schema": "public", "table": "t",
    "key": '{"id":1}', "new": '{"id":1}', "commit_time": datetime(2026, 11, 21, 10, tzinfo=UTC),
}  # fmt: skip
PARTLY = {**INSERTED, "detail": "column s: type 600 is not decoded", "new": '{"id":2.50}'}
SUMMARY = {
    **INSERTED,
    "operation": "unknown",
    "table": None,
    "schema": None,
    "detail": "2 changes\nof",
}
NOTE = {
    "operation": "unknown",
    "seq": Note.INCOMPLETE.value,
    "detail": "the WAL begins at 0/1000000",
}


def batch_of(*rows: dict[str, Any], schema: pa.Schema = CHANGES_SCHEMA) -> pa.RecordBatch:
    placed = [{"lsn": 0x1000028 + 8 * place, "seq": 0, **row} for place, row in enumerate(rows)]
    return pa.RecordBatch.from_pylist(placed, schema=schema)


def applied(policy: UndecodedPolicy, *batches: pa.RecordBatch) -> list[pa.RecordBatch]:
    return list(policy.apply(batches, RANGE))


def stored(folder: Path) -> list[dict[str, Any]]:
    return [
        json.loads(line)
        for path in sorted(folder.glob("*.json"))
        for line in path.read_text().splitlines()
    ]


def test_rows_that_are_decoded_pass() -> None:
    batch = batch_of(INSERTED, INSERTED)
    for policy in (UndecodedPolicy(), UndecodedPolicy(OnUnknown.DEAD_LETTER, "/nowhere")):
        assert applied(policy, batch) == [batch]


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        (
            (INSERTED, PARTLY, SUMMARY),
            "change at 0/1000030 of table public.t could not be decoded, and 1 more rows: "
            "column s: type 600 is not decoded",
        ),
        ((SUMMARY,), "change at 0/1000028 could not be decoded: 2 changes of"),
        ((NOTE,), "WAL at 0/1000028 could not be decoded: the WAL begins at 0/1000000"),
    ],
)
def test_the_default_is_an_error(rows: tuple[dict[str, Any], ...], text: str) -> None:
    with pytest.raises(UndecodedChange) as raised:
        applied(UndecodedPolicy(), batch_of(*rows))
    assert str(raised.value) == text
    assert "on_unknown=pass" in raised.value.hint
    again = pickle.loads(pickle.dumps(raised.value))
    assert (str(again), again.hint) == (text, raised.value.hint)


def test_a_hint_for_wal_that_begins_too_late() -> None:
    with pytest.raises(UndecodedChange) as raised:
        applied(UndecodedPolicy(), batch_of(NOTE))
    assert raised.value.hint.startswith("Begin at least 15 seconds later")


def test_all_rows_pass() -> None:
    batch = batch_of(INSERTED, PARTLY, NOTE)
    assert applied(UndecodedPolicy(OnUnknown.PASS), batch) == [batch]


def test_a_dead_letter(tmp_path: Path) -> None:
    """It has the rows whole; the others pass; a task that is repeated writes nothing new."""
    policy = UndecodedPolicy(OnUnknown.DEAD_LETTER, str(tmp_path))
    batch = batch_of(INSERTED, PARTLY, INSERTED, SUMMARY, NOTE)
    for _ in range(2):
        (kept,) = applied(policy, batch)
        assert kept.to_pylist() == [batch.to_pylist()[0], batch.to_pylist()[2]]
        (path,) = tmp_path.iterdir()
        assert path.name.startswith("0000000001000028-0000000002000000-")
    expected = [batch.to_pylist()[place] for place in (1, 3, 4)]
    for row in expected:
        row["commit_time"] = row["commit_time"] and row["commit_time"].isoformat()
    assert stored(tmp_path) == expected
    assert stored(tmp_path)[0]["new"] == '{"id":2.50}'


def test_two_batches_of_a_range_are_two_objects(tmp_path: Path) -> None:
    policy = UndecodedPolicy(OnUnknown.DEAD_LETTER, str(tmp_path))
    assert applied(policy, batch_of(PARTLY), batch_of(SUMMARY)) == []
    assert len(stored(tmp_path)) == len(list(tmp_path.iterdir())) == 2


def test_typed_rows_are_stored_as_json(tmp_path: Path) -> None:
    values = {
        "i": 7, "f": float("nan"), "g": float("-inf"), "n": Decimal("1.50"), "b": b"\x00\xff",
        "d": date(2024, 2, 29), "t": datetime(2024, 1, 1, 12), "s": "é", "nothing": None,
    }  # fmt: skip
    kinds = {
        "i": pa.int32(), "f": pa.float64(), "g": pa.float32(), "n": pa.decimal128(8, 2),
        "b": pa.binary(), "d": pa.date32(), "t": pa.timestamp("us"), "s": pa.string(),
        "nothing": pa.int32(),
    }  # fmt: skip
    row_type = pa.struct(list(kinds.items()))
    schema = CHANGES_SCHEMA
    for name in ("new", "old"):
        schema = schema.set(schema.get_field_index(name), pa.field(name, row_type))
    batch = batch_of({**PARTLY, "new": values}, schema=schema)
    assert applied(UndecodedPolicy(OnUnknown.DEAD_LETTER, str(tmp_path)), batch) == []
    (row,) = stored(tmp_path)
    assert row["new"] == (
        '{"i":7,"f":"NaN","g":"-Infinity","n":1.50,"b":"\\\\x00ff","d":"2024-02-29",'
        '"t":"2024-01-01T12:00:00","s":"é","nothing":null}'
    )
    assert row["old"] is None


def test_a_dead_letter_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    policy = UndecodedPolicy(OnUnknown.DEAD_LETTER, str(tmp_path / "file"))
    with pytest.raises(DeadLetterError, match="1 rows could not be written to dead letter /"):
        applied(policy, batch_of(PARTLY))


def test_options() -> None:
    assert parse_undecoded({}) == UndecodedPolicy()
    assert parse_undecoded({"on_Unknown": "pass"}).on_unknown is OnUnknown.PASS
    given = {
        "on_unknown": "dead_letter", "dead_letter_path": "s3://b/p",
        "dead_letter.endpoint": "http://127.0.0.1:1", "dead_letter.access_key_id": "key",
        "dead_letter.secret_access_key": "geheim",
    }  # fmt: skip
    found = parse_undecoded(given)
    assert found.dead_letter == "s3://b/p"
    assert dict(found.store_options)["endpoint"] == "http://127.0.0.1:1"
    assert "geheim" not in repr(found)
    assert parse_undecoded({"on_damage": "skip", "on_unknown": "pass"}).dead_letter is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"on_unknown": "ignore"}, '"ignore" is not one of fail, dead_letter, pass'),
        ({"on_unknown": "dead_letter"}, "needs option dead_letter_path"),
        ({"dead_letter_path": "/srv/x"}, "option dead_letter_path needs on_unknown=dead_letter"),
        ({"dead_letter.endpoint": "x"}, "option dead_letter.endpoint needs on_unknown=dead_letter"),
        ({"on_damage": "skip"}, "on_damage=skip and on_unknown=fail contradict each other"),
        ({"on_damage": "SKIP", "on_unknown": "fail"}, "contradict each other"),
        ({"on_unknown": "dead_letter", "dead_letter_path": "here"}, "must be an absolute path"),
    ],
)
def test_options_that_are_wrong(options: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        parse_undecoded(options)


def test_they_are_options_of_the_source(tmp_path: Path) -> None:
    (tmp_path / "000000010000000000000001").write_bytes(b"")
    given = {"path": str(tmp_path), "ON_unknown": "pass", "dead_letter.endpoint": "x"}
    assert parse_input_options(given).on_damage.value == "fail"
    with pytest.raises(OptionError, match='unknown option "dead_letters"'):
        parse_input_options({"path": str(tmp_path), "dead_letters": "x"})
