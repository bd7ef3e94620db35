"""synchronous_standby_names is read as Postgres reads it."""

from __future__ import annotations

import pytest

from quorum_wal.walproposer.errors import Refusal
from quorum_wal.walproposer.primary.standby_names import (
    Method,
    StandbyNames,
    names_us,
    parse_standby_names,
)


def first(count: int, *names: str) -> StandbyNames:
    return StandbyNames(Method.PRIORITY, count, names)


@pytest.mark.parametrize(
    ("value", "rule"),
    [
        ("", None),
        ("a", first(1, "a")),
        ("a, b", first(1, "a", "b")),
        (' "a b",\n"c""d"\t', first(1, "a b", 'c"d')),
        ("2 (a, b)", first(2, "a", "b")),
        ("2(a,b)", first(2, "a", "b")),
        ("FIRST 2 (a,b, c)", first(2, "a", "b", "c")),
        ('first 1 ("walproposer")', first(1, "walproposer")),
        ("aNy 2 (a,b)", StandbyNames(Method.QUORUM, 2, ("a", "b"))),
        ("ANY 1 (*)", StandbyNames(Method.QUORUM, 1, ("*",))),
        ("*", first(1, "*")),
        ('"any", "FIRST"', first(1, "any", "FIRST")),
        ("2", first(1, "2")),  # a name that is a number
        ("1 (2, 3)", first(1, "2", "3")),
        ("walproposer_2, a$b, é", first(1, "walproposer_2", "a$b", "é")),
    ],
)
def test_what_postgres_takes(value: str, rule: StandbyNames | None) -> None:
    assert parse_standby_names(value) == rule


@pytest.mark.parametrize(
    "value",
    [" ", "a b", "a,", ",a", "(a)", "2 a", "ANY (a)", "ANY a", "any", "2 (a", "2 ()", "a-b", '"a',
     "0 (a)", "ANY 2 (a) b", "2 (a (b))", "a\0"],
)  # fmt: skip
def test_what_postgres_refuses(value: str) -> None:
    with pytest.raises(Refusal, match="invalid synchronous_standby_names"):
        parse_standby_names(value)


@pytest.mark.parametrize(
    ("value", "matches", "is_named", "others"),
    [
        ("walproposer", True, True, ()),
        ("WalProposer", True, True, ()),
        ('"WALPROPOSER"', True, True, ()),
        ("walproposer2", False, False, ("walproposer2",)),
        ("ANY 1 (walproposer, s1)", True, True, ("s1",)),
        ("2 (s1, s2)", False, False, ("s1", "s2")),
        ("*", True, False, ("*",)),
        ('"*"', True, False, ("*",)),
        ("walproposer, *", True, True, ("*",)),
    ],
)
def test_which_names_match(
    value: str, matches: bool, is_named: bool, others: tuple[str, ...]
) -> None:
    rule = parse_standby_names(value)
    assert rule is not None
    assert rule.matches("walproposer") is matches
    assert rule.others("walproposer") == others
    assert names_us(value, "walproposer") is is_named
