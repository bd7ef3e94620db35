"""Options of the sources: parses text into an input, a range, columns and a filter.

Laws. An unknown option is an error, and so are options that contradict each other, because a
misspelt filter must not read everything. No message, plan or offset contains a connection string or
an option of a store, because both may have secrets.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import unquote, urlsplit

from quorum_wal.pgwal.errors import LsnSyntaxError
from quorum_wal.pgwal.lsn import Lsn
from quorum_wal.spark.errors import OptionError
from quorum_wal.spark.inputs.archive_input import ArchiveInput
from quorum_wal.spark.inputs.folder_input import FolderInput
from quorum_wal.spark.inputs.joined_input import JoinedInput
from quorum_wal.spark.inputs.segment_file import is_segment_file_name
from quorum_wal.spark.inputs.wal_input import WalInput
from quorum_wal.spark.inputs.wal_reader import OnDamage
from quorum_wal.spark.records.wal_filter import WalFilter
from quorum_wal.spark.sources.column_option import parse_columns

if TYPE_CHECKING:
    from quorum_wal.spark.sources.slot import StreamSlot

#: options of the archive's store are given as archive.endpoint, archive.region, ...
STORE_PREFIX = "archive."
PARTITION_BYTES = 64 << 20

INPUT_OPTIONS = frozenset(
    {
        "path", "safekeepers", "timeline", "tli", "start_lsn", "end_lsn", "start_time", "end_time",
        "columns", "rmgr", "relation", "database", "xid", "on_damage", "partition_bytes",
        "max_bytes_per_batch", "slot",
    }
)  # fmt: skip
_STREAM_OPTIONS = ("max_bytes_per_batch", "slot")
_BATCH_OPTIONS = ("end_lsn", "end_time")

_SIZE = re.compile("(?P<number>[0-9]{1,12}) ?(?P<unit>B|kB|MB|GB|TB)?")
_UNIT_BITS = {"B": 0, "kB": 10, "MB": 20, "GB": 30, "TB": 40}

E = TypeVar("E", bound=Enum)


@dataclass(frozen=True, slots=True)
class InputOptions:
    """The parsed options; nothing has been read yet. `start_lsn` and the times are None if they are
    not given. `is_latest` means start_lsn=latest."""

    wal_input: WalInput = field(repr=False)
    columns: tuple[str, ...]
    wal_filter: WalFilter
    on_damage: OnDamage
    start_lsn: int | None
    end_lsn: int | None
    start_time: datetime | None
    end_time: datetime | None
    is_latest: bool
    partition_bytes: int
    max_bytes_per_batch: int | None
    slot: str | None


def parse_options(
    options: Mapping[str, str], *, known: Iterable[str] = (), is_stream: bool = False
) -> InputOptions:
    """`known` are the source's own options, which are ignored here. Raises OptionError."""
    given = {name.lower(): text.strip() for name, text in options.items()}
    _check_names(given, known)
    _check_contradictions(given, is_stream)
    start = given.get("start_lsn", "")
    parsed = InputOptions(
        wal_input=_input(given),
        columns=parse_columns(given.get("columns")),
        wal_filter=WalFilter(
            rmgrs=frozenset(_list(given.get("rmgr", ""))),
            relations=_numbers(given, "relation"),
            databases=_numbers(given, "database"),
            xids=_numbers(given, "xid"),
        ),
        on_damage=parse_choice(given, "on_damage", OnDamage.FAIL),
        start_lsn=None if start in ("", "earliest", "latest") else _lsn("start_lsn", start),
        end_lsn=_lsn("end_lsn", given["end_lsn"]) if "end_lsn" in given else None,
        start_time=_time(given, "start_time"),
        end_time=_time(given, "end_time"),
        is_latest=start == "latest",
        partition_bytes=parse_size(given, "partition_bytes") or PARTITION_BYTES,
        max_bytes_per_batch=parse_size(given, "max_bytes_per_batch"),
        slot=given.get("slot"),
    )
    start_lsn, end_lsn = parsed.start_lsn, parsed.end_lsn
    if start_lsn is not None and end_lsn is not None and start_lsn > end_lsn:
        raise OptionError(f"start_lsn {Lsn(start_lsn)} is after end_lsn {Lsn(end_lsn)}")
    if is_stream and parsed.on_damage is OnDamage.STOP:
        raise OptionError(
            "on_damage=stop is for batches only",
            hint="A stream stops when it fails; its offset stays before the damage.",
        )
    return parsed


def _check_names(given: Mapping[str, str], known: Iterable[str]) -> None:
    names = INPUT_OPTIONS | set(known)
    for name in given:
        if name not in names and not name.startswith(STORE_PREFIX):
            raise OptionError(
                f'unknown option "{name}"', hint=f"The options are: {', '.join(sorted(names))}."
            )


def _check_contradictions(given: Mapping[str, str], is_stream: bool) -> None:
    for one, other in (("start_lsn", "start_time"), ("end_lsn", "end_time")):
        if one in given and other in given:
            raise OptionError(f"options {one} and {other} contradict each other: give one")
    for name in _BATCH_OPTIONS if is_stream else _STREAM_OPTIONS:
        if name in given:
            kind, other = ("streams", "spark.read") if is_stream else ("batches", "readStream")
            raise OptionError(f"option {name} is not for {kind}", hint=f"Use it with {other}.")
    if "path" not in given and "safekeepers" not in given:
        raise OptionError(
            "neither option path nor option safekeepers says where the WAL is",
            hint="path: an archive's URL or a folder of segments; safekeepers: HOST:PORT,...",
        )
    if "slot" in given and "safekeepers" not in given:
        raise OptionError("option slot needs option safekeepers, which have the slots")
    if "tli" in given and "safekeepers" in given:
        raise OptionError("option tli is not for safekeepers: they serve their newest timeline")


