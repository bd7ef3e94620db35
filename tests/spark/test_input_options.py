"""Options become an input, a range and a filter; what is wrong is said, without secrets."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from wal_rows import rows_of

from quorum_wal.spark.errors import OptionError
from quorum_wal.spark.inputs.archive_input import ArchiveInput
from quorum_wal.spark.inputs.folder_input import FolderInput
from quorum_wal.spark.inputs.joined_input import JoinedInput
from quorum_wal.spark.inputs.safekeeper_input import SafekeeperInput
from quorum_wal.spark.inputs.wal_reader import OnDamage, WalRange
from quorum_wal.spark.records.wal_schema import DEFAULT_COLUMNS
from quorum_wal.spark.sources.input_options import parse_options
from quorum_wal.spark.sources.range_plan import plan_range, split

SECRET = "geheim"
MIB = 1 << 20


def test_what_is_given_is_taken(server_wal: Path) -> None:
    options = parse_options(
        {
            "path": str(server_wal),
            "start_LSN": "0/1000028",
            "end_lsn": "1/0",
            "columns": "lsn, rmgr",
            "rmgr": "Heap,Transaction",
            "relation": "1259",
            "database": "5, 7",
            "xid": "740",
            "on_damage": "skip",
            "partition_bytes": "32MB",
            "tli": "1",
        }
    )
    assert options.wal_input == FolderInput(str(server_wal), 1)
    assert (options.start_lsn, options.end_lsn) == (0x1000028, 1 << 32)
    assert options.columns == ("lsn", "rmgr")
    assert options.wal_filter.rmgrs == {"Heap", "Transaction"}
    assert options.wal_filter.databases == {5, 7}
    assert options.wal_filter.xids == {740}
    assert options.on_damage is OnDamage.SKIP
    assert options.partition_bytes == 32 * MIB


def test_defaults(tmp_path: Path) -> None:
    options = parse_options({"path": str(tmp_path)})
    assert options.wal_input == ArchiveInput(str(tmp_path))
    assert options.columns == DEFAULT_COLUMNS
    assert options.on_damage is OnDamage.FAIL
    assert options.start_lsn is options.end_lsn is options.slot is None


@pytest.mark.parametrize(
    "text",
    [
        "sk1:5454,sk2,sk3:5455",
        f"host=sk1,sk2,sk3 port=5454,5454,5455 password={SECRET}",
        f"postgresql://u:{SECRET}@sk1:5454,sk2:5454,sk3:5455/",
    ],
)
def test_safekeepers_in_every_form(text: str, tmp_path: Path) -> None:
    options = parse_options({"safekeepers": text})
    assert isinstance(options.wal_input, SafekeeperInput)
    names = [address.name for address in options.wal_input.addresses]
    assert names == ["sk1:5454", "sk2:5454", "sk3:5455"]
    joined = parse_options({"safekeepers": text, "path": str(tmp_path)}).wal_input
    assert isinstance(joined, JoinedInput)
    for shown in (options, joined, options.wal_input, options.wal_input.addresses):
        assert SECRET not in repr(shown)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, "neither option path nor option safekeepers"),
        ({"path": "/", "relations": "1"}, 'unknown option "relations"'),
        ({"path": "/", "start_lsn": "0/1", "start_time": "2026-01-01"}, "contradict each other"),
        ({"path": "/", "end_lsn": "0/1", "end_time": "2026-01-01"}, "contradict each other"),
        ({"path": "/", "start_lsn": "0/2", "end_lsn": "0/1"}, "0/2 is after end_lsn 0/1"),
        ({"path": "/", "start_lsn": "5"}, "option start_lsn"),
        ({"path": "/", "start_time": "yesterday"}, 'invalid time "yesterday"'),
        ({"path": "/", "columns": "lsn,nope"}, 'unknown column "nope"'),
        ({"path": "/", "columns": "lsn,lsn"}, "named twice"),
        ({"path": "/", "columns": " , "}, "names no column"),
        ({"path": "/", "xid": "-1"}, 'option xid: "-1" is not a number'),
        ({"path": "/", "relation": "pg_class"}, 'option relation: "pg_class" is not a number'),
        ({"path": "/", "tli": "1,2"}, "option tli takes one number"),
        ({"path": "/", "on_damage": "ignore"}, "not one of fail, stop, skip"),
        ({"path": "/", "partition_bytes": "0"}, 'option partition_bytes: "0" is not a size'),
        ({"path": "/", "slot": "s"}, "option slot is not for batches"),
        ({"path": "/", "max_bytes_per_batch": "1MB"}, "is not for batches"),
        ({"path": f"s3://user:{SECRET}@bucket/"}, "must not contain credentials"),
        ({"path": "s3://[bucket/"}, "option path is not a valid URL"),
        ({"path": f"s3://user:{SECRET}@h\u2100st/"}, "option path is not a valid URL"),
        ({"path": "a\0b"}, "could not read folder"),
        ({"path": "/", "xid": "7" * 5000}, "is not a number of 32 bits"),
        ({"path": "/nowhere/at/all"}, "could not read folder /nowhere/at/all"),
        ({"safekeepers": f"host=sk password='{SECRET}"}, "not a libpq connection string"),
        ({"safekeepers": f"port=1 password={SECRET}"}, "must name a host for each"),
        ({"safekeepers": "host=a,b port=1,2,3"}, "one port or one for each"),
        ({"safekeepers": "sk," * 18 + "sk"}, "names 19 hosts, expected at most 18"),
        ({"safekeepers": "sk1", "timeline": "7"}, "option timeline"),
        ({"safekeepers": "sk1", "tli": "2"}, "option tli is not for safekeepers"),
    ],
)
def test_what_is_wrong_is_said(given: dict[str, str], expected: str) -> None:
    with pytest.raises(OptionError, match=expected) as caught:
        parse_options(given)
    assert SECRET not in f"{caught.value} {caught.value.hint} {caught.value.__cause__}"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"path": "/", "end_lsn": "0/1"}, "end_lsn is not for streams"),
        ({"path": "/", "end_time": "2026-01-01"}, "end_time is not for streams"),
        ({"path": "/", "on_damage": "stop"}, "on_damage=stop is for batches only"),
        ({"path": "/", "slot": "s"}, "option slot needs option safekeepers"),
    ],
)
def test_what_a_stream_cannot_have(given: dict[str, str], expected: str) -> None:
    with pytest.raises(OptionError, match=expected):
        parse_options(given, is_stream=True)


def test_a_folder_of_segments_has_no_archives_options(server_wal: Path) -> None:
    for extra in ({"timeline": "0" * 32}, {"archive.endpoint": "http://x"}):
        with pytest.raises(OptionError, match="is a folder of segments"):
            parse_options({"path": f"file://{server_wal}", **extra})
    with pytest.raises(OptionError, match="safekeepers can be joined only with an archive"):
        parse_options({"path": str(server_wal), "safekeepers": "sk1"})


def test_own_options_of_a_source_are_left_to_it(tmp_path: Path) -> None:
    parse_options({"path": str(tmp_path), "table": "t"}, known=("table",))


# ---- ranges


def planned(server_wal: Path, **given: str) -> WalRange:
    options = parse_options({"path": str(server_wal), **given})
    return plan_range(options, options.wal_input.facts())


def test_times_are_those_of_commits(server_wal: Path) -> None:
    rows = rows_of(FolderInput(str(server_wal)), columns=("lsn", "operation", "xact_time"))
    commits = [
        (row["lsn"], row["xact_time"])
        for row in rows.to_pylist()
        if row["operation"] in ("COMMIT", "COMMIT_PREPARED")
    ]
    assert len(commits) > 5
    for number in (0, 1, len(commits) // 2, len(commits) - 1):
        lsn, moment = commits[number]
        assert planned(server_wal, start_time=moment.isoformat()).start_lsn == lsn
        assert planned(server_wal, end_time=moment.isoformat()).end_lsn == lsn
    behind = datetime(2200, 1, 1, tzinfo=UTC).isoformat()
    newest_lsn = FolderInput(str(server_wal)).newest_lsn()
    empty = planned(server_wal, start_time=behind)
    assert (empty.start_lsn, empty.end_lsn) == (newest_lsn, newest_lsn)
    assert planned(server_wal, end_time=behind).end_lsn == newest_lsn


def test_ranges_outside_of_the_wal_are_refused(server_wal: Path) -> None:
    with pytest.raises(OptionError, match="start_lsn FF/0 is after the end of the WAL"):
        planned(server_wal, start_lsn="FF/0")
    with pytest.raises(OptionError, match="end_lsn FF/0 is after the end of the WAL"):
        planned(server_wal, end_lsn="FF/0")


def test_a_range_is_cut_where_segments_begin(server_wal: Path) -> None:
    facts = FolderInput(str(server_wal)).facts()
    whole = WalRange(3 * MIB + 5, 7 * MIB + 1, 9 * MIB, is_boundary=True)
    parts = split(whole, facts, 2 * MIB)
    assert [(part.start_lsn, part.end_lsn) for part in parts] == [
        (3 * MIB + 5, 5 * MIB),
        (5 * MIB, 7 * MIB),
        (7 * MIB, 7 * MIB + 1),
    ]
    assert [part.is_boundary for part in parts] == [True, False, False]
    assert len(split(WalRange(5, 5, 9), facts, MIB)) == 1
