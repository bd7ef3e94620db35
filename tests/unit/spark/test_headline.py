"""The headline of a report: each advice has its evidence, and is not given without it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from quorum_wal.spark.changes.catalog import Catalog, Table
from quorum_wal.spark.jobs.headline import Advice, Evidence, Writer, headline
from quorum_wal.spark.jobs.relation_names import RelationName, RelationNames, relation_names
from quorum_wal.spark.jobs.report import writers

MIB = 1 << 20
#: 100 MiB of table records, without anything to advise
CALM = Evidence(
    bytes=100 * MIB,
    images=1000,
    compressed_images=0,
    image_bytes=5 * MIB,
    new_page_bytes=0,
    index_bytes=10 * MIB,
    commits=50_000,
    commit_bytes=2 * MIB,
    seconds=100.0,
    checkpoints=2,
    checkpoint_seconds=60.0,
    checkpoint_bytes=60 * MIB,
    largest_writer=Writer("public.orders of database shop", 60 * MIB),
)
#: images after checkpoints, 60 s apart
IMAGES = replace(CALM, image_bytes=70 * MIB)
INDEXES = replace(CALM, index_bytes=40 * MIB)
COMMITS = replace(CALM, commits=500_000, commit_bytes=25 * MIB)


def test_nothing_to_advise() -> None:
    found = headline(CALM)
    assert found.advice == ()
    assert found.text == (
        "public.orders of database shop wrote 60 % of the WAL; "
        "this WAL does not show how to reduce it."
    )


def test_all_advice_is_one_sentence() -> None:
    all_of_them = replace(
        IMAGES,
        index_bytes=40 * MIB,
        commits=500_000,
        commit_bytes=25 * MIB,
        largest_writer=Writer("public.orders of database shop", 60 * MIB, has_parts=True),
    )
    assert headline(all_of_them).advice == tuple(Advice)
    assert headline(all_of_them).text == (
        "public.orders of database shop with its indexes and TOAST wrote 60 % of the WAL; to "
        "reduce the WAL, increase max_wal_size and checkpoint_timeout (checkpoints were 60 s "
        "and 60.0 MiB apart, and the full-page images that follow them are 70 %), turn on "
        "wal_compression (full-page images are 70 %, and none of them is compressed), drop "
        "indexes that pg_stat_user_indexes reports as unused (records of indexes are 40 %), "
        "and combine small transactions (commit records are 25 %, at 5,000 commits a second)."
    )


@pytest.mark.parametrize(
    ("evidence", "advice"),
    [
        (IMAGES, (Advice.CHECKPOINT_DISTANCE, Advice.WAL_COMPRESSION)),
        # the distance of checkpoints
        (replace(IMAGES, checkpoints=1), (Advice.WAL_COMPRESSION,)),
        (replace(IMAGES, checkpoint_seconds=None), (Advice.WAL_COMPRESSION,)),
        (replace(IMAGES, checkpoint_seconds=1800.0), (Advice.WAL_COMPRESSION,)),
        (
            replace(IMAGES, checkpoints=4, checkpoint_seconds=1800.0),
            (Advice.CHECKPOINT_DISTANCE, Advice.WAL_COMPRESSION),
        ),
        # pages that are written as a whole do not follow checkpoints
        (replace(IMAGES, new_page_bytes=60 * MIB), (Advice.WAL_COMPRESSION,)),
        # compression
        (replace(IMAGES, compressed_images=1), (Advice.CHECKPOINT_DISTANCE,)),
        (replace(IMAGES, images=63), (Advice.CHECKPOINT_DISTANCE,)),
        (replace(IMAGES, image_bytes=19 * MIB), ()),
        # indexes
        (INDEXES, (Advice.INDEXES,)),
        (replace(INDEXES, index_bytes=29 * MIB), ()),
        # commits
        (COMMITS, (Advice.COMMITS,)),
        (replace(COMMITS, commit_bytes=19 * MIB), ()),
        (replace(COMMITS, commits=1000), ()),  # long records: DDL
        # too little, or not all of the WAL
        (replace(IMAGES, is_filtered=True), ()),
        (replace(IMAGES, bytes=MIB - 1, image_bytes=MIB // 2), ()),
    ],
)
def test_advice_needs_its_evidence(evidence: Evidence, advice: tuple[Advice, ...]) -> None:
    assert headline(evidence).advice == advice


def test_facts_about_the_writers() -> None:
    loaded = headline(replace(CALM, largest_xid=742, largest_xid_bytes=55 * MIB)).text
    assert "wrote 60 % of the WAL, and transaction 742 wrote 55 %;" in loaded
    built = headline(replace(IMAGES, new_page_bytes=60 * MIB)).text
    assert "60 % are pages of built indexes and of rewritten or copied tables;" in built
    some = headline(replace(CALM, is_filtered=True)).text
    assert "60 % of the selected records; only a report of all records can advise." in some
    short = headline(replace(CALM, bytes=200_000, largest_writer=Writer("File 9", 100_000))).text
    assert short == ("File 9 wrote 50 % of the WAL; 195.3 KiB of WAL are too little for advice.")


def test_no_wal() -> None:
    nothing = replace(CALM, bytes=0, largest_writer=None)
    assert headline(nothing).text == "There are no WAL records."


def test_rates_and_distances() -> None:
    minutes = replace(IMAGES, checkpoint_seconds=300.0)
    assert "checkpoints were 5 min and 60.0 MiB apart" in headline(minutes).text
    assert "a second" not in headline(replace(COMMITS, seconds=None)).text


# ---- who writes

NAMES = RelationNames(
    {5: "shop"},
    {
        (5, 100): RelationName("public.orders", "public.orders", is_index=False),
        (5, 101): RelationName("public.orders_pkey", "public.orders", is_index=True),
        (0, 1262): RelationName("pg_catalog.pg_database", "pg_catalog.pg_database", is_index=False),
    },
)


def test_a_table_has_the_bytes_of_its_indexes() -> None:
    rows = [
        (5, 100, "Heap", 40), (5, 101, "Btree", 30), (5, 101, "XLOG", 10), (7, 100, "Heap", 60),
        (None, None, "Transaction", 9), (5, 300, "Gin", 5),
    ]  # fmt: skip
    found, index_bytes = writers(rows, NAMES)
    assert found == Writer("public.orders of database shop", 80, has_parts=True)
    assert index_bytes == 45


def test_files_without_names_and_records_without_files() -> None:
    assert writers([(7, 100, "Heap", 60)], NAMES)[0] == Writer("File 100 of database 7", 60)
    assert writers([(0, 1262, "Heap", 6)], NAMES)[0] == Writer("pg_catalog.pg_database", 6)
    logical = [(None, None, "LogicalMessage", 6), (None, None, "XLOG", 2)]
    assert writers(logical, NAMES)[0] == Writer("LogicalMessage records", 6)
    assert writers([], NAMES) == (None, 0)


def test_the_first_file_of_a_rewritten_table() -> None:
    """Its number is the oid of the table, so its bytes are the table's."""
    tables = [
        Table(oid, file, "public", name, 0, 0, (), ())
        for oid, file, name in ((20000, 30000, "orders"), (20001, 20001, "customers"))
    ]
    catalog = Catalog(
        system_id=1, version_major=16, database_oid=5, database_name="shop", lsn=1,
        wal_level="logical", tables=tables, types=[], ignored={},
    )  # fmt: skip
    names = relation_names([catalog], 1)
    files = (30000, 20000, 20001, 7)
    shown = ["public.orders", "public.orders (file 20000)", "public.customers", "7"]
    assert [names.relation(5, file) for file in files] == shown
    rows = [(5, file, "Heap", 10) for file in files]
    assert writers(rows, names)[0] == Writer("public.orders of database shop", 20)
