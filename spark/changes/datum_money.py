"""`money` as text, in the format of `lc_monetary`.

    int64   units of the last digit after the point

The number of digits after the point, the symbols and their places depend on the setting. The
catalog has two samples of it, the texts of 1234567 and of -1234567:

    €-1.234.567,00      before "€-", groups of 3 digits with "." between, "," before 2 digits

Source: Postgres `cash.c` (cash_out).
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass

SAMPLES = (1234567, -1234567)

_I64 = struct.Struct("<q")
#: digits of the samples before the point, with separators
_BODY = re.compile(r"(?P<before>[^0-9]*)(?P<whole>1(?:[^0-9]*[2-7]){6})(?P<rest>.*)", re.DOTALL)
_REST = re.compile(r"(?:(?P<point>[^0-9]+)(?P<fraction>0+))?(?P<after>[^0-9]*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class MoneyFormat:
    """What is printed around and between the digits of an amount."""

    decimals: int
    point: str
    group_size: int
    separator: str
    #: before and after a number that is not negative, and one that is
    around: tuple[tuple[str, str], tuple[str, str]]

    @classmethod
    def of(cls, samples: Sequence[str]) -> MoneyFormat:
        """Raises ValueError if the samples are not the texts of `SAMPLES`."""
        parts = [_parse(sample) for sample in samples]
        if len(parts) != len(SAMPLES):
            raise ValueError(f"expected {len(SAMPLES)} samples of money, found {len(parts)}")
        point, fraction, whole = (parts[0][name] or "" for name in ("point", "fraction", "whole"))
        groups = re.findall("[0-9]+", whole)
        separators = re.findall("[^0-9]+", whole)
        around = [(each["before"] or "", each["after"] or "") for each in parts]
        return cls(
            decimals=len(fraction),
            point=point,
            group_size=len(groups[-1]),
            separator=separators[0] if separators else "",
            around=(around[0], around[1]),
        )

    def text(self, data: bytes) -> str:
        """The output of cash_out. Raises struct.error."""
        (value,) = _I64.unpack(data)
        whole, fraction = self._digits(value)
        begin = len(whole) % self.group_size or self.group_size
        groups = [whole[:begin]]
        groups += [
            whole[at : at + self.group_size] for at in range(begin, len(whole), self.group_size)
        ]
        before, after = self.around[value < 0]
        return f"{before}{self.separator.join(groups)}{self.point}{fraction}{after}"

    def number(self, data: bytes) -> str:
        """The amount as a decimal number. Raises struct.error."""
        (value,) = _I64.unpack(data)
        whole, fraction = self._digits(value)
        return f"{'-' if value < 0 else ''}{whole}{'.' if fraction else ''}{fraction}"

    def _digits(self, value: int) -> tuple[str, str]:
        digits = str(abs(value)).zfill(self.decimals + 1)
        end = len(digits) - self.decimals
        return digits[:end], digits[end:]


def _parse(sample: str) -> dict[str, str | None]:
    body = _BODY.fullmatch(sample)
    rest = _REST.fullmatch(body["rest"]) if body else None
    if body is None or rest is None:
        raise ValueError(f'"{sample}" is not a sample of money')
    return {**body.groupdict(), **rest.groupdict()}
