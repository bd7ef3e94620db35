"""Values of every type that is decoded, at random and at the edges, as a binary COPY takes them."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable, Iterator
from ipaddress import IPv4Address, IPv6Address

ROWS = 300
_POWERS_MAX = 330
#: each lies next to a shorter number that is half-way to its neighbour
_BESIDE_HALF_WAY = (
    51_654_648.0,
    79_744_496.0,
    1.7999999e10,
    4e23,
    4.2e22,
    24_106_511_017_283_088.0,
)

#: value of a type, in the wire's binary format
Make = Callable[[random.Random], bytes]


def _integer(letter: str) -> Make:
    edges = (0, -1, 1, 1 << 31, (1 << 63) - 1)
    mask = (1 << 8 * struct.calcsize(letter)) - 1

    def make(rng: random.Random) -> bytes:
        value = rng.choice((*edges, rng.getrandbits(64) >> rng.randrange(64))) & mask
        return value.to_bytes(struct.calcsize(letter), "big")

    return make


def _float(letter: str) -> Make:
    """Bits at random; numbers of few digits; integers around the powers of two, and their
    neighbours."""
    size = struct.calcsize(letter)

    def make(rng: random.Random) -> bytes:
        few = f"{rng.randrange(1, 1000)}e{rng.randint(-_POWERS_MAX, _POWERS_MAX)}"
        large = rng.getrandbits(rng.randrange(1, 120))
        some = (float(few), float(large), rng.uniform(-1e7, 1e7), -0.0, float("nan"))
        number = rng.choice((rng.choice(_BESIDE_HALF_WAY), *some))
        try:
            bits = int.from_bytes(struct.pack(f">{letter}", number), "big")
        except OverflowError:
            bits = rng.getrandbits(8 * size)
        bits = rng.choice((bits, bits + rng.randint(-1, 1), rng.getrandbits(8 * size)))
        return (bits % (1 << 8 * size)).to_bytes(size, "big")

    return make


def _bytes(size: int) -> Make:
    return lambda rng: rng.randbytes(size)


def _within(letter: str, low: int, high: int, *edges: int) -> Make:
    def make(rng: random.Random) -> bytes:
        value = rng.choice((rng.randint(low, high), rng.randint(low, high) // 10**6, low, *edges))
        return struct.pack(f">{letter}", value)

    return make


def _timetz(rng: random.Random) -> bytes:
    return struct.pack(">qi", rng.randint(0, 86_400_000_000), rng.randint(-57_599, 57_599))


def _interval(rng: random.Random) -> bytes:
    part = rng.choice((3, 100, 10**6, 1 << 31))
    days, months = (rng.randint(-part, part - 1) for _ in range(2))
    microseconds = rng.choice((0, 1, 10**6)) * rng.randint(-(10**12), 10**12)
    return struct.pack(">qii", microseconds, days, months)


def _numeric(rng: random.Random) -> bytes:
    """A number of digits 0, base 10000, weight, sign, display scale, digits."""
    special = rng.choice((0xC000, 0xD000, 0xF000, None, None, None, None))
    if special is not None and rng.random() < 0.2:
        return struct.pack(">hhHh", 0, 0, special, 32 if special != 0xC000 else 0)
    digits = [rng.randrange(10_000) for _ in range(rng.choice((0, 1, 2, 9, 40)))]
    scale = rng.choice((0, 1, 4, 20, 63, 64, 400))
    sign = rng.choice((0, 0x4000)) if any(digits) else 0
    weight = rng.randint(-20, 60)
    return struct.pack(f">hhHh{len(digits)}h", len(digits), weight, sign, scale, *digits)


def _text(rng: random.Random) -> bytes:
    letters = 'ab"\\\x01\x1f\x7f\n\t\r\b\f/é漢😀 ,{}'
    return "".join(rng.choices(letters, k=rng.choice((0, 1, 5, 200)))).encode()


def _json(rng: random.Random) -> bytes:
    number = f"{rng.randint(-9, 9)}.{rng.getrandbits(40)}e{rng.randint(-30, 30)}"
    text = json.dumps(_text(rng).decode(), ensure_ascii=rng.random() < 0.5)
    return f'{{"a": [{number}, {text}, null, true, {{}}], {text}: {number}}}'.encode()


def _jsonb(rng: random.Random) -> bytes:
    return b"\x01" + _json(rng)


def _network(*, is_cidr: bool) -> Make:
    def make(rng: random.Random) -> bytes:
        size = rng.choice((4, 16))
        mapped = (b"\xff\xff" + rng.randbytes(4)).rjust(size, b"\0")[-size:]
        parts = (rng.randbytes(count).rjust(size, b"\0") for count in (2, 4, size))
        address = rng.choice((*parts, mapped, rng.randbytes(size // 2).ljust(size, b"\0")))
        bits = rng.choice((8 * size, rng.randint(0, 8 * size)))
        if is_cidr:
            number = int.from_bytes(address, "big") >> 8 * size - bits << 8 * size - bits
            address = (IPv4Address if size == 4 else IPv6Address)(number).packed
        return bytes((2 if size == 4 else 3, bits, is_cidr, size)) + address

    return make


def _bits(rng: random.Random) -> bytes:
    length = rng.choice((1, 7, 8, 9, 40))
    size = (length + 7) // 8
    number = rng.getrandbits(length) << 8 * size - length
    return struct.pack(">i", length) + number.to_bytes(size, "big")


def _char(rng: random.Random) -> bytes:
    return bytes([rng.choice((0, 1, 9, 10, 34, 92, 65, 127, 128, 255))])


def _floats(count: int) -> Make:
    make = _float("d")
    return lambda rng: b"".join(make(rng) for _ in range(count))


def _line(rng: random.Random) -> bytes:
    return struct.pack(">d", rng.choice((1.0, -7e-5))) + _floats(2)(rng)


def _circle(rng: random.Random) -> bytes:
    return _floats(2)(rng) + struct.pack(">d", rng.choice((0.0, 1e-9, rng.uniform(0, 1e9))))


def _points(rng: random.Random) -> bytes:
    count = rng.choice((1, 2, 5, 60))
    return struct.pack(">i", count) + _floats(2 * count)(rng)


VALUES: dict[str, Make] = {
    "int2": _integer("h"),
    "int4": _integer("i"),
    "int8": _integer("q"),
    "oid": _integer("i"),
    "xid": _integer("i"),
    "xid8": _integer("q"),
    "pg_lsn": _integer("q"),
    "float4": _float("f"),
    "float8": _float("d"),
    "numeric": _numeric,
    "bool": lambda rng: rng.choice((b"\0", b"\1")),
    "text": _text,
    "name": lambda rng: _text(rng)[:5].decode(errors="ignore").encode(),
    '"char"': _char,
    "bytea": lambda rng: rng.randbytes(rng.choice((0, 1, 30, 300))),
    "date": _within("i", -2_451_545, 2_145_031_948, (1 << 31) - 1, -(1 << 31), 0, -730_120),
    "time": _within("q", 0, 86_400_000_000, 1, 86_400_000_000),
    "timetz": _timetz,
    "timestamp": _within(
        "q", -211_813_488_000_000_000, 9_223_371_331_199_999_999, (1 << 63) - 1, -(1 << 63), -1
    ),
    "timestamptz": _within(
        "q", -211_813_488_000_000_000, 9_223_371_331_199_999_999, (1 << 63) - 1, -(1 << 63), -1
    ),
    "interval": _interval,
    "uuid": _bytes(16),
    "json": _json,
    "jsonb": _jsonb,
    "inet": _network(is_cidr=False),
    "cidr": _network(is_cidr=True),
    "macaddr": _bytes(6),
    "macaddr8": _bytes(8),
    "varbit": _bits,
    "money": _integer("q"),
    "point": _floats(2),
    "lseg": _floats(4),
    "box": _floats(4),
    "line": _line,
    "circle": _circle,
    "path": lambda rng: rng.choice((b"\0", b"\1")) + _points(rng),
    "polygon": _points,
    "tid": lambda rng: struct.pack(">IH", rng.getrandbits(32), rng.getrandbits(16)),
}


def binary_copy(make: Make, rng: random.Random) -> Iterator[bytes]:
    """ROWS of (id int, value), for COPY ... FROM STDIN (FORMAT binary)."""
    yield b"PGCOPY\n\xff\r\n\0" + bytes(8)
    for number in range(ROWS):
        value = make(rng)
        yield struct.pack(">hiii", 2, 4, number, len(value)) + value
    yield struct.pack(">h", -1)
