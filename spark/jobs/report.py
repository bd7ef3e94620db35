"""`report`: what writes the WAL. SQL over the rows of `pg_wal`; the answers are small tables.

    pg_wal -> facts: bytes by (64 KiB of WAL, rmgr, operation, database, relation)   one scan, kept
           -> transactions                                                            one scan, kept
           -> blocks                                                                  one scan
    facts, transactions -> Evidence -> Headline

Only transaction records have a time. 64 KiB of WAL get the time of the last transaction that ended
in them, or of the next one. The bytes of a record count for the relation of its first block. Bytes
are those of records, as in `pg_waldump --stats`, without page headers and padding.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from quorum_wal.pgwal.lsn import format_lsn
from quorum_wal.spark.jobs.headline import Evidence, Headline, Writer, headline
from quorum_wal.spark.jobs.relation_names import RelationNames

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: the columns that the source must read
COLUMNS = (
    "lsn", "end_lsn", "xid", "rmgr", "operation", "record_length", "fpi_count", "fpi_bytes",
    "fpi_compressed", "blocks", "xact_time", "subxids",
)  # fmt: skip
ROWS_MAX = 20

#: the resource managers of index methods
INDEX_RMGRS = frozenset({"Btree", "Hash", "Gin", "Gist", "SPGist", "BRIN"})

_FACTS = """
SELECT shiftright(lsn, 16) AS bucket, rmgr, operation,
       get(blocks, 0).database AS database, get(blocks, 0).relfilenode AS relation,
       count(*) AS records, sum(record_length) AS bytes,
       sum(fpi_count) AS images, sum(fpi_bytes) AS image_bytes,
       sum(fpi_compressed) AS compressed_images,
       max(xact_time) AS time, min(lsn) AS lsn, max(end_lsn) AS end_lsn
FROM wal GROUP BY ALL"""

_TIMES = """
SELECT bucket, coalesce(
    first_value(time) IGNORE NULLS OVER (
        ORDER BY bucket ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING),
    last_value(time) IGNORE NULLS OVER (
        ORDER BY bucket ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)) AS time
FROM (SELECT bucket, max(time) AS time FROM facts GROUP BY bucket)"""

_TRANSACTIONS = """
WITH ends AS (SELECT xid AS top, explode_outer(subxids) AS sub FROM wal
              WHERE xact_time IS NOT NULL AND xid > 0),
     tops AS (SELECT sub, first(top) AS top FROM ends WHERE sub IS NOT NULL GROUP BY sub)
SELECT coalesce(tops.top, wal.xid) AS xid, count(*) AS records, sum(record_length) AS bytes,
       min(lsn) AS lsn, max(end_lsn) AS end_lsn, max(xact_time) AS ended_at,
       max_by(operation, lsn) AS operation
FROM wal LEFT JOIN tops ON wal.xid = tops.sub WHERE wal.xid > 0 GROUP BY 1"""

_CHECKPOINT = (
    """rmgr = 'XLOG' AND operation LIKE 'CHECKPOINT_%' AND operation <> 'CHECKPOINT_REDO'"""
)
_COMMIT = "rmgr = 'Transaction' AND operation LIKE 'COMMIT%'"

#: An XLOG record FPI has pages that are written as a whole, and FPI_FOR_HINT a page that is changed
#: after a checkpoint. Source: Postgres `access/transam/xloginsert.c`.
_SUMMARY = f"""
WITH points AS (SELECT records, lsn, end_lsn, times.time AS time
                FROM facts LEFT JOIN times USING (bucket) WHERE {_CHECKPOINT})
SELECT min(lsn) AS lsn, max(end_lsn) AS end_lsn, sum(records) AS records, sum(bytes) AS bytes,
       sum(images) AS images, sum(image_bytes) AS image_bytes,
       sum(compressed_images) AS compressed_images,
       sum(image_bytes) FILTER (WHERE rmgr = 'XLOG' AND operation = 'FPI') AS new_page_bytes,
       sum(records) FILTER (WHERE {_COMMIT}) AS commits,
       sum(bytes) FILTER (WHERE {_COMMIT}) AS commit_bytes,
       sum(records) FILTER (WHERE operation LIKE 'ABORT%' AND rmgr = 'Transaction') AS aborts,
       (SELECT sum(records) FROM points) AS checkpoints,
       (SELECT max(end_lsn) - min(lsn) FROM points) AS checkpoint_bytes,
       (SELECT (unix_micros(max(time)) - unix_micros(min(time))) / 1e6 FROM points)
           AS checkpoint_seconds,
       (SELECT min(time) FROM times) AS first_time, max(time) AS last_time
