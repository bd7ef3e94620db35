"""Rows of `pg_changes` as events of Debezium."""

from __future__ import annotations

import base64
import json
import pickle
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from quorum_wal.spark.changes.change_schema import CHANGES_SCHEMA
from quorum_wal.spark.changes.debezium_envelope import (
    ENVELOPE_SCHEMA,
    UNAVAILABLE_VALUE,
    DebeziumEnvelope,
)
from quorum_wal.spark.errors import OptionError
from quorum_wal.spark.sources.pg_changes_options import parse_envelope

ENVELOPE = DebeziumEnvelope("shop", "orders_db")
COMMITTED = datetime(2024, 5, 1, 12, 0, 0, 250_000, UTC)


def row(operation: str, **values: Any) -> dict[str, Any]:
    given = {
        "lsn": 100, "seq": 2, "commit_lsn": 300, "commit_time": COMMITTED, "xid": 700,
        "operation": operation, "schema": "public", "table": "orders", **values,
    }  # fmt: skip
    return {name: given.get(name) for name in CHANGES_SCHEMA.names}


def events(*rows: dict[str, Any]) -> list[dict[str, Any]]:
    batch = pa.RecordBatch.from_pylist(list(rows), schema=CHANGES_SCHEMA)
    envelope = pickle.loads(pickle.dumps(ENVELOPE))
    found = [each for made in envelope.apply([batch]) for each in made.to_pylist()]
    assert all(each.keys() == set(ENVELOPE_SCHEMA.names) for each in found)
    return [{**each, "value": json.loads(each["value"])} for each in found]


def test_an_insert() -> None:
    (event,) = events(row("insert", key='{"id":1}', new='{"id":1,"total":1.10}'))
    value = event["value"]
    assert (event["topic"], event["key"]) == ("shop.public.orders", '{"id":1}')
    assert (event["commit_lsn"], event["lsn"], event["seq"], event["part"]) == (300, 100, 2, 0)
    assert (value["op"], value["before"], value["after"]) == ("c", None, {"id": 1, "total": 1.1})
    assert value["transaction"] is None
    assert abs(value["ts_ms"] / 1000 - datetime.now(UTC).timestamp()) < 3600
    source = value["source"]
    assert source.pop("version")
    assert source == {
        "connector": "postgresql", "name": "shop", "ts_ms": 1714564800250, "snapshot": "false",
        "db": "orders_db", "sequence": '["300","100"]', "schema": "public", "table": "orders",
        "txId": 700, "lsn": 100, "xmin": None,
    }  # fmt: skip


def test_numbers_keep_their_digits() -> None:
    made = list(ENVELOPE.events(row("insert", new='{"n":1.10,"m":12345678901234567890.00}'), 0))
    assert '"after":{"n":1.10,"m":12345678901234567890.00}' in made[0]["value"]


def test_an_update_and_a_delete() -> None:
    update, delete = events(
        row("update", key='{"id":1}', old='{"id":1,"n":1}', new='{"id":1,"n":2}'),
        row("delete", key='{"id":1}', old='{"id":1}'),
    )
    value = update["value"]
    assert (value["op"], value["before"], value["after"]) == (
        "u", {"id": 1, "n": 1}, {"id": 1, "n": 2},
    )  # fmt: skip
    value = delete["value"]
    assert (value["op"], value["before"], value["after"]) == ("d", {"id": 1}, None)
    assert delete["key"] == '{"id":1}'


def test_a_changed_key_is_two_events() -> None:
    deleted, created = events(
        row("update", key='{"a":1,"b":3}', old='{"a":1,"b":2}', new='{"a":1,"b":3,"c":4}')
    )
    assert (deleted["key"], deleted["part"]) == ('{"a":1,"b":2}', 0)
    assert (created["key"], created["part"]) == ('{"a":1,"b":3}', 1)
    assert [deleted["value"][name] for name in ("op", "before", "after")] == [
        "d", {"a": 1, "b": 2}, None,
    ]  # fmt: skip
    assert [created["value"][name] for name in ("op", "before", "after")] == [
        "c", None, {"a": 1, "b": 3, "c": 4},
    ]  # fmt: skip


@pytest.mark.parametrize("new", ["{}", '{"id":1}'])
def test_values_that_an_update_did_not_change(new: str) -> None:
    (event,) = events(row("update", key='{"id":1}', new=new, unchanged=["note", 'a "b"']))
    expected = {**json.loads(new), "note": UNAVAILABLE_VALUE, 'a "b"': UNAVAILABLE_VALUE}
    assert event["value"]["after"] == expected


def test_a_truncate_and_a_schema_change() -> None:
    (event,) = events(row("schema", new="{}"), row("truncate"))
    assert event["key"] is None
    assert event["value"].keys() == {"source", "transaction", "op", "ts_ms"}
    assert event["value"]["op"] == "t"
    assert events(row("schema", new="{}")) == []


@pytest.mark.parametrize(
    ("encoding", "content", "expected"),
    [("text", "ü{}", "ü{}".encode()), ("hex", "\\xff00", b"\xff\x00")],
)
def test_a_message(encoding: str, content: str, expected: bytes) -> None:
    new = {"prefix": "outbox", "transactional": False, "encoding": encoding, "content": content}
    (event,) = events(
        row("message", new=json.dumps(new), schema=None, table=None, xid=None, commit_time=None)
    )
    assert (event["topic"], event["key"]) == ("shop.message", '{"prefix":"outbox"}')
    assert event["value"]["op"] == "m"
    message = event["value"]["message"]
    assert message["prefix"] == "outbox"
    assert base64.b64decode(message["content"]) == expected
    assert event["value"]["source"]["ts_ms"] is None


def test_options() -> None:
    assert parse_envelope({}, "db") is None
    assert parse_envelope({"envelope": "debezium"}, "db") == DebeziumEnvelope("db", "db")
    given = {"Envelope": "debezium", "topic_prefix": "shop"}
    assert parse_envelope(given, "db") == DebeziumEnvelope("shop", "db")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"envelope": "avro"}, "avro"),
        ({"topic_prefix": "shop"}, "topic_prefix needs envelope=debezium"),
        ({"envelope": "debezium", "table": "orders"}, "envelope and table contradict each other"),
        ({"envelope": "debezium", "on_unknown": "pass"}, "on_unknown=pass contradict each other"),
    ],
)
def test_wrong_options(options: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        parse_envelope(options, "db")
