"""Changes of every shape, made by a real server: all types and all operations."""

from __future__ import annotations

from typing import Any

import psycopg

from quorum_wal.pg_fixtures.postgres import Postgres
from quorum_wal.spark.changes.catalog import Catalog
from quorum_wal.spark.changes.catalog_snapshot import take_catalog

_KINDS = """
CREATE TYPE mood AS ENUM ('sad', 'so so', 'happy');
CREATE DOMAIN percent AS numeric(5, 2) CHECK (value <= 100);
CREATE TABLE kinds (
    id bigint PRIMARY KEY, i2 smallint, i4 integer, i8 bigint, f4 real, f8 double precision,
    n numeric, n2 numeric(12, 3), b boolean, t text, v varchar(20), c char(7), ch "char", nm name,
    by bytea, d date, ti time, tz timetz, ts timestamp, tt timestamptz, iv interval, u uuid,
    j json, jb jsonb, ip inet, ci cidr, ma macaddr, m mood, o oid, l pg_lsn, bi bit(5),
    vb bit varying, p percent,
    ai integer[], at text[], an numeric[], ab boolean[], am mood[], ats timestamptz[], aj jsonb[],
    au uuid[], ad date[], "odd "" name" text
);
"""

_ROWS = (
    """(1, -32768, -2147483648, -9223372036854775808, 1.5, -2.25e-300, -12345.678900, 999999999.999,
    true, 'plain', 'v', 'c', 'q', 'name', '\\x00ff10', '2024-02-29', '23:59:59.5', '12:00:00+05:30',
    '1999-12-31 23:59:59.999999', '2024-01-01 00:00:00+03', '1 year 2 mons -3 days 04:05:06.7',
    'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', '{"a" : [1, 2.50, "x"]}',
    '{"b": {"c": [1.50, null, true, "\\u00e9\\n"]}, "a": 1e3}', '10.1.2.3/24', '10.0.0.0/8',
    '08:00:2b:01:02:03', 'so so', 4000000000, '16/B374D848', '10101', '110', 99.5,
    '{1,NULL,-3}', '{"a b",NULL,"NULL","q\\"x\\\\",""}', '{1.10,NaN}', '{t,f}', '{sad,"so so"}',
    '{"2024-01-01 00:00:00+00",infinity}', ARRAY['{"k": 1}'::jsonb],
    '{a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11}', '{2024-01-01,-infinity}', 'odd')""",
    """(2, 32767, 2147483647, 9223372036854775807, 'NaN', 'Infinity', 'NaN', -0.001, false,
    E'quote " back \\\\ tab \\t nl \\n cr \\r bell \\x07 é 漢 😀', '', '', '', '', '', 'infinity',
    '00:00', '00:00:00-15:59:59', '-infinity', 'infinity', '-178000000 years', NULL, 'null',
    '"scalar"', '::ffff:1.2.3.4', '2001:db8::/32', NULL, 'happy', 0, '0/0', '00000', '', 0,
    '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '')""",
    """(3, 0, 0, 0, 1e-5, 123456789012345678, 1e40, 0, NULL, '', NULL, NULL, NULL, NULL, NULL,
    '0044-03-15 BC', '24:00', '24:00:00+00', '0044-03-15 12:00:00 BC', '4713-01-01 00:00:00+00 BC',
    '-1 mons +2 days -00:00:01', NULL, '[]', '[]', 'fe80::1/64', '::/0', NULL, NULL, NULL, NULL,
    NULL, NULL, NULL, '[2:3]={7,8}', '{{a,b},{c,d}}', '{1e-20,Infinity}', NULL, NULL, NULL,
    NULL, NULL, NULL, NULL)""",
    """(4, 1, 1, 1, 3.4028235e38, 1.7976931348623157e308, 0.00000000000000000000000000000000000012,
    0.1, true, 't', 'v', 'c', 'x', 'n', '\\x', '9999-12-31', '12:00:00.000001', '01:02:03.04-01',
    '9999-12-31 23:59:59.999999', '10000-01-01 00:00:00+00', '00:00', NULL, '1', '-0.50', '::1',
    '::1/128', NULL, 'sad', 1, 'FFFFFFFF/FFFFFFFF', '11111', '1', 100, '{{1,2},{3,4}}', '{","}',
    '{0}', '{NULL}', '{happy}', NULL, '{NULL}', NULL, NULL, NULL)""",
    "(5)",
    """(6, 1, 1, 1, 1e15, 1e15, 1e15, 1, true, 't', 'v', 'c', 'x', 'n', '\\x', '0001-01-01',
    '12:00', '01:02:03', '0001-01-01 00:00:00', '0001-01-01 00:00:00+00', '-1 year', NULL, '1',
    '{"": {}, "x": [[]]}', '::', '::/0', NULL, 'sad', 1, '0/1', '11111', '1', 1.5)""",
)


