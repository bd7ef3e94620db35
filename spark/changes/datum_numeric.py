"""`numeric` as text.

    short   | header 2 | digits, 2 bytes each |    10sdddddd dwwwwwww  sign, display scale, weight
    long    | header 2 | weight 2 | digits    |    ssdddddd dddddddd   sign, display scale
    special | header 2 |                           NaN C000, Infinity D000, -Infinity F000

Digits are of base 10000; the first has the weight 10000 ** weight. Source: Postgres `numeric.c`.
"""

from __future__ import annotations

import struct

_SPECIAL = {0xC000: "NaN", 0xD000: "Infinity", 0xF000: "-Infinity"}


def numeric_text(data: bytes) -> str:
    """The output of numeric_out. Raises ValueError, struct.error on damage."""
    (header,) = struct.unpack_from("<H", data)
    if header & 0xC000 == 0xC000:
        if header & 0xF000 not in _SPECIAL:
            raise ValueError(f"numeric with header {header:04X}")
        return _SPECIAL[header & 0xF000]
    if header & 0x8000:
        is_negative = header & 0x2000 != 0
        scale = (header & 0x1F80) >> 7
        weight = (header & 0x3F) - (0x40 if header & 0x40 else 0)
        begin = 2
    else:
        is_negative = header & 0x4000 != 0
        scale = header & 0x3FFF
        (weight,) = struct.unpack_from("<h", data, 2)
        begin = 4
    digits = struct.unpack_from(f"<{(len(data) - begin) // 2}H", data, begin)
    whole = "".join(_group(digits, weight - power) for power in range(weight, -1, -1))
    count = (scale + 3) // 4
    fraction = "".join(_group(digits, weight + 1 + i) for i in range(count))[:scale]
    text = ("-" if is_negative else "") + (whole.lstrip("0") or "0")
    return f"{text}.{fraction}" if fraction else text


def _group(digits: tuple[int, ...], index: int) -> str:
    """Four decimals; zeros before the first and after the last stored digit."""
    return f"{digits[index]:04d}" if 0 <= index < len(digits) else "0000"
