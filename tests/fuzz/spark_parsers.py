"""The rows of the table that are about `spark/`: values and rows of the WAL, options of users, and
files of pages."""

from __future__ import annotations

import struct
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from quorum_wal.pgwal.errors import WalFormatError
from quorum_wal.spark.changes.datum_varlena import DatumError, parse_pointer
from quorum_wal.spark.changes.logical_messages import decode_message, message_json
from quorum_wal.spark.changes.page_file import (
    LastRecord,
    PageIndex,
    PagesLost,
    PageState,
    decode_index,
    decode_page,
    encode_page,
)
from quorum_wal.spark.errors import MirrorError, OptionError
from quorum_wal.spark.inputs.safekeeper_session import parse_safekeepers
from quorum_wal.spark.inputs.segment_file import parse_segment_file
from quorum_wal.spark.jobs.table_base import Snapshot
from quorum_wal.spark.sources.column_option import parse_columns
from quorum_wal.spark.sources.input_options import parse_options
from quorum_wal.spark.sources.pg_changes_options import (
    parse_envelope,
    parse_input_options,
    parse_undecoded,
)

from . import catalog_seeds
from .datum_seeds import DATUMS
from .mirror_values import MIRROR_VALUES
from .parser import Parser

#: what a reader of rows reports in the row
_DATUM_ERRORS = (ValueError, IndexError, RecursionError, struct.error)

_TIMELINE = "00112233445566778899aabbccddeeff/00112233445566778899aabbccddeeff"
_PAGE_INDEX = msgspec.msgpack.encode(
    PageIndex(
        PageState(7, 0x1000000, 0x3000000, 0x1000000, LastRecord(0x2FFFF00, 5, 1)),
        struct.pack("<I", 16384), struct.pack("<Q", 16384 << 32), bytes(8), bytes(4), bytes(4),
    )
)  # fmt: skip


def _logical_message(case: bytes) -> str:
    header = decode_message(0, case)
    stored = case[len(case) - header.prefix_bytes - header.content_bytes :]
    return message_json(0, stored, header.prefix_bytes, is_transactional=header.is_transactional)


def _with_options(read: Callable[[Mapping[str, str]], object]) -> Callable[[str], object]:
    """A text has an option in each line."""
    return lambda text: read(dict(line.partition("=")[::2] for line in text.split("\n")))


def _of_archive(read: Callable[[Mapping[str, str]], object]) -> Callable[[str], object]:
    """With a folder that exists, unless the text names another one."""
    return _with_options(lambda options: read({"path": tempfile.gettempdir(), **options}))


SPARK_PARSERS: list[Parser] = [
    Parser("spark.changes.catalog_decoder.CatalogDecoder.decode (pg_index)",
           catalog_seeds.INDEX_DECODER.decode, (DatumError,), seeds=catalog_seeds.INDEX_ROWS,
           covers=("spark.changes.catalog_decoder.CatalogDecoder.decode",)),
    Parser("spark.changes.catalog_decoder.CatalogDecoder.decode (pg_attribute)",
           catalog_seeds.ATTRIBUTE_DECODER.decode, (DatumError,),
           seeds=catalog_seeds.ATTRIBUTE_ROWS),
    *(Parser(f"spark.mirror.{name}", read, (MirrorError,), seeds=valid)
      for name, (read, valid) in MIRROR_VALUES.items()),
    Parser("spark.changes.logical_messages.decode_message", _logical_message, (WalFormatError,),
           seeds=(struct.pack("<IB3xQQ", 5, 1, 3, 2) + b"ab\0xy",)),
    *(Parser(f"spark.changes.{name}", read, _DATUM_ERRORS, seeds=valid)
      for name, (read, valid) in DATUMS.items()),
    Parser("spark.changes.datum_varlena.parse_pointer", parse_pointer, (DatumError,),
           seeds=(b"\1\x12" + struct.pack("<iIII", 5000, 4000, 70000, 16390),)),
    Parser("spark.changes.page_file.decode_index", decode_index, (PagesLost,),
           seeds=(_PAGE_INDEX,)),
    Parser("spark.changes.page_file.decode_page", decode_page,
           (msgspec.MsgspecError, RecursionError), seeds=(encode_page((None, {1: b"tuple"})),)),
    Parser("spark.inputs.safekeeper_session.parse_safekeepers",
           lambda text: parse_safekeepers(text, _TIMELINE), (OptionError,),
           texts=("a:5454,[::1]:5455,c", "host=a,b,c port=5454 user=x", "postgresql://a:5454/")),
    Parser("spark.inputs.segment_file.parse_segment_file",
           lambda text: parse_segment_file(Path("wal", text), 1 << 24), (),
           texts=("000000010000000A000000FE", "000000010000000A000000FE.gz.partial")),
    Parser("spark.jobs.table_base.Snapshot.parse", Snapshot.parse, (ValueError,),
           texts=("745:750:745,748", "7:7:")),
    Parser("spark.sources.column_option.parse_columns", parse_columns, (OptionError,),
           texts=("lsn,rmgr, operation",)),
    Parser("spark.sources.input_options.parse_options", _of_archive(parse_options),
           (OptionError,),
           texts=("start_lsn=16/B374D848\nend_time=2026-11-21 10:00:00+00\nrmgr=Heap\nxid=5,6",
                  f"path=s3://bucket/wal\ntimeline={_TIMELINE}\narchive.region=x\ntli=2",
                  "safekeepers=a:1,b:2\npartition_bytes=64MB\non_damage=skip",
                  f"path=file://{tempfile.gettempdir()}", "path=s3://[::1]/x"),
           covers=("spark.sources.input_options.parse_size",
                   "spark.sources.input_options.parse_choice")),
    Parser("spark.sources.pg_changes_options.parse_input_options",
           _of_archive(parse_input_options), (OptionError,),
           texts=("start_lsn=0/10\ntable=public.t\nmemory_bytes=64MB",)),
    Parser("spark.sources.pg_changes_options.parse_envelope",
           _with_options(lambda options: parse_envelope(options, "shop")), (OptionError,),
           texts=("envelope=debezium\ntopic_prefix=p\non_unknown=fail", "envelope=none")),
    Parser("spark.sources.pg_changes_options.parse_undecoded", _with_options(parse_undecoded),
           (OptionError,),
           texts=("on_unknown=dead_letter\ndead_letter_path=/tmp/letters",
                  "on_unknown=pass\non_damage=skip")),
]  # fmt: skip
