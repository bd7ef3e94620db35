"""WAL of every kind from a real server; each function is named after the records that it writes."""

from __future__ import annotations

import random
from typing import Any, LiteralString

import psycopg

from quorum_wal.pg_fixtures.data_directory import Setting
from quorum_wal.pg_fixtures.postgres import Postgres
from quorum_wal.pg_fixtures.waiting import wait_until
from quorum_wal.pgwal.lsn import Lsn
from quorum_wal.pgwal.page import WAL_PAGE_SIZE, usable_position

#: All segments stay in pg_wal, and no other client writes.
KEEP_ALL_WAL: dict[str, Setting] = {
    "autovacuum": False,
    "bgwriter_delay": "10s",  # it logs running transactions between its rounds
    "checkpoint_timeout": "1h",
    "max_wal_size": "8GB",
    "wal_keep_size": "4GB",
    "wal_level": "logical",
    "max_prepared_transactions": 10,
    "fsync": False,
    # The walwriter flushes our messages; when it sleeps, it checks only every 25th time.
    "wal_writer_delay": "5ms",
}

_MESSAGE_PREFIX = "p"
#: record header 24, main data header 5, xl_logical_message 24, prefix and its zero byte 2
_MESSAGE_OVERHEAD = 24 + 5 + 24 + 2


def many_kinds(postgres: Postgres) -> None:
    """Tables, indexes of all access methods, subtransactions, prepared transactions, a database."""
    with postgres.connect() as connection:
        for statement in (
            "CREATE TABLE kinds (id serial PRIMARY KEY, n int, t text, p point, a int[])",
            "INSERT INTO kinds (n, t, p, a) SELECT g % 97, md5(g::text), point(g, -g),"
            " ARRAY[g, g % 7] FROM generate_series(1, 3000) g",
            "CREATE INDEX ON kinds USING hash (n)",
            "CREATE INDEX ON kinds USING gin (a)",
            "CREATE INDEX ON kinds USING gist (p)",
            "CREATE INDEX ON kinds USING spgist (t)",
            "CREATE INDEX ON kinds USING brin (n)",
            "INSERT INTO kinds (n, t, p, a) SELECT g % 97, md5(g::text), point(g, g),"
            " ARRAY[g, g % 5] FROM generate_series(1, 1500) g",
            "UPDATE kinds SET n = n + 1 WHERE id % 3 = 0",
            "DELETE FROM kinds WHERE id % 5 = 0",
            "VACUUM kinds",
            "BEGIN",
            "SAVEPOINT a",
            "SELECT id FROM kinds WHERE id < 50 FOR UPDATE",
            "INSERT INTO kinds (n) VALUES (1)",
            "ROLLBACK TO a",
            "INSERT INTO kinds (n) VALUES (2)",
            "PREPARE TRANSACTION 'prepared'",
            "COMMIT PREPARED 'prepared'",
            "CREATE DATABASE other",
            "DROP DATABASE other",
            "TRUNCATE kinds",
        ):
            connection.execute(statement)


def page_images(postgres: Postgres) -> list[str]:
    """Full-page images, compressed in every way the server offers; returns the ways."""
    with postgres.connect() as connection:
        connection.execute(
            "CREATE TABLE images AS SELECT g AS id, repeat(md5(g::text), 6) AS t"
            " FROM generate_series(1, 8000) g"
        )
        ((offered,),) = connection.execute(
            "SELECT coalesce(enumvals, '{on,off}') FROM pg_settings WHERE name = 'wal_compression'"
        ).fetchall()
        methods = sorted({"pglz" if value == "on" else value for value in offered} - {"off"})
        for method in ("off", *methods):
            value = "on" if method == "pglz" else method
            connection.execute(f"SET wal_compression = {value}")
            connection.execute("CHECKPOINT")
            connection.execute("UPDATE images SET t = t WHERE id % 30 = 0")
        connection.execute("SET wal_consistency_checking = 'all'")
        connection.execute("UPDATE images SET t = t WHERE id % 100 = 1")
    return methods


def crash_with_last_message(postgres: Postgres, length: int) -> Lsn:
    """Crashes after a flushed message as the last record; returns where the record starts."""
    with postgres.connect() as connection:
        emit(connection, 20_000)
        start_lsn = insert_lsn(connection)
        wait_flushed(connection, emit(connection, length))
    postgres.crash()
    return start_lsn


