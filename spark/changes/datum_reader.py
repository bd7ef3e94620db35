"""`Reader`: the two printers of a type; and the kinds of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from quorum_wal.spark.changes.datum_jsonb import json_string

Printer = Callable[[bytes], str]


@dataclass(frozen=True, slots=True)
class Reader:
    """The printers for a plain value; a varlena has no header here."""

    text: Printer
    json: Printer
    #: for typed columns without a matching type: whether JSON is better than text, as for arrays
    is_json: bool = False
    #: prints a decimal number, for a typed column of decimals
    number: Printer | None = None
    #: why a value, or a part of it, is printed as its stored bytes; "" if none of it is
    undecoded: str = ""

    @property
    def typed(self) -> Printer:
        """The printer for typed columns."""
        return self.number or (self.json if self.is_json else self.text)


def string_reader(text: Printer) -> Reader:
    """JSON is the text as a string."""
    return Reader(text, lambda data: json_string(text(data)))


def number_reader(text: Printer) -> Reader:
    """JSON is the text; NaN and the infinities are not JSON numbers, and are quoted."""

    def print_json(data: bytes) -> str:
        number = text(data)
        return f'"{number}"' if number[-1] in "Ny" else number

    return Reader(text, print_json)


def bytes_reader(reason: str) -> Reader:
    """Prints the stored bytes as bytea does."""
    return Reader(bytes_text, lambda data: json_string(bytes_text(data)), undecoded=reason)


def bytes_text(data: bytes) -> str:
    return "\\x" + data.hex()