FROM facts"""

_WRITERS = """
SELECT database, relation, rmgr, sum(bytes) AS bytes FROM facts GROUP BY database, relation, rmgr"""

_AMOUNTS = "sum(records) AS records, sum(bytes) AS bytes, sum(image_bytes) AS image_bytes"

#: title, meaning, SQL; columns `bytes` and `*_bytes` are amounts, `lsn` and `*_lsn` positions
_QUESTIONS = {
    "rmgrs": (
        "By resource manager",
        "Heap records are for tables, Btree records for indexes, Transaction records for commits.",
        f"SELECT rmgr, {_AMOUNTS} FROM facts GROUP BY rmgr ORDER BY bytes DESC",
    ),
    "operations": (
        "By operation",
        "The names of pg_waldump.",
        f"""SELECT rmgr, operation, {_AMOUNTS} FROM facts GROUP BY rmgr, operation
            ORDER BY bytes DESC LIMIT {ROWS_MAX}""",
    ),
    "relations": (
        "By relation",
        "Tables and indexes, by file.",
        f"""SELECT database, relation, {_AMOUNTS} FROM facts WHERE relation IS NOT NULL
            GROUP BY database, relation ORDER BY bytes DESC LIMIT {ROWS_MAX}""",
    ),
    "databases": (
        "By database",
        "Database 0 has the shared catalogs; records without a block have no database.",
        f"SELECT database, {_AMOUNTS} FROM facts GROUP BY database ORDER BY bytes DESC",
    ),
    "minutes": (
        "By time",
        "Bytes and commits of each {unit}.",
        f"""SELECT date_trunc('{{unit}}', times.time) AS time, rmgr, sum(bytes) AS bytes,
                  sum(image_bytes) AS image_bytes,
                  sum(records) FILTER (WHERE {_COMMIT}) AS commits
           FROM facts JOIN times USING (bucket) WHERE times.time IS NOT NULL
           GROUP BY ALL ORDER BY time, rmgr""",
    ),
    "checkpoints": (
        "Checkpoints",
        "The WAL from each checkpoint to the next. Page images are frequent after a checkpoint.",
        f"""WITH points AS (SELECT bucket, min(lsn) AS lsn FROM facts WHERE {_CHECKPOINT}
                           GROUP BY bucket),
                spans AS (SELECT lsn, bucket, lead(bucket) OVER (ORDER BY bucket) AS next
                          FROM points)
           SELECT spans.lsn, sum(bytes) AS bytes, sum(image_bytes) AS image_bytes,
                  round(100 * sum(image_bytes) / sum(bytes), 1) AS image_percent
           FROM spans JOIN facts ON facts.bucket >= spans.bucket
                                AND (spans.next IS NULL OR facts.bucket < spans.next)
           GROUP BY spans.lsn ORDER BY spans.lsn""",
    ),
    "largest": (
        "Largest transactions",
        "By the bytes of their records, including subtransactions.",
        f"""SELECT xid, operation, records, bytes, lsn, end_lsn, ended_at FROM transactions
            ORDER BY bytes DESC, xid LIMIT {ROWS_MAX}""",
    ),
    "longest": (
        "Longest transactions",
        "From the first record to the end: the WAL that all wrote in between, and the time.",
        f"""SELECT xid, operation, end_lsn - lsn AS span_bytes,
                   round(unix_micros(ended_at) / 1e6 - unix_micros(times.time) / 1e6, 1) AS seconds,
                   lsn, end_lsn, ended_at
            FROM transactions LEFT JOIN times ON times.bucket = shiftright(lsn, 16)
            WHERE ended_at IS NOT NULL ORDER BY span_bytes DESC, xid LIMIT {ROWS_MAX}""",
    ),
    "blocks": (
        "Hot blocks",
        "The blocks that most records change.",
        f"""SELECT b.database, b.relfilenode AS relation, b.fork, b.block, count(*) AS records,
                   sum(CAST(b.has_image AS INT)) AS images
            FROM (SELECT explode(blocks) AS b FROM wal) GROUP BY ALL
            ORDER BY records DESC, relation, block LIMIT {ROWS_MAX}""",
    ),
    "hot": (
        "HOT updates",
        "Updates without new index entries. If the share is low, try a lower fillfactor.",
        f"""SELECT database, relation,
                   coalesce(sum(records) FILTER (WHERE operation LIKE 'HOT_UPDATE%'), 0) AS hot,
                   sum(records) AS updates,
                   round(100 * coalesce(sum(records) FILTER (
                       WHERE operation LIKE 'HOT_UPDATE%'), 0) / sum(records), 1) AS hot_percent
            FROM facts WHERE rmgr = 'Heap' AND operation LIKE '%UPDATE%'
            GROUP BY database, relation ORDER BY updates DESC LIMIT {ROWS_MAX}""",
    ),
}


@dataclass(frozen=True, slots=True)
class Answer:
    """A table. Values are str, int, float, datetime or None."""

    title: str
    meaning: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]


@dataclass(frozen=True, slots=True)
class Report:
    """`summary`: the one row, by column name. `answers`: by the names above."""

    source: str
    headline: Headline
    summary: Mapping[str, Any]
    answers: Mapping[str, Answer]

    def as_json(self) -> dict[str, Any]:
        """Each answer becomes a list of objects."""
        rows = {
            name: [dict(zip(answer.columns, row, strict=True)) for row in answer.rows]
            for name, answer in self.answers.items()
        }
        advice = [each.value for each in self.headline.advice]
        return {
            "source": self.source,
            "headline": self.headline.text,
            "advice": advice,
            "summary": self.summary,
            **rows,
        }


def report(
    session: SparkSession,
    wal: DataFrame,
    source: str,
    names: RelationNames = RelationNames(),  # noqa: B008
    is_filtered: bool = False,
) -> Report:
    """`wal` has COLUMNS; `source` is its name in the report. `is_filtered`: the options of `wal`
    select some of the records."""
    wal.createOrReplaceTempView("wal")
    kept = []
    for view, query in (("facts", _FACTS), ("times", _TIMES), ("transactions", _TRANSACTIONS)):
        frame = session.sql(query).persist()
        frame.createOrReplaceTempView(view)
        kept.append(frame)
    try:
        summary = session.sql(_SUMMARY).first()
        assert summary is not None
        found = headline(_evidence(session, summary.asDict(), names, is_filtered))
        unit = _unit(summary.first_time, summary.last_time)
        answers = {
            name: _answer(
                session,
                title,
                meaning.replace("{unit}", unit),
                query.replace("{unit}", unit),
                names,
            )
            for name, (title, meaning, query) in _QUESTIONS.items()
        }
    finally:
        for frame in kept:
            frame.unpersist()
    return Report(source, found, summary.asDict(), answers)


def _evidence(
    session: SparkSession, summary: Mapping[str, Any], names: RelationNames, is_filtered: bool
) -> Evidence:
    def amount(column: str) -> int:
        return summary[column] or 0

    first, last = summary["first_time"], summary["last_time"]
    largest = session.sql("SELECT xid, bytes FROM transactions ORDER BY bytes DESC, xid").first()
    writer, index_bytes = writers([tuple(row) for row in session.sql(_WRITERS).collect()], names)
    return Evidence(
        bytes=amount("bytes"),
        images=amount("images"),
        compressed_images=amount("compressed_images"),
        image_bytes=amount("image_bytes"),
        new_page_bytes=amount("new_page_bytes"),
        index_bytes=index_bytes,
        commits=amount("commits"),
        commit_bytes=amount("commit_bytes"),
        seconds=(last - first).total_seconds() if first and last else None,
        checkpoints=amount("checkpoints"),
        checkpoint_seconds=summary["checkpoint_seconds"],
        checkpoint_bytes=amount("checkpoint_bytes"),
        largest_writer=writer,
        largest_xid=largest.xid if largest else 0,
        largest_xid_bytes=largest.bytes if largest else 0,
        is_filtered=is_filtered,
    )


def writers(
    rows: Iterable[tuple[int | None, int | None, str | None, int]], names: RelationNames
) -> tuple[Writer | None, int]:
    """The largest writer, and the bytes of all indexes. Rows: database, relation, rmgr, bytes.

    A table has the bytes of its indexes and of its TOAST table as far as `names` knows them.
    """
    sums: dict[str, int] = {}
    parts: set[str] = set()
    index_bytes = 0
    for database, relation, rmgr, size in rows:
        known = None
        if database is None or relation is None:
            name = f"{rmgr or 'unknown'} records"
        else:
            known = names.relations.get((database, relation))
            place = f" of database {names.database(database)}" if database else ""
            name = f"{known.table if known else f'File {relation}'}{place}"
            if known is not None and known.table != known.name:
                parts.add(name)
        sums[name] = sums.get(name, 0) + size
        if rmgr in INDEX_RMGRS or (known is not None and known.is_index):
            index_bytes += size
    if not sums:
        return None, 0
    largest = min(sums, key=lambda name: (-sums[name], name))
    return Writer(largest, sums[largest], largest in parts), index_bytes


def _unit(first: Any, last: Any) -> str:
    """The unit of the time axis, so that it has at most a few hundred points."""
    seconds = (last - first).total_seconds() if first and last else 0
    return "second" if seconds < 300 else "minute" if seconds < 86400 else "hour"


def _answer(
    session: SparkSession,
    title: str,
    meaning: str,
    query: str,
    names: RelationNames,
) -> Answer:
    frame = session.sql(query)
    columns = tuple(frame.columns)
    rows = tuple(_row(columns, tuple(row), names) for row in frame.collect())
    return Answer(title, meaning, columns, rows)


def _row(columns: tuple[str, ...], row: tuple[Any, ...], names: RelationNames) -> tuple[Any, ...]:
    """Formats positions as text, and replaces the numbers of relations and databases by names."""
    by_column = dict(zip(columns, row, strict=True))
    for column, value in by_column.items():
        if column in ("lsn", "end_lsn") and value is not None:
            by_column[column] = format_lsn(value)
    database = by_column.get("database")
    if database is not None:
        by_column["database"] = names.database(database)
        if by_column.get("relation") is not None:
            by_column["relation"] = names.relation(database, by_column["relation"])
    return tuple(by_column.values())