def _insert_kinds(connection: psycopg.Connection[Any]) -> None:
    for row in _ROWS:
        connection.execute(f"INSERT INTO kinds VALUES {row}")  # type: ignore[arg-type]


def first_half(postgres: Postgres) -> Catalog:
    """Tables that are truncated and rewritten later have their first files; returns the catalog of
    that time."""
    with postgres.connect() as connection:
        for statements in (_KINDS, _TABLES):
            connection.execute(statements)  # type: ignore[arg-type]
        _insert_kinds(connection)
        _toast(connection)
        for statement in _OPERATIONS:
            connection.execute(statement)  # type: ignore[arg-type]
        with connection.cursor().copy("COPY copied FROM STDIN") as copy:
            for number in range(700):
                copy.write_row((number, f"row {number}" if number % 3 else None))
    return take_catalog(postgres.dsn())


def second_half(postgres: Postgres) -> Catalog:
    """TRUNCATE, rewrites, and changes after them; returns the catalog of the end."""
    with postgres.connect() as connection:
        for statement in _LATER:
            connection.execute(statement)  # type: ignore[arg-type]
    return take_catalog(postgres.dsn())


_TABLES = """
CREATE TABLE plain (id int PRIMARY KEY, t text, n int);
CREATE INDEX ON plain (n);
CREATE TABLE copied (id int, t text);
CREATE TABLE whole (id int, a text, b numeric);
ALTER TABLE whole REPLICA IDENTITY FULL;
CREATE TABLE by_index (id int NOT NULL, k text NOT NULL, v text);
CREATE UNIQUE INDEX by_index_k ON by_index (k, id);
ALTER TABLE by_index REPLICA IDENTITY USING INDEX by_index_k;
CREATE TABLE big (id int PRIMARY KEY, t text, j jsonb, b bytea, n int);
CREATE TABLE parted (id int, day date, v text, PRIMARY KEY (id, day)) PARTITION BY RANGE (day);
CREATE TABLE parted_1 PARTITION OF parted FOR VALUES FROM ('2024-01-01') TO ('2024-02-01');
CREATE TABLE parted_2 PARTITION OF parted FOR VALUES FROM ('2024-02-01') TO ('2024-03-01');
CREATE TABLE grown (id int PRIMARY KEY, gone text, kept int, also_gone bigint);
CREATE SCHEMA other;
CREATE TABLE other.plain (a int PRIMARY KEY);
CREATE UNLOGGED TABLE unlogged (a int);
CREATE TEMP TABLE temporary (a int);
CREATE MATERIALIZED VIEW seen AS SELECT 1 AS a;
"""

