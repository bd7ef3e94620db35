"""Random values of types that consist of others, and of types with a format of their own, as SQL.

Each maker returns an expression of the type. The server evaluates it, and orders the bounds of a
range.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

Make = Callable[[random.Random], str]

MOODS = ("sad", "so so", 'happy "!"')
TYPES = """
CREATE TYPE mood AS ENUM ('sad', 'so so', 'happy "!"');
CREATE DOMAIN short AS text CHECK (length(value) < 100000);
CREATE TYPE pair AS (a int, "b ""q" text);
CREATE TYPE grown AS (gone text, a smallint, also_gone bigint, t text);
CREATE TABLE grown_values (id int, v grown);
INSERT INTO grown_values VALUES (1, ROW('gone', 1, 2, 'kept')), (2, ROW(NULL, NULL, NULL, NULL));
ALTER TYPE grown DROP ATTRIBUTE gone, DROP ATTRIBUTE also_gone, ADD ATTRIBUTE added numeric[];
INSERT INTO grown_values VALUES (3, ROW(3, 'new', '{1.50,NULL}'));
CREATE TYPE nothing AS ();
CREATE DOMAIN whole_pair AS pair CHECK ((value).a IS NULL OR (value).a < 2147483647);
CREATE TYPE text_range AS RANGE (subtype = text, multirange_type_name = text_ranges);
CREATE TYPE short_range AS RANGE (subtype = short, multirange_type_name = short_ranges);
CREATE TYPE pair_range AS RANGE (subtype = pair, multirange_type_name = pair_ranges);
CREATE TYPE float_range AS RANGE (subtype = float4, multirange_type_name = float_ranges);
CREATE DOMAIN positive AS int4range CHECK (lower(value) > -1000000000);
CREATE TABLE some_row (c char(5), i interval, m mood, j jsonb, b bytea);
ALTER TABLE some_row DROP COLUMN i;
CREATE TYPE nested AS (p pair, l pair[], r int4range, mr text_ranges, m mood, d timestamptz,
    j json, b bool, f float8, w whole_pair, c char(3), vb varbit);