def fill(connection: psycopg.Connection[tuple[str]], length: int) -> None:
    """About `length` bytes of WAL, and of table, in records of a quarter of a page."""
    connection.execute("CREATE TABLE IF NOT EXISTS filler (t text)")
    connection.execute(
        "INSERT INTO filler SELECT repeat('x', 1900) FROM generate_series(1, %s)", (length // 1990,)
    )


def long_records(postgres: Postgres, rng: random.Random, bytes_total: int) -> None:
    """Records of a few bytes to a few megabytes, across pages and segments."""
    with postgres.connect() as connection:
        while bytes_total > 0:
            length = int(2 ** rng.uniform(0, 21))
            emit(connection, length)
            bytes_total -= length


def switches(postgres: Postgres) -> None:
    """XLOG_SWITCH at several positions, and where its header just fits, or is split, at a page's
    end."""
    with postgres.connect() as connection:
        for room in (4000, 32, 24, 16, 8):
            emit(connection, 20_000)
            end_record_at(connection, _next(insert_lsn(connection), WAL_PAGE_SIZE) - room)
            connection.execute("SELECT pg_switch_wal()")


def switches_at_segment_end(postgres: Postgres, wal_seg_size: int) -> None:
    """XLOG_SWITCH at the very end of a segment; one that does not fit fills the next segment,
    too.

    A record follows at once: if the walwriter looks before, it is asked to flush the header of the
    next page, which does not exist yet, and ends the server ("xlog write request ... is past end of
    log").
    """
    with postgres.connect() as connection:
        for room in (24, 16, 8):
            advance(connection, wal_seg_size)
            end_record_at(connection, _next(insert_lsn(connection), wal_seg_size) - room)
            connection.execute(
                "SELECT pg_switch_wal(), pg_logical_emit_message(false, %s, repeat('x', 256))",
                (_MESSAGE_PREFIX,),
            )


def last_record_ends_with(postgres: Postgres, unit: int) -> Lsn:
    """The last flushed record ends on a multiple of `unit`; returns that position."""
    with postgres.connect() as connection:
        advance(connection, unit)
        end_lsn = end_record_at(connection, _next(insert_lsn(connection), unit))
        wait_flushed(connection, end_lsn)
        return end_lsn


def advance(connection: psycopg.Connection[tuple[str]], unit: int) -> None:
    """Advance to a position well before the next multiple of `unit`, without a huge message.

    pg_waldump prints messages in full, three characters for each byte.
    """
    emit(connection, 20_000)
    distance = -insert_lsn(connection) % unit
    if distance > 500_000:
        fill(connection, distance - 400_000)


def emit(connection: psycopg.Connection[tuple[str]], length: int) -> Lsn:
    """A logical message of `length` bytes of text; returns the end of its record."""
    return _lsn(
        connection,
        "SELECT pg_logical_emit_message(false, %s, repeat('x', %s))::text",
        (_MESSAGE_PREFIX, length),
    )


def insert_lsn(connection: psycopg.Connection[tuple[str]]) -> Lsn:
    return _lsn(connection, "SELECT pg_current_wal_insert_lsn()::text")


def end_record_at(connection: psycopg.Connection[tuple[str]], target_lsn: int) -> Lsn:
    """Emits a message whose record ends at `target_lsn`, as the server itself confirms."""
    row = connection.execute("SHOW wal_segment_size").fetchone()
    assert row is not None
    wal_seg_size = int(row[0].removesuffix("MB")) << 20
    start = usable_position(insert_lsn(connection), wal_seg_size)
    length = usable_position(target_lsn, wal_seg_size) - start
    assert length >= _MESSAGE_OVERHEAD + 256, "too close for a message with a long header"
    end_lsn = emit(connection, length - _MESSAGE_OVERHEAD)
    assert end_lsn == target_lsn, f"{end_lsn} is not {Lsn(target_lsn)}: somebody else wrote"
    return end_lsn


def wait_flushed(connection: psycopg.Connection[tuple[str]], lsn: Lsn) -> None:
    """Wait until the walwriter has flushed it: no client waits for a message that is not
    transactional."""
    wait_until(
        lambda: _lsn(connection, "SELECT pg_current_wal_flush_lsn()::text") >= lsn,
        10.0,
        f"the WAL to be flushed to {lsn}",
    )


def _lsn(
    connection: psycopg.Connection[tuple[str]], query: LiteralString, parameters: Any = ()
) -> Lsn:
    row = connection.execute(query, parameters).fetchone()
    assert row is not None
    return Lsn.parse(row[0])


def _next(lsn: int, unit: int) -> int:
    """The next multiple of `unit` that leaves room for a message before it."""
    return -(-(lsn + 5000) // unit) * unit
