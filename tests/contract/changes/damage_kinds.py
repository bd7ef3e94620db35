"""Kinds of damage with a checksum that is right: the fields of each kind of record that say how
long or how many, where a value lies, and which bytes a type allows.

A field whose every value is legal is not here, because its damage cannot be noticed: a number or a
letter, the xid, the place of a row, the database of a message, whether a message of a transaction
belongs to it, the time of a commit, which transactions are open, and which
resource manager a record is for. A checksum protects these, and nothing else does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from wal_files import Record

INSERT, DELETE, UPDATE, HOT_UPDATE, TRUNCATE = ((10, op) for op in (0, 0x10, 0x20, 0x40, 0x30))
MULTI_INSERT, COMMIT, RUNNING, MESSAGE = (9, 0x50), (1, 0x00), (8, 0x10), (21, 0x00)
UPDATES = (UPDATE, HOT_UPDATE)

#: flags of main data
_UPDATE_OLD_KEY, _DELETE_OLD_KEY = 0x08, 0x04
_PREFIX, _SUFFIX = 0x20, 0x40
_HAS_IMAGE = 0x10
_HEADER_SIZE = 5
UNKNOWN_FILE = 99_999_999


@dataclass(frozen=True, slots=True)
class Files:
    """File numbers of the tables in which records are damaged."""

    table: int
    toast: int


@dataclass(frozen=True, slots=True)
class Damage:
    """`applies` chooses the records; `change` gets one of them."""

    name: str
    kinds: tuple[tuple[int, int], ...]
    change: Callable[[Record], None]
    applies: Callable[[Record, Files], bool] = lambda record, files: True


def _in_table(record: Record, files: Files) -> bool:
    return record.file == files.table


def _has_tuple(record: Record, files: Files) -> bool:
    return _in_table(record, files) and record.blocks[0].data_length > 0


def _is_chunk(record: Record, files: Files) -> bool:
    return record.file == files.toast and record.blocks[0].data_length > 0


def _has_image(record: Record, files: Files) -> bool:
    return _in_table(record, files) and record.blocks[0].image_length > 0


def _has_part(record: Record, files: Files) -> bool:
    return _in_table(record, files) and bool(_update_flags(record) & (_PREFIX | _SUFFIX))


def _update_flags(record: Record) -> int:
    return record.data[record.main_at + 7]


def _at_tuple(at: int, form: str, amount: int) -> Callable[[Record], None]:
    return lambda record: record.add(record.tuple_at + at, form, amount)


def _at_main(at: int, form: str, amount: int) -> Callable[[Record], None]:
    return lambda record: record.add(record.main_at + at, form, amount)


def _at_block(at: int, form: str, amount: int) -> Callable[[Record], None]:
    return lambda record: record.add(record.blocks[0].header_at + at, form, amount)


def _at_values(at: int, form: str, amount: int) -> Callable[[Record], None]:
    """At an offset in the values of an inserted tuple, which has no NULL."""
    return lambda record: record.add(record.tuple_at + _HEADER_SIZE + 1 + at, form, amount)


def _set_file(record: Record) -> None:
    at = record.blocks[0].relation_at + 8
    record.data[at : at + 4] = UNKNOWN_FILE.to_bytes(4, "little")


def _flip_flags(at: int, mask: int) -> Callable[[Record], None]:
    return lambda record: record.flip(record.main_at + at, mask)


def _at_image(at: int, form: str, amount: int) -> Callable[[Record], None]:
    return lambda record: record.add(record.blocks[0].image_header_at + at, form, amount)


def _at_page(at: int, form: str, amount: int) -> Callable[[Record], None]:
    return lambda record: record.add(record.blocks[0].image_at + at, form, amount)


#: the columns of the damaged table begin: id int, n int, s text of a short value, mood
_S_AT, _MOOD_AT = 8, 12

BELOW_THE_CHECKSUM = (
    # ---- the record's own header and those of its blocks
    Damage("length of the record", (INSERT, *UPDATES, DELETE), lambda r: r.add(0, "<I", 8)),
    Damage("record before", (INSERT, *UPDATES, COMMIT), lambda r: r.add(8, "<Q", 8)),
    Damage("number of a block", (INSERT, *UPDATES), _at_block(0, "B", 40), _in_table),
    Damage("length of a block's data", (INSERT, *UPDATES), _at_block(2, "<H", 1), _in_table),
    Damage("shorter block's data", (INSERT, *UPDATES), _at_block(2, "<H", -1), _has_tuple),
    Damage("image that is not there", (INSERT, DELETE), _at_block(1, "B", _HAS_IMAGE),
           lambda r, f: _in_table(r, f) and not r.blocks[0].image_length),
    Damage("file of a block", (INSERT, *UPDATES, DELETE), _set_file, _in_table),
    # ---- main data
    Damage("old row that is not there", (DELETE,), _flip_flags(7, _DELETE_OLD_KEY), _in_table),
    Damage("old key that is not there", UPDATES, _flip_flags(7, _UPDATE_OLD_KEY), _in_table),
    Damage("more rows", (MULTI_INSERT,), _at_main(2, "<H", 1), _in_table),
    Damage("fewer rows", (MULTI_INSERT,), _at_main(2, "<H", -1), _in_table),
    Damage("more tables", (TRUNCATE,), _at_main(4, "<I", 1)),
    Damage("fewer tables", (TRUNCATE,), _at_main(4, "<I", -1)),
    Damage("no common begin", UPDATES, _flip_flags(7, _PREFIX),
           lambda r, f: _in_table(r, f) and bool(_update_flags(r) & _PREFIX)),
    Damage("common bytes", UPDATES, _at_tuple(0, "<H", 1), _has_part),
    # ---- the tuple
    Damage("more columns", (INSERT,), _at_tuple(0, "<H", 1), _has_tuple),
    Damage("fewer columns", (INSERT,), _at_tuple(0, "<H", -1), _has_tuple),
    Damage("NULLs", (INSERT,), lambda r: r.flip(r.tuple_at + 2, 1), _has_tuple),
    Damage("later values", (INSERT,), _at_tuple(4, "B", 8), _has_tuple),
    Damage("earlier values", (INSERT,), _at_tuple(4, "B", -24), _has_tuple),
    Damage("longer row of COPY", (MULTI_INSERT,), _at_tuple(0, "<H", 4), _has_tuple),
    Damage("shorter row of COPY", (MULTI_INSERT,), _at_tuple(0, "<H", -4), _has_tuple),
    # ---- values
    Damage("longer value", (INSERT,), _at_values(_S_AT, "B", 2), _has_tuple),
    Damage("shorter value", (INSERT,), _at_values(_S_AT, "B", -2), _has_tuple),
    Damage("out-of-line value", (INSERT,), lambda r: _put(r, _S_AT, 1), _has_tuple),
    Damage("compressed value", (INSERT,), lambda r: _put(r, _S_AT, 2), _has_tuple),
    Damage("text that is not UTF-8", (INSERT,), lambda r: _put(r, _S_AT + 1, 0xFF), _has_tuple),
    Damage("unknown label", (INSERT,), _at_values(_MOOD_AT, "<I", 1 << 20), _has_tuple),
    # ---- out-of-line values
    Damage("number of a chunk", (INSERT,), _at_values(4, "<I", 5), _is_chunk),
    Damage("value of a chunk", (INSERT,), _at_values(0, "<I", 1), _is_chunk),
    Damage("chunk without data", (INSERT,), _at_tuple(0, "<H", -1), _is_chunk),
    Damage("file of a chunk", (INSERT,), _set_file, _is_chunk),
    # ---- messages
    Damage("longer prefix", (MESSAGE,), _at_main(8, "<Q", 1)),
    Damage("shorter prefix", (MESSAGE,), _at_main(8, "<Q", -1)),
    Damage("no prefix", (MESSAGE,), lambda r: r.add(r.main_at + 8, "<Q", -_prefix_bytes(r))),
    Damage("prefix in the content", (MESSAGE,), lambda r: _move_prefix(r, 1)),
    Damage("content in the prefix", (MESSAGE,), lambda r: _move_prefix(r, -1)),
    Damage("prefix that is not UTF-8", (MESSAGE,), lambda r: r.flip(r.main_at + 24, 0x80)),
    Damage("zero in the prefix", (MESSAGE,), lambda r: r.add(r.main_at + 24, "B", -ord("e"))),
    Damage("longer content", (MESSAGE,), _at_main(16, "<Q", 1)),
    Damage("shorter content", (MESSAGE,), _at_main(16, "<Q", -1)),
    Damage("neither transactional nor not", (MESSAGE,), _flip_flags(4, 2)),
    Damage("message without its transaction", (MESSAGE,), lambda r: _clear_xid(r),
           lambda r, f: r.data[r.main_at + 4] == 1),
    # ---- transactions
    Damage("parts of a commit", (COMMIT,), lambda r: _set_xinfo(r)),
    Damage("more parts of a commit", (COMMIT,), _at_main(8, "<I", 1 << 4),
           lambda r, f: r.data[16] & 0x80 != 0 and not r.data[r.main_at + 8] & 1 << 4),
    Damage("more open transactions", (RUNNING,), _at_main(0, "<I", 1)),
    Damage("fewer open transactions", (RUNNING,), _at_main(0, "<I", -1)),
)  # fmt: skip

#: Only where pages are followed, with wal_level replica, are images read.
IN_IMAGES = (
    Damage("hole of an image", (INSERT, *UPDATES, DELETE), _at_image(2, "<H", 8), _has_image),
    Damage("length of an image", (INSERT, *UPDATES, DELETE), _at_image(0, "<H", 8), _has_image),
    Damage("end of line pointers", (INSERT, *UPDATES, DELETE), _at_page(12, "<H", -4096),
           _has_image),
    Damage("length of a row on a page", (INSERT, *UPDATES, DELETE),
           lambda r: _all_lines(r, 1 << 17), _has_image),
    Damage("place of a row on a page", (INSERT, *UPDATES, DELETE),
           lambda r: _all_lines(r, 8), _has_image),
    Damage("unused rows on a page", (INSERT, *UPDATES, DELETE),
           lambda r: _all_lines(r, 1 << 15), _has_image),
)  # fmt: skip


def _put(record: Record, at: int, byte: int) -> None:
    record.data[record.tuple_at + _HEADER_SIZE + 1 + at] = byte


def _prefix_bytes(record: Record) -> int:
    return int.from_bytes(record.data[record.main_at + 8 : record.main_at + 16], "little")


def _move_prefix(record: Record, amount: int) -> None:
    """Moves the end of a message's prefix; the length of both parts together is right."""
    record.add(record.main_at + 8, "<Q", amount)
    record.add(record.main_at + 16, "<Q", -amount)


def _clear_xid(record: Record) -> None:
    record.data[4:8] = bytes(4)


def _set_xinfo(record: Record) -> None:
    """Says that a commit has parts, or that it has none."""
    record.data[16] ^= 0x80


def _all_lines(record: Record, amount: int) -> None:
    """Changes all line pointers of a page."""
    page_at = record.blocks[0].image_at
    (lower,) = (int.from_bytes(record.data[page_at + 12 : page_at + 14], "little"),)
    for at in range(24, lower, 4):
        record.add(page_at + at, "<I", amount)
