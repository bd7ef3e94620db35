"""Every parser of outside bytes: declared exceptions only, an end, and memory in proportion to the
input.

`make fuzz MINUTES=10` continues with other cases, and saves its findings in the corpus.
"""

from __future__ import annotations

import ast
from fnmatch import fnmatch
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz import bounds
from tests.fuzz.bounds import Excess, bounded
from tests.fuzz.corpus import ROWS, failure, kept_cases, minimise, try_case
from tests.fuzz.datum_seeds import compile_all
from tests.fuzz.parser import Parser
from tests.fuzz.parsers import PARSERS
from tests.fuzz.streams import STREAMS, Stream

ROOT = Path(__file__).parents[2]
EXAMPLES = 30
STREAM_EXAMPLES = 10
RANDOMS = st.randoms(use_true_random=False)
LONG = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example]

PACKAGES = (
    "access",
    "pgwal",
    "pgwire",
    "consensus",
    "objectstore",
    "safekeeper",
    "walproposer",
    "backup",
    "telemetry",
    "pg_server",
    "cluster",
    "qsync",
    "generations",
    "pageserver",
    "spark",
)
#: What is no parser of its own, with the reason.
NO_PARSERS = {
    "pgwire.blocking.*": "the shell of the wire halves",
    "walproposer.stream.wal_window.*": "reads what it was given",
    "spark.changes.heap_headers.parse_headers": "compiled; test_heap_scan.py gives it any bytes",
    "spark.records.wal_decoder.WalDecoder.decode": "test_wal_decoder.py gives it damaged records",
    "spark.sources.pg_changes_options.parse_change_options": "reads a catalog; its parts have rows",
}


@pytest.fixture(scope="module", autouse=True)
def compiled() -> None:
    compile_all()


def named(row: Parser | Stream) -> str:
    return row.name


@pytest.mark.parametrize("parser", PARSERS, ids=named)
def test_what_is_valid_is_accepted(parser: Parser) -> None:
    for case in parser.valid():
        assert parser.read(case.decode() if parser.texts else case) is not False
        assert parser.try_case(case), case


@pytest.mark.parametrize("stream", STREAMS, ids=named)
def test_a_valid_stream_is_understood_however_it_is_cut(stream: Stream) -> None:
    assert len(stream.try_case(stream.seeds[0], Random(1))) >= 1


@pytest.mark.parametrize("parser", PARSERS, ids=named)
@given(random=RANDOMS)
@settings(max_examples=EXAMPLES, suppress_health_check=LONG)
def test_a_parser_raises_only_what_it_declares(parser: Parser, random: Random) -> None:
    parser.try_case(parser.case(random))


@pytest.mark.parametrize("stream", STREAMS, ids=named)
@given(random=RANDOMS)
@settings(max_examples=STREAM_EXAMPLES, suppress_health_check=LONG)
def test_a_stream_ends_the_same_way_however_it_is_cut(stream: Stream, random: Random) -> None:
    stream.try_case(stream.case(random), random)


@pytest.mark.parametrize(
    ("name", "path"), kept_cases(), ids=[f"{name}/{path.name}" for name, path in kept_cases()]
)
def test_what_failed_once_does_not_fail_again(name: str, path: Path) -> None:
    try_case(ROWS[name], path.read_bytes(), seed=1)


# ---- the table is complete


def public_parsers(package: str) -> list[str]:
    """Functions and methods whose names say that they parse outside input."""
    found = []
    for path in sorted((ROOT / package).rglob("*.py")):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and node.name.startswith("_"):
                continue
            members = node.body if isinstance(node, ast.ClassDef) else [node]
            owner = f"{module}.{node.name}" if isinstance(node, ast.ClassDef) else module
            found += [
                f"{owner}.{member.name}"
                for member in members
                if isinstance(member, ast.FunctionDef)
                and member.name.split("_")[0] in ("parse", "decode", "unseal")
            ]
    return found


@pytest.mark.parametrize("package", PACKAGES)
def test_no_parser_is_missing_in_the_table(package: str) -> None:
    known = {pattern for row in PARSERS for pattern in (row.name, *row.covers)}
    known |= NO_PARSERS.keys()
    missing = [
        name
        for name in public_parsers(package)
        if not any(fnmatch(name, pattern) for pattern in known)
    ]
    assert not missing, f"add these to tests/fuzz/parsers.py: {missing}"


def test_the_table_names_what_there_is() -> None:
    found = {name for package in PACKAGES for name in public_parsers(package)}
    assert len(found) > 30
    for pattern in (pattern for row in PARSERS for pattern in row.covers):
        assert any(fnmatch(name, pattern) for name in found), pattern


# ---- the fuzzer can fail


def test_more_memory_than_the_input_is_worth() -> None:
    with pytest.raises(Excess, match="bytes of memory for an input of 4"):
        bounded(lambda: bytes(1 << 20), 4)


def test_more_time_than_the_input_is_worth(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "SECONDS_CONSTANT", 0.01)
    with pytest.raises(Excess, match="of processor time for an input of 4"):
        bounded(lambda: sum(range(1_000_000)), 4)


def test_a_loop_without_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "SECONDS_ENDLESS", 0.05)

    def endless() -> None:
        while True:
            pass

    with pytest.raises(Excess, match=r"not done after 0\.05 s"):
        bounded(endless, 4)


def test_a_planted_bug_is_found_and_made_small() -> None:
    """A number whose digits are not counted."""
    parser = Parser("planted", int, (KeyError,), texts=("host:12", "34"))
    random = Random(7)
    case = next(case for _ in range(1000) if failure(parser, case := parser.case(random), 0))
    smaller = minimise(case, lambda data: bool(failure(parser, data, 0)))
    assert len(smaller) <= len(case)
    assert failure(parser, smaller, 0)
