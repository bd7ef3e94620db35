"""Values of Postgres as Arrow values, and keys as texts."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from quorum_wal.spark.errors import MirrorError
from quorum_wal.spark.mirror.table_columns import (
    MirrorColumn,
    array_of,
    columns_of,
    key_texts,
)


def column(type_name: str) -> MirrorColumn:
    return MirrorColumn(1, "x", type_name)


@pytest.mark.parametrize(
    ("type_name", "text", "value"),
    [
        ("boolean", "true", True),
        ("integer", "-5", -5),
        ("bigint", "9223372036854775807", 9223372036854775807),
        ("oid", '"4294967295"', 4294967295),
        ("numeric(6,2)", "1234.50", Decimal("1234.50")),
        ("numeric", "1234.500", "1234.500"),
        ("numeric", '"NaN"', "NaN"),
        ("double precision", '"-Infinity"', float("-inf")),
        ("date", '"2026-11-26"', date(2026, 11, 26)),
        ("timestamp without time zone", '"2026-11-26T09:00:00.5"',
         datetime(2026, 11, 26, 9, 0, 0, 500_000)),
        ("timestamp(3) with time zone", '"2026-11-26T09:00:00+00:00"',
         datetime(2026, 11, 26, 9, tzinfo=UTC)),
        ("bytea", r'"\\x00ff"', b"\x00\xff"),
        ("text", r'"a \"b\" ü"', 'a "b" ü'),
        ("mood", '"ok"', "ok"),
        ("text[]", '["a",null]', '["a",null]'),
        ("jsonb", '"a"', '"a"'),
        ("jsonb", '{"a": 1.50}', '{"a": 1.50}'),
        ("text", "null", None),
    ],
)  # fmt: skip
def test_values(type_name: str, text: str, value: Any) -> None:
    assert array_of([text.encode(), None], column(type_name)).to_pylist() == [value, None]


@pytest.mark.parametrize(
    ("type_name", "text"),
    [
        ("date", '"infinity"'),
        ("timestamp without time zone", '"0044-03-15T00:00:00 BC"'),
        ("numeric(6,2)", '"NaN"'),
        ("numeric(6,2)", "12345.00"),
        ("boolean", "1"),
        ("bytea", '"abc"'),
        ("integer", "99999999999"),
    ],
)
def test_values_that_the_type_cannot_store(type_name: str, text: str) -> None:
    good = {"date": '"2026-11-26"', "boolean": "true"}.get(type_name, "null")
    with pytest.raises(MirrorError, match='column "x" of type') as raised:
        array_of([good.encode(), text.encode()], column(type_name))
    assert text in str(raised.value)
    assert "--text" in raised.value.hint


def test_all_columns_as_text() -> None:
    found = columns_of(
        {"columns": [{"number": 1, "name": "d", "type": "date"},
                     {"number": 2, "name": "j", "type": "jsonb"}]},
        is_text=True,
    )  # fmt: skip
    arrays = [array_of([b'"infinity"'], found[0]), array_of([b'"a"'], found[1])]
    assert [array.to_pylist() for array in arrays] == [["infinity"], ['"a"']]


def test_keys_of_several_columns_do_not_collide() -> None:
    texts = key_texts([pa.array(["a\x1f", "a"]), pa.array(["b", "\x1fb"])]).to_pylist()
    assert len(set(texts)) == 2
    assert key_texts([pa.array([b"\xff"])]).to_pylist() == ["ff"]
    assert key_texts([pa.array([1, 2]), pa.array([True, False])]).null_count == 0
