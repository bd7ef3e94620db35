"""Dates and times as text: DateStyle ISO, IntervalStyle postgres, in UTC.

    date         int32   days since 2000-01-01         time      int64   microseconds
    timestamp    int64   microseconds since then       timetz    int64, int32 seconds west of UTC
    timestamptz  int64   the same, UTC                 interval  int64, int32 days, int32 months

The smallest and the largest integer are the infinities. The calendar is Gregorian for all times; a
year before 1 is printed with BC. Source: Postgres `datetime.c`, `timestamp.c`, `date.c`.
"""

from __future__ import annotations

import struct

_SECOND = 1_000_000
_DAY = 86_400 * _SECOND
#: 2000-01-01 in days since 0000-03-01
_EPOCH = 730_425
_DAYS_OF_400_YEARS = 146_097

DATE_INFINITY = (1 << 31) - 1
TIMESTAMP_INFINITY = (1 << 63) - 1

_I32 = struct.Struct("<i")
_I64 = struct.Struct("<q")
_TIMETZ = struct.Struct("<qi")
_INTERVAL = struct.Struct("<qii")
_INFINITE_INTERVAL = ((1 << 63) - 1, (1 << 31) - 1, (1 << 31) - 1)
_INFINITE_PAST = (-(1 << 63), -(1 << 31), -(1 << 31))


def _civil(days: int) -> tuple[int, int, int]:
    """(year, month, day); year 0 is 1 BC."""
    era, day = divmod(days + _EPOCH, _DAYS_OF_400_YEARS)
    year = (day - day // 1460 + day // 36_524 - day // 146_096) // 365
    day -= 365 * year + year // 4 - year // 100
    month = (5 * day + 2) // 153  # March is 0
    day -= (153 * month + 2) // 5
    return era * 400 + year + (month >= 10), (month + 2) % 12 + 1, day + 1


def _date(days: int) -> tuple[str, str]:
    """The date, and " BC" or "" to append."""
    year, month, day = _civil(days)
    era = " BC" if year <= 0 else ""
    return f"{1 - year if year <= 0 else year:04d}-{month:02d}-{day:02d}", era


def _clock(microseconds: int) -> str:
    seconds, fraction = divmod(microseconds, _SECOND)
    minutes, second = divmod(seconds, 60)
    hour, minute = divmod(minutes, 60)
    return f"{hour:02d}:{minute:02d}:{second:02d}{_fraction(fraction)}"


def _fraction(microseconds: int) -> str:
    return f".{microseconds:06d}".rstrip("0") if microseconds else ""


def date_text(data: bytes) -> str:
    (days,) = _I32.unpack(data)
    if days == DATE_INFINITY:
        return "infinity"
    if days == -DATE_INFINITY - 1:
        return "-infinity"
    return "".join(_date(days))


def time_text(data: bytes) -> str:
    return _clock(_I64.unpack(data)[0])


def timetz_text(data: bytes) -> str:
    microseconds, west = _TIMETZ.unpack(data)
    sign = "-" if west > 0 else "+"
    minutes, second = divmod(abs(west), 60)
    hour, minute = divmod(minutes, 60)
    zone = f"{sign}{hour:02d}"
    if minute or second:
        zone += f":{minute:02d}"
    if second:
        zone += f":{second:02d}"
    return _clock(microseconds) + zone


def timestamp_text(data: bytes, zone: str = "", separator: str = " ") -> str:
    (value,) = _I64.unpack(data)
    if value == TIMESTAMP_INFINITY:
        return "infinity"
    if value == -TIMESTAMP_INFINITY - 1:
        return "-infinity"
    days, microseconds = divmod(value, _DAY)
    date, era = _date(days)
    return f"{date}{separator}{_clock(microseconds)}{zone}{era}"


def timestamptz_text(data: bytes) -> str:
    return timestamp_text(data, "+00")


def interval_text(data: bytes) -> str:
    value = _INTERVAL.unpack(data)
    if value == _INFINITE_INTERVAL:
        return "infinity"
    if value == _INFINITE_PAST:
        return "-infinity"
    microseconds, days, months = value
    years = abs(months) // 12 * (1 if months >= 0 else -1)
    months -= 12 * years
    words: list[str] = []
    was_negative = False
    for count, unit in ((years, "year"), (months, "mon"), (days, "day")):
        if count:
            sign = "+" if was_negative and count > 0 else ""
            words.append(f"{sign}{count} {unit}{'' if count == 1 else 's'}")
            was_negative = count < 0
    if microseconds or not words:
        sign = "-" if microseconds < 0 else "+" if was_negative else ""
        words.append(sign + _clock(abs(microseconds)))
    return " ".join(words)