_OPERATIONS = (
    "INSERT INTO plain SELECT g, 'row ' || g, g % 7 FROM generate_series(1, 300) g",
    "UPDATE plain SET t = t || '!' WHERE id % 50 = 0",
    "UPDATE plain SET n = n + 1 WHERE id % 60 = 0",
    "UPDATE plain SET id = id + 1000 WHERE id IN (3, 5)",
    "DELETE FROM plain WHERE id % 100 = 7",
    "CHECKPOINT",
    "UPDATE plain SET t = 'HOT or not' WHERE id % 40 = 1",
    "INSERT INTO unlogged VALUES (1); INSERT INTO temporary VALUES (1)",
    "REFRESH MATERIALIZED VIEW seen",
    # subtransactions, some of them rolled back
    "BEGIN; INSERT INTO plain VALUES (2000, 'top', 1); SAVEPOINT a;"
    " INSERT INTO plain VALUES (2001, 'a', 1); SAVEPOINT b;"
    " INSERT INTO plain VALUES (2002, 'b', 1); ROLLBACK TO b;"
    " INSERT INTO plain VALUES (2003, 'b2', 1); RELEASE a;"
    " UPDATE plain SET t = 'changed' WHERE id = 2001; COMMIT",
    "BEGIN; INSERT INTO plain VALUES (3000, 'never', 1); SAVEPOINT a;"
    " INSERT INTO plain VALUES (3001, 'never', 1); ROLLBACK",
    "BEGIN; SAVEPOINT a; DELETE FROM plain WHERE id = 2003; COMMIT",
    # two-phase: one commits behind another transaction, one never
    "BEGIN; INSERT INTO plain VALUES (4000, 'prepared', 1); SAVEPOINT a;"
    " INSERT INTO plain VALUES (4001, 'prepared', 1); PREPARE TRANSACTION 'one'",
    "BEGIN; INSERT INTO plain VALUES (4002, 'never', 1); PREPARE TRANSACTION 'two'",
    "INSERT INTO plain VALUES (4003, 'between', 1)",
    "COMMIT PREPARED 'one'",
    "ROLLBACK PREPARED 'two'",
    # conflicts
    "INSERT INTO plain VALUES (1, 'conflict', 1), (5000, 'new', 1) ON CONFLICT DO NOTHING",
    "INSERT INTO plain VALUES (1, 'conflict', 1), (5001, 'new', 1)"
    " ON CONFLICT (id) DO UPDATE SET t = excluded.t",
    "MERGE INTO plain USING (VALUES (1), (5002)) AS s (id) ON plain.id = s.id"
    " WHEN MATCHED THEN DELETE WHEN NOT MATCHED THEN INSERT VALUES (s.id, 'merged', 0)",
    "SELECT * FROM plain WHERE id < 20 FOR UPDATE",
    "CHECKPOINT",
    # replica identities
    "INSERT INTO whole VALUES (1, 'a', 1.50), (2, NULL, NULL)",
    "UPDATE whole SET b = 2.50 WHERE id = 1",
    "INSERT INTO whole VALUES (3, (SELECT string_agg(md5(g::text), '')"
    " FROM generate_series(1, 300) g), 1)",
    "UPDATE whole SET b = 3 WHERE id = 3",
    "DELETE FROM whole",
    "INSERT INTO by_index VALUES (1, 'k1', 'v'), (2, 'k2', 'v')",
    "UPDATE by_index SET v = 'w'",
    "UPDATE by_index SET k = 'k3' WHERE id = 2",
    "DELETE FROM by_index WHERE id = 1",
    # partitions, and a row that moves
    "INSERT INTO parted VALUES (1, '2024-01-10', 'a'), (2, '2024-02-10', 'b')",
    "UPDATE parted SET v = 'c' WHERE id = 2",
    "UPDATE parted SET day = '2024-02-20' WHERE id = 1",
    "DELETE FROM parted WHERE id = 2",
    # columns that go and come
    "INSERT INTO grown VALUES (1, 'x', 10, 100)",
    "ALTER TABLE grown DROP COLUMN gone",
    "INSERT INTO grown VALUES (2, 20, 200)",
    "ALTER TABLE grown ADD COLUMN added text DEFAULT 'the \"default\", {x}',"
    " ADD COLUMN at timestamptz DEFAULT '2024-05-06 07:08:09+00', ADD COLUMN nothing int,"
    " ADD COLUMN list int[] DEFAULT '{1,2}', ADD COLUMN flag bool NOT NULL DEFAULT true",
    "ALTER TABLE grown DROP COLUMN also_gone",
    "UPDATE grown SET kept = kept + 1",
    "INSERT INTO grown VALUES (3, 30, 'new', NULL, 3, NULL, false)",
    "DELETE FROM grown WHERE id = 1",
    "INSERT INTO other.plain VALUES (1)",
    # one transaction over several tables
    "BEGIN; INSERT INTO other.plain VALUES (2); INSERT INTO plain VALUES (6000, 'x', 1);"
    " DELETE FROM other.plain WHERE a = 1; COMMIT",
    "VACUUM plain",
    "VACUUM FREEZE plain",
    "CHECKPOINT",
    "UPDATE plain SET t = 'after vacuum' WHERE id % 50 = 0",
)

