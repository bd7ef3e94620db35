"""`Lsn`: a position in the WAL, printed as Postgres prints it (`16/B374D848`).


Use it at interfaces and in messages. Inside decode loops use plain ints, which compare and add ten
times faster. Source: Postgres `access/xlogdefs.h`, `pg_lsn.c`.
"""

from __future__ import annotations

from quorum_wal.pgwal.errors import LsnSyntaxError

LSN_MAX = 0xFFFFFFFFFFFFFFFF


class Lsn(int):
    """A byte position in the WAL, 0 <= lsn < 2**64. 0 means "no position" (InvalidXLogRecPtr).


    `Lsn + int -> Lsn`, `Lsn - Lsn -> int`; all other arithmetic is int's.
    """

    __slots__ = ()

    @classmethod
    def parse(cls, text: str) -> Lsn:
        """`Lsn.parse("16/B374D848")`. Raises LsnSyntaxError, as pg_lsn_in() would."""
        high, slash, low = text.partition("/")
        if not slash or not _is_hex(high) or not _is_hex(low):
            raise LsnSyntaxError(
                f"invalid LSN {text!r}: expected two hex numbers as in 16/B374D848"
            )
        return cls(int(high, 16) << 32 | int(low, 16))

    def __add__(self, other: int) -> Lsn:
        return Lsn(int(self) + other)

    def __str__(self) -> str:
        return f"{self >> 32:X}/{self & 0xFFFFFFFF:X}"

    def __format__(self, spec: str) -> str:
        return (
            format(str(self), spec)
            if spec in ("", "s") or spec[-1:] == "s"
            else format(int(self), spec)
        )

    def __repr__(self) -> str:
        return f"Lsn({self})"


def _is_hex(text: str) -> bool:
    return 1 <= len(text) <= 8 and all(c in "0123456789abcdefABCDEF" for c in text)


def format_lsn(lsn: int) -> str:
    """The text of a plain int position, for messages built inside loops and cores."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"
