"""Rows of hand-made records: shapes that the available servers do not write, and damage."""

from __future__ import annotations

import random
import struct
from datetime import UTC, datetime, timedelta

import pytest
from raw_records import RELATION, START_LSN, index_of, main_data, raw_record, record_of

from quorum_wal.pgwal.block_ref import RecordBody, decode_body
from quorum_wal.pgwal.errors import WalFormatError
from quorum_wal.pgwal.versions import SUPPORTED_MAJORS
from quorum_wal.spark.records.wal_decoder import WalDecoder
from quorum_wal.spark.records.wal_filter import WalFilter
from quorum_wal.spark.records.wal_schema import DEFAULT_COLUMNS, WAL_SCHEMA

TIME = datetime(2026, 11, 21, 12, 0, 0, 123456, tzinfo=UTC)
TIME_US = (TIME - datetime(2000, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
SUBXIDS = struct.pack("<iII", 2, 701, 702)

#: two blocks of one relation: a compressed image with a hole, then one that is initialised
TWO_BLOCKS = (
    struct.pack("<BBHHHBH", 0, 0x30, 3, 100, 40, 0x03, 8092)
    + RELATION
    + struct.pack("<I", 7)
    + struct.pack("<BBHI", 4, 0xC2, 0, 8)
)
PAYLOAD = bytes(100) + b"abc"


def _row(raw: bytes, major: int) -> dict[str, object]:
    batch = WalDecoder(major, WAL_SCHEMA.names).decode(index_of([raw]))
    batch.validate(full=True)
    (row,) = batch.to_pylist()
    return row  # type: ignore[no-any-return]


@pytest.mark.parametrize("major", SUPPORTED_MAJORS)
def test_row_of_a_record(major: int) -> None:
    blocks = TWO_BLOCKS if major < 15 else TWO_BLOCKS.replace(b"\x03\x9c\x1f", b"\x05\x9c\x1f")
    top = b"" if major == 13 else struct.pack("<BI", 252, 699)
    data = blocks + struct.pack("<BH", 253, 1) + top + struct.pack("<BI", 254, 5) + PAYLOAD
    raw = raw_record(data + b"main!", info=0x80)
    assert _row(raw, major) == {
        "lsn": START_LSN,
        "end_lsn": START_LSN + (len(raw) + 7 & ~7),
        "prev_lsn": 0x1000000,
        "tli": 1,
        "xid": 700,
        "top_xid": None if major == 13 else 699,
        "rmgr": "Heap",
        "operation": "INSERT+INIT",
        "record_length": len(raw),
        "main_data_length": 5,
        "fpi_count": 1,
        "fpi_bytes": 100,
        "blocks": [
            {
                "block_id": 0,
                "tablespace": 1663,
                "database": 5,
                "relfilenode": 16384,
                "fork": "main",
                "block": 7,
                "has_image": True,
                "will_init": False,
                "data_length": 3,
            },
            {
                "block_id": 4,
                "tablespace": 1663,
                "database": 5,
                "relfilenode": 16384,
                "fork": "vm",
                "block": 8,
                "has_image": False,
                "will_init": True,
                "data_length": 0,
            },
        ],
        "xact_time": None,
        "subxids": None,
        "gid": None,
        "fpi_compressed": 1,
        "record": raw,
    }


def _commit(major: int, *, stats: bool) -> bytes:
    """All parts: database, subxids, relations, statistics, invalidations, xid, gid, origin."""
    item_size = {15: 12, 16: 12, 17: 12, 18: 16}.get(major, 0)
    has_stats = stats and item_size > 0
    return (
        struct.pack("<qI", TIME_US, 0xBF | 0x100 * has_stats)
        + struct.pack("<II", 5, 1663)
        + SUBXIDS
        + struct.pack("<i", 1)
        + RELATION
        + (struct.pack("<i", 3) + bytes(3 * item_size) if has_stats else b"")
        + struct.pack("<i", 2)
        + bytes(2 * 16)
        + struct.pack("<I", 777)
        + "größe\0".encode()
        + bytes(16)
    )


@pytest.mark.parametrize("stats", [False, True])
@pytest.mark.parametrize("major", SUPPORTED_MAJORS)
def test_commit_prepared(major: int, stats: bool) -> None:
    data = _commit(major, stats=stats)
    raw = raw_record(main_data(data), rmgr_id=1, info=0xB0, xid=0)
    row = _row(raw, major)
    assert (row["operation"], row["xid"], row["top_xid"]) == ("COMMIT_PREPARED", 0, 777)
    assert (row["xact_time"], row["subxids"], row["gid"]) == (TIME, [701, 702], "größe")


@pytest.mark.parametrize("major", SUPPORTED_MAJORS)
def test_prepare(major: int) -> None:
    numbers = struct.pack("<IIIIqI", 0x57F94534, 0, 700, 5, TIME_US, 10)
    numbers += struct.pack("<i", 2) + bytes(12 if major < 15 else 20)
    header = numbers + struct.pack("<?xH16x", False, 5)
    assert len(header) % 8 == 0
    data = header + b"gid\xe4\0".ljust(8, b"\0") + struct.pack("<II", 701, 702) + bytes(40)
    row = _row(raw_record(main_data(data), rmgr_id=1, info=0x10), major)
    assert (row["operation"], row["top_xid"]) == ("PREPARE", 700)
    assert (row["xact_time"], row["subxids"]) == (TIME, [701, 702])
    assert row["gid"] == "gid\\xe4", "a byte that is not UTF-8"


def test_short_commit_and_abort() -> None:
    data = main_data(struct.pack("<q", TIME_US))
    commit = _row(raw_record(data, rmgr_id=1, info=0x00), 16)
    abort = _row(raw_record(data, rmgr_id=1, info=0x20), 16)
    for row in (commit, abort):
        assert (row["xact_time"], row["subxids"], row["gid"]) == (TIME, [], None)
    assert (commit["top_xid"], abort["top_xid"]) == (700, None), "may be of a subtransaction"


def test_other_transaction_records_are_no_ends() -> None:
    for info in (0x50, 0x60):
        row = _row(raw_record(main_data(bytes(8)), rmgr_id=1, info=info), 16)
        assert row["xact_time"] is row["subxids"] is row["gid"] is row["top_xid"] is None


def test_transaction_record_that_is_cut() -> None:
    whole = _commit(18, stats=True)
    # The origin, after the gid, is not read.
    for length in range(len(whole) - 16):
        raw = raw_record(main_data(whole[:length]), rmgr_id=1, info=0xB0)
        with pytest.raises(WalFormatError) as failure:
            _row(raw, 18)
        assert str(failure.value) == "COMMIT_PREPARED is shorter than it says at 0/1000028"
        assert failure.value.lsn == START_LSN
    prepare = bytes(28) + struct.pack("<i", 1 << 30) + bytes(40)
    for length in (0, 71, 72):
        raw = raw_record(main_data(prepare[:length]), rmgr_id=1, info=0x10)
        with pytest.raises(WalFormatError, match="PREPARE is shorter than it says"):
            _row(raw, 18)


def test_no_records() -> None:
    batch = WalDecoder(16, WAL_SCHEMA.names).decode(index_of([]))
    batch.validate(full=True)
    assert batch.num_rows == 0
    assert batch.schema == WAL_SCHEMA


def test_only_the_requested_columns() -> None:
    raw = raw_record(main_data(b""), rmgr_id=1)  # not a valid commit, but it is not read
    batch = WalDecoder(16, ("xid", "lsn")).decode(index_of([raw]))
    assert batch.to_pydict() == {"xid": [700], "lsn": [START_LSN]}


def test_each_decoder_has_its_own_memory() -> None:
    decoder = WalDecoder(16)
    raw = raw_record(TWO_BLOCKS.replace(b"\x03\x9c\x1f", b"\x05\x9c\x1f") + PAYLOAD)
    first = decoder.decode(index_of([raw]))
    before = first.to_pylist()
    decoder.decode(index_of([raw_record(main_data(b"abc"))] * 3 + [raw] * 5))
    assert first.to_pylist() == before


def _pure(raw: bytes, lsn: int, major: int) -> RecordBody | WalFormatError:
    try:
        return decode_body(record_of(raw, lsn), major)
    except WalFormatError as error:
        return error


@pytest.mark.parametrize("major", SUPPORTED_MAJORS)
def test_damage_inside_is_refused_as_the_pure_decoder_does(major: int) -> None:
    """Compares the results of both over records with a few bytes changed or cut off."""
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    blocks = TWO_BLOCKS if major < 15 else TWO_BLOCKS.replace(b"\x03\x9c\x1f", b"\x05\x9c\x1f")
    top = b"" if major == 13 else struct.pack("<BI", 252, 699)
    whole = blocks + struct.pack("<BH", 253, 1) + top + b"\xff\x05" + PAYLOAD + b"main!"
    decoder = WalDecoder(major, (*DEFAULT_COLUMNS, "fpi_compressed"))
    refused = 0
    for _ in range(3000):
        body = bytearray(whole)
        for _ in range(rng.randrange(3)):
            body[rng.randrange(65)] = rng.choice((0, 1, 2, 255, 254, 253, 252, rng.randrange(256)))
        raw = raw_record(
            bytes(body[: rng.randrange(len(body) + 1) if rng.random() < 0.2 else None])
        )
        good = raw_record(main_data(b"good"))
        index = index_of([good, raw])
        lsn = int(index.start_lsn[1])
        expected = _pure(raw, lsn, major)
        if isinstance(expected, WalFormatError):
            refused += 1
            with pytest.raises(WalFormatError) as failure:
                decoder.decode(index)
            assert (str(failure.value), failure.value.lsn) == (str(expected), lsn)
            continue
        row = decoder.decode(index).to_pylist()[1]
        assert row["main_data_length"] == len(expected.main_data)
        assert row["top_xid"] == (expected.toplevel_xid or None)
        assert [(b["block_id"], b["block"]) for b in row["blocks"]] == [
            (block.block_id, block.block_number) for block in expected.blocks
        ]
        images = [block.image for block in expected.blocks if block.image is not None]
        assert (row["fpi_count"], row["fpi_bytes"]) == (
            len(images),
            sum(len(image.data) for image in images),
        )
        assert row["fpi_compressed"] == sum(image.compression is not None for image in images)
    assert 500 < refused < 2900


def test_damage_in_records_dropped_by_rmgr_is_not_checked() -> None:
    index = index_of([raw_record(b"\x21"), raw_record(main_data(b"x"), rmgr_id=0)])
    wal_filter = WalFilter(rmgrs=frozenset({"XLOG"}))
    assert WalDecoder(16, ("xid",), wal_filter).decode(index).num_rows == 1
    with pytest.raises(WalFormatError, match="invalid block_id 33 at 0/1000028"):
        WalDecoder(16, ("xid",)).decode(index)
