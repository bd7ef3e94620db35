"""WalDecoder's columns have the values that pg_waldump prints, and `pgwal.block_ref` reads."""

from __future__ import annotations

import re
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from checked_log import BLOCKS_EVERY, CheckedLog
from full_logs import SWITCH_LOGS, LogMaker
from indexed_log import decode_folder

from quorum_wal.pgwal.block_ref import decode_body
from quorum_wal.spark.records.wal_filter import WalFilter
from quorum_wal.spark.records.wal_schema import WAL_SCHEMA

_FORKS = ("main", "fsm", "vm", "init")
_END = re.compile(
    r"(?:gid (?P<gid>.*?): )?(?:(?P<xid>\d+): )?(?P<time>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{6}) UTC"
    r"(?:.*?; subxacts:(?P<subxids>(?: \d+)+))?"
)


def _decoded(log: CheckedLog) -> pa.Table:
    return decode_folder(log.folder, WAL_SCHEMA.names)


def _column(table: pa.Table, name: str) -> list[object]:
    values: list[object] = table[name].to_pylist()
    return values


@pytest.mark.parametrize(("major", "seg_mib"), SWITCH_LOGS)
def test_every_record_is_what_pg_waldump_prints(
    full_log: LogMaker, major: int, seg_mib: int
) -> None:
    log = full_log(major, seg_mib)
    table = _decoded(log)
    names = ("lsn", "record_length", "prev_lsn", "xid", "rmgr")
    found = zip(*(_column(table, name) for name in names), strict=True)
    assert list(found) == log.dump.records
    operations = zip(_column(table, "operation"), _column(table, "fpi_bytes"), strict=True)
    assert list(operations) == log.dump.operations
    assert len(set(_column(table, "operation"))) > 60
    assert _column(table, "end_lsn") == [record.end_lsn for record in log.records]
    assert _column(table, "record") == [record.data for record in log.records]
    assert set(_column(table, "tli")) == {1}


@pytest.mark.parametrize(("major", "seg_mib"), SWITCH_LOGS)
def test_blocks_and_lengths_agree(full_log: LogMaker, major: int, seg_mib: int) -> None:
    log = full_log(major, seg_mib)
    table = _decoded(log).take(list(log.dump.blocks))
    for row, position in zip(table.to_pylist(), log.dump.blocks, strict=True):
        body = decode_body(log.records[position], major)
        printed = [
            (
                block["block_id"],
                f"{block['tablespace']}/{block['database']}/{block['relfilenode']}",
                _FORKS.index(block["fork"]),
                block["block"],
                block["has_image"],
            )
            for block in row["blocks"]
        ]
        assert printed == log.dump.blocks[position]
        assert [b["data_length"] for b in row["blocks"]] == [len(b.data) for b in body.blocks]
        assert row["fpi_count"] == sum(block.image is not None for block in body.blocks)
        assert row["main_data_length"] == len(body.main_data)
        if row["rmgr"] != "Transaction":
            assert row["top_xid"] == (body.toplevel_xid or None)
        if row["operation"].endswith("+INIT"):
            assert row["blocks"][0]["will_init"]
    assert table.num_rows == -(-len(log.records) // BLOCKS_EVERY)
    assert {b["will_init"] for b in table["blocks"].combine_chunks().flatten().to_pylist()} == {
        True,
        False,
    }


@pytest.mark.parametrize(("major", "seg_mib"), SWITCH_LOGS)
def test_ends_of_transactions_agree(full_log: LogMaker, major: int, seg_mib: int) -> None:
    log = full_log(major, seg_mib)
    columns = ("operation", "xid", "top_xid", "xact_time", "subxids", "gid")
    table = decode_folder(log.folder, columns, WalFilter(rmgrs=frozenset({"transaction"})))
    ends, gids = 0, []
    for row, text in zip(table.to_pylist(), log.dump.transactions.values(), strict=True):
        end = _END.match(text)
        if end is None:
            assert row["operation"] in ("ASSIGNMENT", "INVALIDATION"), text
            assert row["xact_time"] is row["subxids"] is row["gid"] is None
            continue
        ends += 1
        time = datetime.strptime(end["time"], "%Y-%m-%d %H:%M:%S.%f")
        assert row["xact_time"] == time.replace(tzinfo=UTC)
        assert row["subxids"] == [int(xid) for xid in (end["subxids"] or "").split()]
        if end["gid"] is not None:
            assert row["gid"] == end["gid"]
        if row["operation"] != "ABORT":
            assert row["top_xid"] == int(end["xid"] or row["xid"])
        gids += [row["gid"]] * (row["gid"] is not None)
    assert ends > 400
    assert gids == ["prepared", "prepared"]  # COMMIT PREPARED has it, too, for logical decoding


def test_filters_select_the_right_rows(full_log: LogMaker) -> None:
    log = full_log(16, 4)
    columns = ("lsn", "rmgr", "operation", "xid", "top_xid", "blocks")
    rows = decode_folder(log.folder, columns).to_pylist()
    places = {(b["database"], b["relfilenode"]) for row in rows for b in row["blocks"]}
    database, relation = max(place for place in places if place[0])
    xids = frozenset({row["xid"] for row in rows if row["operation"] == "PREPARE"} | {0})
    wanted = {
        WalFilter(rmgrs=frozenset({"Heap", "btree"})): [
            row["lsn"] for row in rows if row["rmgr"] in ("Heap", "Btree")
        ],
        WalFilter(relations=frozenset({relation}), databases=frozenset({database})): [
            row["lsn"]
            for row in rows
            if any((b["database"], b["relfilenode"]) == (database, relation) for b in row["blocks"])
        ],
        WalFilter(xids=xids): [row["lsn"] for row in rows if {row["xid"], row["top_xid"]} & xids],
    }
    for wal_filter, lsns in wanted.items():
        assert 0 < len(lsns) < len(rows)
        assert _column(decode_folder(log.folder, ("lsn",), wal_filter), "lsn") == lsns