def slot_of(options: InputOptions) -> StreamSlot | None:
    """The slot of option `slot`."""
    if options.slot is None:
        return None
    from quorum_wal.spark.inputs.safekeeper_input import SafekeeperInput  # as in _input
    from quorum_wal.spark.sources.slot import StreamSlot

    wal_input = options.wal_input
    safekeepers = wal_input.safekeepers if isinstance(wal_input, JoinedInput) else wal_input
    assert isinstance(safekeepers, SafekeeperInput)
    return StreamSlot(options.slot, safekeepers.addresses)


def _input(given: Mapping[str, str]) -> WalInput:
    timeline, tli = given.get("timeline"), _number(given, "tli")
    stored = None if "path" not in given else _stored(given, timeline, tli)
    if "safekeepers" not in given:
        assert stored is not None
        return stored
    # Not for all: psycopg takes 0.1 s of each Python process, and Spark starts many.
    from quorum_wal.spark.inputs.safekeeper_input import SafekeeperInput
    from quorum_wal.spark.inputs.safekeeper_session import parse_safekeepers

    safekeepers = SafekeeperInput(parse_safekeepers(given["safekeepers"], timeline))
    if stored is None:
        return safekeepers
    if isinstance(stored, FolderInput):
        raise OptionError(
            "option path names a folder of segments, but safekeepers can be joined only with an "
            "archive",
            hint="Name the archive of these safekeepers, or only one of the two options.",
        )
    return JoinedInput(stored, safekeepers)


def _stored(
    given: Mapping[str, str], timeline: str | None, tli: int | None
) -> FolderInput | ArchiveInput:
    path = given["path"]
    try:
        parts = urlsplit(path)
    except ValueError:  # the message may have credentials
        raise OptionError("option path is not a valid URL") from None
    if parts.username or parts.password:
        raise OptionError(
            "option path must not contain credentials",
            hint="Give them in the environment (AWS_ACCESS_KEY_ID, ...) or as archive.* options.",
        )
    store = {
        n.removeprefix(STORE_PREFIX): t for n, t in given.items() if n.startswith(STORE_PREFIX)
    }
    if parts.scheme in ("", "file"):
        folder = Path(unquote(parts.path) if parts.scheme else path)
        if _has_segments(folder):
            if timeline is not None or store:
                raise OptionError(
                    f"{folder} is a folder of segments: options timeline and archive.* do not "
                    "apply to it",
                    hint="Choose Postgres's timeline with tli.",
                )
            return FolderInput(str(folder), tli)
    return ArchiveInput(path, timeline, tli, tuple(sorted(store.items())))


def _has_segments(folder: Path) -> bool:
    try:
        return any(is_segment_file_name(entry.name) for entry in folder.iterdir())
    except OSError as error:
        raise OptionError(f"could not read folder {folder}: {error.strerror}") from error
    except ValueError as error:  # a zero byte
        raise OptionError(f"could not read folder {str(folder)!r}: {error}") from error


# ---- values


def _list(text: str) -> Sequence[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _lsn(name: str, text: str) -> int:
    try:
        return int(Lsn.parse(text))
    except LsnSyntaxError as error:
        raise OptionError(f"option {name}: {error}", hint="An LSN is like 16/B374D848.") from error


def _time(given: Mapping[str, str], name: str) -> datetime | None:
    if name not in given:
        return None
    try:
        moment = datetime.fromisoformat(given[name])
    except ValueError as error:
        raise OptionError(
            f'option {name}: invalid time "{given[name]}"',
            hint="A time is like 2026-11-21 10:00:00+00; without a zone it is UTC.",
        ) from error
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _number(given: Mapping[str, str], name: str) -> int | None:
    numbers = _numbers(given, name)
    if len(numbers) > 1:
        raise OptionError(f"option {name} takes one number")
    return next(iter(numbers), None)


def _numbers(given: Mapping[str, str], name: str) -> frozenset[int]:
    parts = _list(given.get(name, ""))
    for part in parts:
        if not part.isascii() or not part.isdigit() or len(part) > 10 or int(part) >= 1 << 32:
            raise OptionError(f'option {name}: "{part}" is not a number of 32 bits')
    if name in given and not parts:
        raise OptionError(f"option {name} is empty")
    return frozenset(map(int, parts))


def parse_size(given: Mapping[str, str], name: str) -> int | None:
    """In bytes; None if it is not given. Raises OptionError."""
    if name not in given:
        return None
    match = _SIZE.fullmatch(given[name])
    size = int(match["number"]) << _UNIT_BITS[match["unit"] or "B"] if match else 0
    if size == 0:
        raise OptionError(f'option {name}: "{given[name]}" is not a size', hint="Example: 64MB.")
    return size


def parse_choice(given: Mapping[str, str], name: str, default: E) -> E:
    """The member of an Enum with this value. Raises OptionError."""
    kind = type(default)
    try:
        return kind(given.get(name, default.value).lower())
    except ValueError:
        words = ", ".join(str(member.value) for member in kind)
        raise OptionError(f'option {name}: "{given[name]}" is not one of {words}') from None
