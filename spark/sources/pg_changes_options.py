"""Options of `pg_changes`: the catalog, the table, what to do with rows that could not be decoded,
and the options of `pg_wal` not about records.

Law: an option without an effect is an error, as in `input_options.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial

from quorum_wal.objectstore.errors import ObjectStoreError
from quorum_wal.objectstore.store import open_store
from quorum_wal.spark.changes.catalog import load_catalog
from quorum_wal.spark.changes.change_reader import ChangeOptions
from quorum_wal.spark.changes.change_spill import MEMORY_BYTES
from quorum_wal.spark.changes.debezium_envelope import DebeziumEnvelope, Envelope
from quorum_wal.spark.changes.undecoded_rows import OnUnknown, UndecodedPolicy
from quorum_wal.spark.errors import OptionError
from quorum_wal.spark.inputs.wal_reader import OnDamage
from quorum_wal.spark.sources.input_options import (
    InputOptions,
    parse_choice,
    parse_options,
    parse_size,
)

#: only of this source
CHANGE_OPTIONS = (
    "catalog", "dsn", "table", "messages", "envelope", "topic_prefix", "memory_bytes",
)  # fmt: skip
#: with less, a task would write and read its temporary files too often
MEMORY_BYTES_MIN = 1 << 20
#: options of the dead letter's store are given as dead_letter.endpoint, dead_letter.region, ...
DEAD_LETTER_PREFIX = "dead_letter."
_UNDECODED_OPTIONS = ("on_unknown", "dead_letter_path")
#: only of `pg_wal`: they are about records
_RECORD_OPTIONS = ("columns", "rmgr", "relation", "database", "xid")


def parse_change_options(options: Mapping[str, str]) -> ChangeOptions:
    """The catalog from a file, or read now from `dsn`, which also refreshes it. Raises OptionError,
    CatalogError."""
    given = {name.lower(): text.strip() for name, text in options.items()}
    dsn, paths = given.get("dsn"), given.get("catalog")
    if not dsn and not paths:
        raise OptionError(
            "neither catalog nor dsn is given",
            hint="sk catalog snapshot creates a catalog; dsn reads one when the query starts.",
        )
    refresh = None
    if dsn:
        from quorum_wal.spark.changes.catalog_snapshot import take_catalog  # with psycopg

        refresh = partial(take_catalog, dsn)
    if paths:
        catalog = load_catalog(paths)
    else:
        assert refresh is not None
        catalog = refresh()
    table = catalog.table_named(given["table"]) if given.get("table") else None
    return ChangeOptions(
        catalog, table, refresh,
        messages=_parse_messages(given), undecoded=parse_undecoded(given),
        memory_bytes=_parse_memory(given),
    )  # fmt: skip


def parse_envelope(options: Mapping[str, str], database: str) -> DebeziumEnvelope | None:
    """None: the rows are those of `pg_changes`. Raises OptionError."""
    given = {name.lower(): text.strip() for name, text in options.items()}
    if parse_choice(given, "envelope", Envelope.NONE) is Envelope.NONE:
        if "topic_prefix" in given:
            raise OptionError("option topic_prefix needs envelope=debezium")
        return None
    if given.get("table"):
        raise OptionError(
            "options envelope and table contradict each other: events have JSON, not typed columns",
            hint="Read all tables, and choose the events by their topic.",
        )
    if parse_choice(given, "on_unknown", OnUnknown.FAIL) is OnUnknown.PASS:
        raise OptionError(
            "envelope=debezium and on_unknown=pass contradict each other: an event cannot say what "
            "could not be decoded",
            hint="Set on_unknown=fail or on_unknown=dead_letter.",
        )
    return DebeziumEnvelope(given.get("topic_prefix") or database, database)


def _parse_messages(given: Mapping[str, str]) -> bool:
    """Raises OptionError."""
    text = given.get("messages", "false").lower()
    if text not in ("true", "false"):
        raise OptionError(f'option messages is "{text}", expected true or false')
    if text == "true" and given.get("table"):
        raise OptionError(
            "options messages and table contradict each other: a message belongs to no table",
            hint="Read messages with a query of their own, without table=.",
        )
    return text == "true"


def _parse_memory(given: Mapping[str, str]) -> int:
    """Raises OptionError."""
    size = parse_size(given, "memory_bytes")
    if size is not None and size < MEMORY_BYTES_MIN:
        raise OptionError(
            f"option memory_bytes is {size} bytes, expected at least {MEMORY_BYTES_MIN}"
        )
    return size or MEMORY_BYTES


def undecoded_options(names: Iterable[str]) -> list[str]:
    """Those of the names that `parse_undecoded` reads."""
    return [
        name
        for name in names
        if name.lower() in _UNDECODED_OPTIONS or name.lower().startswith(DEAD_LETTER_PREFIX)
    ]


def parse_undecoded(options: Mapping[str, str]) -> UndecodedPolicy:
    """What to do with rows that could not be decoded. Raises OptionError."""
    given = {name.lower(): text.strip() for name, text in options.items()}
    on_unknown = parse_choice(given, "on_unknown", OnUnknown.FAIL)
    if on_unknown is OnUnknown.FAIL and given.get("on_damage", "").lower() == OnDamage.SKIP.value:
        raise OptionError(
            "on_damage=skip and on_unknown=fail contradict each other: lost WAL is reported as a "
            "row that could not be decoded",
            hint="Set on_unknown=dead_letter or on_unknown=pass.",
        )
    if on_unknown is not OnUnknown.DEAD_LETTER:
        for name in given:
            if name == "dead_letter_path" or name.startswith(DEAD_LETTER_PREFIX):
                raise OptionError(f"option {name} needs on_unknown=dead_letter")
        return UndecodedPolicy(on_unknown)
    url = given.get("dead_letter_path", "")
    if not url:
        raise OptionError(
            "on_unknown=dead_letter needs option dead_letter_path",
            hint="A folder that all executors share, or a URL such as s3://bucket/dead-letter.",
        )
    store = {
        name.removeprefix(DEAD_LETTER_PREFIX): text
        for name, text in given.items()
        if name.startswith(DEAD_LETTER_PREFIX)
    }
    try:
        open_store(url, store)
    except ObjectStoreError as error:
        raise OptionError(f"option dead_letter_path: {error}", hint=error.hint) from error
    return UndecodedPolicy(on_unknown, url, tuple(sorted(store.items())))


def parse_input_options(options: Mapping[str, str], *, is_stream: bool = False) -> InputOptions:
    """The options of the WAL input. Raises OptionError."""
    for name in options:
        if name.lower() in _RECORD_OPTIONS:
            raise OptionError(f'option "{name}" is only for pg_wal', hint="Use table=.")
    known = (*CHANGE_OPTIONS, *map(str.lower, undecoded_options(options)))
    return parse_options(options, known=known, is_stream=is_stream)
