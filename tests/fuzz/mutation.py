"""Mutations of valid encodings: of bytes and of texts, and wrong numbers.

Everything is drawn from the given `Random`: a seed determines a case.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from random import Random

GROWN_LENGTH_MAX = 20_000
ACCIDENTS_MAX = 4
LIES = (0, 1, 3, 4, 5, 0x7F, 0xFF, 0x7FFF, 0xFFFF, 2**31 - 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1)
# Big-endian on the wire, little-endian in WAL.
NUMBERS = tuple(struct.Struct(order + size) for order in "<>" for size in "BHIQ")
ODD_TEXTS = (
    *("", " ", "\t", "\n", "\r\n", "\0", "'", '"', "''", '""', "\\", "/", ":", ",", ";", "=", "#"),
    *("-", "--", "-c ", "$", "(", ")", "[", "]", "{", "}", ".", "%", "0x", "1e9", "nan", "inf"),
    *("\u0661", "\U0001d7d7", "\u00b2", "\u2028", "\x1c", "\x85", "\ufeff", "\u00e9", "\u00df"),
    *(
        "\udc80",
        "\x7f",
        "-1",
        "0",
        "18446744073709551616",
        "9" * 5000,
        "0x" + "f" * 5000,
        "[" * 5000,
    ),
)


def mutate(random: Random, seeds: Sequence[bytes]) -> bytes:
    """One of the seeds with a few mutations; sometimes noise, or an unchanged seed."""
    dice = random.random()
    if dice < 0.05:
        return random.randbytes(random.choice((0, 1, 2, 8, 40, 300)))
    data = bytearray(random.choice(seeds))
    for _ in range(random.randint(0, ACCIDENTS_MAX)):
        mutate_bytes(random, data, seeds)
    if dice > 0.95:
        _grow(random, data)
    return bytes(data)


def mutate_bytes(random: Random, data: bytearray, others: Sequence[bytes] = (b"",)) -> None:
    """One mutation."""
    at = random.randrange(len(data) + 1)
    match random.randrange(8):
        case 0:  # flip one bit
            if at < len(data):
                data[at] ^= 1 << random.randrange(8)
        case 1:  # change some bytes
            for _ in range(random.randint(1, 8)):
                if data:
                    data[random.randrange(len(data))] = random.randrange(256)
        case 2:  # cut the end
            del data[at:]
        case 3:  # repeat a part
            data[at:at] = data[at : at + random.randint(1, 64)]
        case 4:  # remove a part
            del data[at : at + random.randint(1, 64)]
        case 5:  # insert noise
            data[at:at] = random.randbytes(random.randint(1, 32))
        case 6:  # change a number
            number = random.choice(NUMBERS)
            lie = random.choice(LIES) & ((1 << 8 * number.size) - 1)
            data[at : at + number.size] = number.pack(lie)
        case 7:  # take the rest from another seed
            other = random.choice(others)
            data[at:] = other[random.randrange(len(other) + 1) :]


def _grow(random: Random, data: bytearray) -> None:
    """Repeat a part many times: parsers with more than linear time take long now."""
    begin = random.randrange(len(data) + 1)
    part = data[begin : begin + random.randint(1, 64)] or b"\0"
    data[begin:begin] = part * (GROWN_LENGTH_MAX // len(part))


def mutate_text(random: Random, seeds: Sequence[str]) -> str:
    """As mutate(), on characters; half of the time words of another seed are inserted."""
    dice = random.random()
    text = random.choice(seeds)
    for _ in range(random.randint(0, ACCIDENTS_MAX)):
        text = _mutate_text_once(random, text, seeds)
    if dice > 0.95:
        begin = random.randrange(len(text) + 1)
        part = text[begin : begin + random.randint(1, 16)] or "a"
        text = text[:begin] + part * (GROWN_LENGTH_MAX // len(part)) + text[begin:]
    return text


def _mutate_text_once(random: Random, text: str, seeds: Sequence[str]) -> str:
    at = random.randrange(len(text) + 1)
    size = random.randint(1, 16)
    match random.randrange(7):
        case 0:  # insert an odd character
            return text[:at] + random.choice(ODD_TEXTS) + text[at:]
        case 1:  # replace a part
            return text[:at] + random.choice(ODD_TEXTS) + text[at + size :]
        case 2:
            return text[:at]
        case 3:
            return text[:at] + text[at + size :]
        case 4:
            return text[:at] + text[at : at + size] + text[at:]
        case 5:  # change the case of a letter
            return text[:at] + text[at : at + 1].swapcase() + text[at + 1 :]
        case _:  # take the rest from another seed
            other = random.choice(seeds)
            return text[:at] + other[random.randrange(len(other) + 1) :]


def split(random: Random, data: bytes) -> list[bytes]:
    """The same bytes in random pieces, some of them empty."""
    cuts = sorted(random.randrange(len(data) + 1) for _ in range(random.randint(0, 12)))
    return [data[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]