_LATER = (
    "TRUNCATE plain, other.plain",
    # into a file that no catalog has seen
    "INSERT INTO plain VALUES (1, 'forgotten', 1)",
    "BEGIN; TRUNCATE plain; INSERT INTO plain VALUES (2, 'in one', 1); COMMIT",
    "TRUNCATE parted",
    "INSERT INTO parted VALUES (9, '2024-01-15', 'z')",
    "INSERT INTO whole VALUES (9, 'rewritten', 1)",
    "VACUUM FULL whole",
    "INSERT INTO whole VALUES (10, 'behind vacuum full', 1)",
    "ALTER TABLE by_index ALTER COLUMN id TYPE bigint",
    "INSERT INTO by_index VALUES (10, 'behind alter', 'v')",
    "CREATE TABLE made AS SELECT g AS id, 'made ' || g AS t FROM generate_series(1, 5) g",
    "CREATE TABLE short (a int); INSERT INTO short VALUES (1), (2); DROP TABLE short",
)


def _toast(connection: psycopg.Connection[Any]) -> None:
    random_text = "(SELECT string_agg(md5((g * %s)::text), '') FROM generate_series(1, %s) g)"
    for number, length in ((1, 70), (2, 400), (3, 3000)):
        connection.execute(
            f"INSERT INTO big VALUES ({number},"  # type: ignore[arg-type]
            f" {random_text % (number, length)},"
            f" jsonb_build_object('k', {random_text % (number + 7, length)}, 'n', {number}.50),"
            f" decode({random_text % (number + 13, length)}, 'hex'), 0)"
        )
    for statement in (
        "INSERT INTO big VALUES (4, repeat('compressible ', 5000), '[1]', NULL, 0)",
        "INSERT INTO big VALUES (5, repeat('x', 2500), NULL,"
        " convert_to(repeat('y', 2500), 'UTF8'), 0)",
        "UPDATE big SET n = n + 1",
        "UPDATE big SET t = reverse(t) WHERE id = 3",
        "BEGIN; INSERT INTO big SELECT 6, t, j, b, 0 FROM big WHERE id = 2;"
        " UPDATE big SET n = 7 WHERE id = 6; COMMIT",
        "BEGIN; SAVEPOINT a; INSERT INTO big SELECT 7, t, j, b, 0 FROM big WHERE id = 2;"
        " ROLLBACK TO a; INSERT INTO big SELECT 8, t || 'z', j, b, 0 FROM big WHERE id = 2; COMMIT",
        "ALTER TABLE big ALTER COLUMN t SET STORAGE EXTERNAL",
        "INSERT INTO big SELECT 9, t, NULL, NULL, 0 FROM big WHERE id = 4",
        "DELETE FROM big WHERE id = 2",
    ):
        connection.execute(statement)  # type: ignore[arg-type]
    with connection.cursor().copy("COPY big FROM STDIN") as copy:
        for number in range(20, 24):
            noise = "".join(chr(48 + (i * i * number) % 71) for i in range(9000))
            copy.write_row((number, noise, '{"copied": true}', None, number))
    connection.execute(
        "CREATE TABLE generated (a int PRIMARY KEY, twice int GENERATED ALWAYS AS (a * 2) STORED)"
    )
    connection.execute("INSERT INTO generated VALUES (21)")
    if connection.info.server_version // 10000 == 18:
        connection.execute("ALTER TABLE generated ADD half int GENERATED ALWAYS AS (a / 2) VIRTUAL")
        connection.execute("ALTER TABLE generated ADD last text DEFAULT 'x'")
        connection.execute("INSERT INTO generated VALUES (22)")
    if connection.info.server_version // 10000 == 15:
        connection.execute("CREATE TABLE documents (x xml)")
        connection.execute("INSERT INTO documents VALUES ('<a>b</a>')")
        connection.execute("SET default_toast_compression = 'lz4'")
        connection.execute("ALTER TABLE big ALTER COLUMN t SET STORAGE EXTENDED")
        connection.execute("INSERT INTO big VALUES (10, repeat('lz4 ', 1000), NULL, NULL, 0)")
        connection.execute(
            "INSERT INTO big VALUES (11, repeat(md5('1') || 'lz4 ', 9000), NULL, NULL, 0)"
        )