"""

_LETTERS = "ab\"\\\x01\x1f\x7f\n\t\r\v\f\b/é漢😀 ,{}()[]'."


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _text(rng: random.Random) -> str:
    length = rng.choice((0, 1, 1, 2, 5, 5, 30))
    some = rng.choice(("NULL", "null", "empty", "".join(rng.choices(_LETTERS, k=length))))
    if rng.random() < 0.97:
        return quoted(some)
    # Compressed, and out of line.
    noise = "".join(chr(rng.randrange(0x20, 0x250)) for _ in range(3000))
    return quoted(rng.choice((f"{some}x" * 1500, noise.replace("\x7f", ""))))


def _int4(rng: random.Random) -> str:
    return (
        f"({rng.choice((0, -(1 << 31), (1 << 31) - 2, rng.randint(-9, 9), rng.getrandbits(30)))})"
    )


def _int8(rng: random.Random) -> str:
    return f"({rng.choice((0, -(1 << 63) + 1, (1 << 63) - 2, rng.randint(-9, 9)))}::int8)"


def _numeric(rng: random.Random) -> str:
    number = f"{rng.randint(-9, 9)}.{rng.getrandbits(rng.randint(1, 90))}e{rng.randint(-30, 30)}"
    return f"'{rng.choice((number, 'NaN', '0.00', 'Infinity'))}'::numeric"


def _float8(rng: random.Random) -> str:
    few = f"{rng.randrange(1, 1000)}e{rng.randint(-300, 300)}"
    some = (few, str(rng.uniform(-1e7, 1e7)), str(rng.randint(-9, 9)), "-0", "Infinity", "1e-5")
    return f"'{rng.choice(some)}'::float8"


def _float4(rng: random.Random) -> str:
    return f"'{rng.choice((rng.uniform(-1e7, 1e7), 0.1, 1e30, 51654648.0))}'::float4"


def _date(rng: random.Random) -> str:
    some = f"{rng.randint(1, 9999):04d}-{rng.randint(1, 12):02d}-{rng.randint(1, 28):02d}"
    return f"'{rng.choice((some, 'infinity', '-infinity', '0044-03-15 BC'))}'::date"


def _timestamp(rng: random.Random) -> str:
    return f"({_date(rng)} + interval '{rng.randrange(10**12)} microseconds')::timestamp"


def _timestamptz(rng: random.Random) -> str:
    return f"({_timestamp(rng)} AT TIME ZONE 'UTC')"


def _bool(rng: random.Random) -> str:
    return rng.choice(("true", "false"))


def _mood(rng: random.Random) -> str:
    return f"{quoted(rng.choice(MOODS))}::mood"


def _bits(rng: random.Random) -> str:
    return f"B'{''.join(rng.choices('01', k=rng.choice((0, 1, 7, 8, 9, 40))))}'::varbit"


def _jsonb(rng: random.Random) -> str:
    return f"jsonb_build_object({_text(rng)}::text, {_numeric(rng)}, 'k', jsonb_build_array(null))"


def or_null(make: Make) -> Make:
    return lambda rng: "NULL" if rng.random() < 0.2 else make(rng)


def _row(type_name: str, *makes: Make) -> Make:
    def make(rng: random.Random) -> str:
        return f"ROW({', '.join(or_null(each)(rng) for each in makes)})::{type_name}"

    return make


def array_of(type_name: str, make: Make) -> Make:
    def make_array(rng: random.Random) -> str:
        count = rng.choice((0, 1, 2, 3, 9))
        items = ", ".join(or_null(make)(rng) for _ in range(count))
        if rng.random() < 0.1:
            return f"ARRAY[[{make(rng)}, NULL], [{make(rng)}, {make(rng)}]]::{type_name}[]"
        if rng.random() < 0.1:
            return f"array_fill({make(rng)}::{type_name}, '{{2, 1}}', '{{0, -3}}')"
        return f"ARRAY[{items}]::{type_name}[]"

    return make_array


def _range(type_name: str, subtype: str, bound: Make) -> Make:
    def make(rng: random.Random) -> str:
        first, second = bound(rng), bound(rng)
        lower = f"least({first}, {second})::{subtype}"
        upper = f"greatest({first}, {second})::{subtype}"
        flags = rng.choice(("[]", "[)", "(]", "()"))
        match rng.randrange(6):
            case 0:
                return f"'empty'::{type_name}"
            case 1:
                return f"{type_name}(NULL, {upper}, '{flags}')"
            case 2:
                return f"{type_name}({lower}, NULL, '{flags}')"
            case 3:
                return f"{type_name}(NULL, NULL, '{flags}')"
        return f"{type_name}({lower}, {upper}, '{flags}')"

    return make


def _ranges(type_name: str, one: Make) -> Make:
    def make(rng: random.Random) -> str:
        count = rng.choice((0, 1, 2, 3, 12))
        return f"{type_name}({', '.join(one(rng) for _ in range(count))})"

    return make


def _lexeme(rng: random.Random) -> str:
    letters = "".join(rng.choices("ab'\\é漢 :&", k=rng.choice((1, 2, 6))))
    return "'" + letters.replace("\\", "\\\\").replace("'", "''") + "'"


def _tsvector(rng: random.Random) -> str:
    words = []
    for _ in range(rng.choice((0, 1, 2, 6, 6, 300))):
        places = ",".join(
            f"{rng.randint(1, 16383)}{rng.choice(('', 'A', 'B', 'C', 'D'))}"
            for _ in range(rng.choice((0, 1, 4)))
        )
        words.append(_lexeme(rng) + (f":{places}" if places else ""))
    return f"{quoted(' '.join(words))}::tsvector"


def _tsquery(rng: random.Random, depth: int = 0) -> str:
    if depth == 0 and rng.random() < 0.05:
        return "''::tsquery"
    if depth > 4 or rng.random() < 0.3:
        marks = rng.choice(("", ":*", ":A", ":*BD", ":ABCD"))
        return f"{quoted(_lexeme(rng) + marks)}::tsquery"
    left, right = (_tsquery(rng, depth + 1) for _ in range(2))
    return rng.choice(
        (
            f"({left} && {right})",
            f"({left} || {right})",
            f"(!! {left})",
            f"({left} <-> {right})",
            f"tsquery_phrase({left}, {right}, {rng.randint(0, 9)})",
        )
    )


_PATHS = r"""
$
strict $
$.a
$."a b".*
$[*]
$.**
$.**{2}
$.**{2 to last}
$.**{last}
$.**{1 to 3}
$[0, 2 to last - 1].size()
$.a ? (@ > 1 && @.b == "x" || !(@ < 3.5))
$.a ? (@ != false && @ >= 1 && @ <= 2)
$.a + 2 * ($.b - 3) / -4 % 5
$ ? (@ like_regex "^a.b" flag "ism")
$ ? (@ like_regex "plain" flag "q")
$ ? (exists (@.y ? (@ starts with $"v")))
$ ? ((@.a == null) is unknown)
$.x.type()
1.50
(2).abs()
$.t.datetime("HH24:MI")
$.t.datetime()
$.keyvalue().key
+$.a.floor().ceiling().double()
true
"\u00e9\n\"q"
$.a[last]
-(1 + 2)
$varname
"""
_PATHS_OF_17 = """
$.bigint().boolean().date()
$.decimal().decimal(5).decimal(5,-2)
$.number().integer().string()
$.time(3).time_tz().timestamp(0).timestamp_tz()
"""


def _path(lines: str) -> Make:
    paths = [line for line in lines.splitlines() if line]
    return lambda rng: f"{quoted(rng.choice(paths))}::jsonpath"


def _money(rng: random.Random) -> str:
    edges = (0, 1, -1, 99, -100, 123456, (1 << 63) - 1, -(1 << 63), rng.randint(-(10**12), 10**12))
    number = rng.choice(edges)
    sign, digits = "-" if number < 0 else "", str(abs(number)).zfill(3)
    return f"'{sign}{digits[:-2]}.{digits[-2:]}'::money"


def _point(rng: random.Random) -> str:
    return f"point({_float8(rng)}, {_float8(rng)})"


def _one_of(*values: str) -> Make:
    return lambda rng: rng.choice(values)


_pair = _row("pair", _int4, _text)
_int4range = _range("int4range", "int4", _int4)
_text_range = _range("text_range", "text", _text)
_text_ranges = _ranges("text_ranges", _text_range)
_nested = _row(
    "nested", _pair, array_of("pair", _pair), _int4range, _text_ranges, _mood, _timestamptz,
    _one_of("'{\"a\" : [1]}'::json"), _bool, _float8, _pair, _one_of("'x'", "''"), _bits,
)  # fmt: skip
_some_row = _row(
    "some_row", _one_of("'a b'"), _mood, _jsonb, _one_of("'\\x00ff'::bytea", "''::bytea")
)

#: type -> an expression of it
COMPOSED: Mapping[str, Make] = {
    "int4range": _int4range,
    "int8range": _range("int8range", "int8", _int8),
    "numrange": _range("numrange", "numeric", _numeric),
    "daterange": _range("daterange", "date", _date),
    "tsrange": _range("tsrange", "timestamp", _timestamp),
    "tstzrange": _range("tstzrange", "timestamptz", _timestamptz),
    "text_range": _text_range,
    "short_range": _range("short_range", "short", _text),
    "pair_range": _range("pair_range", "pair", _pair),
    "float_range": _range("float_range", "float4", _float4),
    "positive": _one_of("'[1,5)'", "'empty'", "'(,)'"),
    "int4multirange": _ranges("int4multirange", _int4range),
    "nummultirange": _ranges("nummultirange", _range("numrange", "numeric", _numeric)),
    "datemultirange": _ranges("datemultirange", _range("daterange", "date", _date)),
    "tstzmultirange": _ranges("tstzmultirange", _range("tstzrange", "timestamptz", _timestamptz)),
    "text_ranges": _text_ranges,
    "pair_ranges": _ranges("pair_ranges", _range("pair_range", "pair", _pair)),
    "float_ranges": _ranges("float_ranges", _range("float_range", "float4", _float4)),
    "pair": _pair,
    "grown": _row("grown", _one_of("1::int2", "(-2)::int2"), _text, _one_of("'{1.5}'")),
    "nothing": _row("nothing"),
    "whole_pair": _pair,
    "nested": _nested,
    "some_row": _some_row,
    "money": _money,
    "tsvector": _tsvector,
    "tsquery": _tsquery,
    "jsonpath": _path(_PATHS),
    "pg_snapshot": _one_of("'10:20:10,14,15'", "'1:1:'", "'1:9223372036854775807:5'"),
    "txid_snapshot": _one_of("'10:20:10,14,15'", "'1:1:'"),
    "int2vector": _one_of("'1 -2 3'", "''", "'32767'"),
    "oidvector": _one_of("'1 4294967295'", "''"),
    "refcursor": _text,
    "box": lambda rng: f"box({_point(rng)}, {_point(rng)})",
    "path": _one_of("'[(0,0),(1.5,-2)]'", "'((0,0),(1e300,-2e-7),(3,4))'"),
    "short": _text,
    "mood": _mood,
    "cid": _one_of("'0'", "'4294967295'"),
}
#: of Postgres 17 and newer
COMPOSED_OF_17: Mapping[str, Make] = {"jsonpath": _path(_PATHS + _PATHS_OF_17)}


def _hstore(rng: random.Random) -> str:
    count = rng.choice((0, 1, 3, 40))
    keys = ", ".join(_text(rng) for _ in range(count))
    values = ", ".join(or_null(_text)(rng) for _ in range(count))
    return f"hstore(ARRAY[{keys}]::text[], ARRAY[{values}]::text[])"


def _cube(rng: random.Random) -> str:
    count = rng.choice((1, 2, 3, 9))
    corners = [", ".join(_float8(rng) for _ in range(count)) for _ in range(2)]
    corners[1] = corners[0] if rng.random() < 0.3 else corners[1]
    both = f"cube(ARRAY[{corners[0]}], ARRAY[{corners[1]}])"
    return rng.choice((both, f"cube(ARRAY[{corners[0]}])"))


def _ltree(rng: random.Random) -> str:
    labels = (
        "".join(rng.choices("abcXYZ019_", k=rng.randint(1, 20)))
        for _ in range(rng.choice((0, 1, 5)))
    )
    return f"'{'.'.join(labels)}'::ltree"


def _vector(type_name: str, number_max: float) -> Make:
    def make(rng: random.Random) -> str:
        some = (rng.uniform(-1, 1), rng.uniform(-number_max, number_max), 0.0, 1e-6, 3.0)
        numbers = (str(rng.choice(some)) for _ in range(rng.choice((1, 3, 200))))
        return f"'[{','.join(numbers)}]'::{type_name}"

    return make


def _sparse(rng: random.Random) -> str:
    indices = rng.sample(range(1, 1000), rng.choice((0, 1, 3, 50)))
    numbers = ",".join(f"{index}:{rng.uniform(-9, 9)}" for index in indices)
    return f"'{{{numbers}}}/{rng.randint(1000, 2000)}'::sparsevec"


#: extension -> type -> an expression of it
EXTENDED: Mapping[str, Mapping[str, Make]] = {
    "hstore": {"hstore": _hstore},
    "citext": {"citext": lambda rng: f"{_text(rng)}::citext"},
    "ltree": {"ltree": _ltree},
    "cube": {"cube": _cube},
    "vector": {
        "vector": _vector("vector", 1e30), "halfvec": _vector("halfvec", 6e4), "sparsevec": _sparse,
    },
}  # fmt: skip
EXTENSIONS = {15: ("hstore", "citext", "ltree", "cube"), 16: ("vector",), 18: ("vector",)}
