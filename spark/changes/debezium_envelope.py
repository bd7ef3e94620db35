"""Changes as events of Debezium, as its connector for Postgres writes them with the JSON converter
and `schemas.enable=false`.

    key    {"id": 7}                                            null without a primary key
    value  {"before": {..} or null, "after": {..} or null, "source": {..}, "transaction": null,
            "op": "c", "ts_ms": 1700000000000}

    insert c    update u    delete d    truncate t    message m    a changed key: d, then c

Values are those of row_to_json(), not those of Kafka Connect's types. An out-of-line value that an
update did not change is Debezium's placeholder. A changed key is two events, as in Debezium, so
that a consumer that keeps a row for each key removes the old one. Rows of operation `schema` have
no event. Law: rows that could not be decoded must have been removed before, because an event cannot
say what it lacks. Source: Debezium's documentation, "Debezium connector for PostgreSQL".
"""

from __future__ import annotations

import base64
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import msgspec
import pyarrow as pa

#: of events; (commit_lsn, lsn, seq, part) is a total order
ENVELOPE_SCHEMA = pa.schema(
    [
        pa.field("topic", pa.string()),
        pa.field("key", pa.string()),
        pa.field("value", pa.string()),
        pa.field("commit_lsn", pa.int64()),
        pa.field("lsn", pa.int64()),
        pa.field("seq", pa.int32()),
        #: 1: the second event of an update that changed the key
        pa.field("part", pa.int32()),
    ]
)

UNAVAILABLE_VALUE = "__debezium_unavailable_value"

_OPERATIONS = {"insert": "c", "update": "u", "delete": "d", "truncate": "t", "message": "m"}
_RAW_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])
_JSON = msgspec.json.Encoder()
_NULL = msgspec.Raw(b"null")

Row = dict[str, Any]


class Envelope(Enum):
    """The form of the rows of `pg_changes`."""

    NONE = "none"
    DEBEZIUM = "debezium"


@dataclass(frozen=True, slots=True)
class DebeziumEnvelope:
    """Picklable. `topic_prefix` is the name of the source, `database` that of the database."""

    topic_prefix: str
    database: str

    def apply(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Events of ENVELOPE_SCHEMA; no batch is empty."""
        for batch in batches:
            now_ms = time.time_ns() // 1_000_000
            events = [event for row in batch.to_pylist() for event in self.events(row, now_ms)]
            if events:
                yield pa.RecordBatch.from_pylist(events, schema=ENVELOPE_SCHEMA)

    def events(self, row: Row, now_ms: int) -> Iterator[Row]:
        """The events of one row of CHANGES_SCHEMA."""
        operation = row["operation"]
        if operation not in _OPERATIONS:
            assert operation == "schema", operation
            return
        source = self._source(row)
        old_key = _changed_key(row) if operation == "update" else None
        if operation == "message":
            yield self._event(row, *_message(row, source, now_ms))
        elif operation == "truncate":
            value = {"source": source, "transaction": None, "op": "t", "ts_ms": now_ms}
            yield self._event(row, None, value)
        elif old_key is None:
            yield self._event(row, row["key"], _value(row, source, _OPERATIONS[operation], now_ms))
        else:
            deleted = _value({**row, "new": None}, source, "d", now_ms)
            yield self._event(row, old_key, deleted)
            created = _value({**row, "old": None}, source, "c", now_ms)
            yield self._event(row, row["key"], created, part=1)

    def _event(self, row: Row, key: str | None, value: Row, part: int = 0) -> Row:
        names = [self.topic_prefix, row["schema"], row["table"]]
        if row["table"] is None:
            names = [self.topic_prefix, "message"]
        return {
            "topic": ".".join(names),
            "key": key,
            "value": _JSON.encode(value).decode(),
            "commit_lsn": row["commit_lsn"],
            "lsn": row["lsn"],
            "seq": row["seq"],
            "part": part,
        }

    def _source(self, row: Row) -> Row:
        """`ts_ms` is the time of the commit. `sequence` has the LSNs of commit and record."""
        committed = row["commit_time"]
        return {
            "version": _version(),
            "connector": "postgresql",
            "name": self.topic_prefix,
            "ts_ms": None if committed is None else int(committed.timestamp() * 1000),
            "snapshot": "false",
            "db": self.database,
            "sequence": _JSON.encode([str(row["commit_lsn"]), str(row["lsn"])]).decode(),
            "schema": row["schema"] or "",
            "table": row["table"] or "",
            "txId": row["xid"],
            "lsn": row["lsn"],
            "xmin": None,
        }


def _value(row: Row, source: Row, operation: str, now_ms: int) -> Row:
    after = row["new"]
    for name in row["unchanged"] or () if after is not None else ():
        member = _JSON.encode({name: UNAVAILABLE_VALUE})[1:].decode()
        after = f"{after[:-1]}{',' if after != '{}' else ''}{member}"
    return {
        "before": _raw(row["old"]),
        "after": _raw(after),
        "source": source,
        "transaction": None,
        "op": operation,
        "ts_ms": now_ms,
    }


def _message(row: Row, source: Row, now_ms: int) -> tuple[str, Row]:
    """The key and the value. Debezium encodes the content with base64."""
    message = msgspec.json.decode(row["new"])
    content: str = message["content"]
    stored = bytes.fromhex(content[2:]) if message["encoding"] == "hex" else content.encode()
    value = {
        "source": source,
        "transaction": None,
        "op": "m",
        "ts_ms": now_ms,
        "message": {
            "prefix": message["prefix"],
            "content": base64.b64encode(stored).decode(),
        },
    }
    return _JSON.encode({"prefix": message["prefix"]}).decode(), value


def _changed_key(row: Row) -> str | None:
    """The key before an update, if the WAL has it and it is another one."""
    if row["old"] is None or row["key"] is None:
        return None
    old, key = _RAW_OBJECT.decode(row["old"]), _RAW_OBJECT.decode(row["key"])
    before = {name: old.get(name, _NULL) for name in key}
    if not before.keys() <= old.keys() or all(
        bytes(before[name]) == bytes(value) for name, value in key.items()
    ):
        return None
    return _JSON.encode(before).decode()


def _raw(text: str | None) -> msgspec.Raw:
    """An object of JSON that is part of another one; its numbers keep their digits."""
    return _NULL if text is None else msgspec.Raw(text.encode())


def _version() -> str:
    try:
        return version("quorum-wal")
    except PackageNotFoundError:  # in a wheel that is only on the path
        return "unknown"
