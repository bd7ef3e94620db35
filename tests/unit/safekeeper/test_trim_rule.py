"""Which pageserver counts, and where its horizon is."""

from __future__ import annotations

import random

import pytest

from quorum_wal.safekeeper.errors import SafekeeperError
from quorum_wal.safekeeper.trim_rule import Trim, check_newest, parse_suffix, registered, reported

OLD, NEW = 0x700000300001A, 0x800000200001B


def test_only_the_greatest_suffix_counts() -> None:
    first = registered(None, OLD)
    assert first == Trim(OLD)
    assert registered(first, OLD) is first
    moved = reported(first, OLD, 100)
    second = registered(moved, NEW)
    assert second == Trim(NEW, 100, is_inherited=True)
    for late in (registered, lambda known, suffix: reported(known, suffix, 900), check_newest):
        with pytest.raises(SafekeeperError, match="000700000300001A is stale: 000800") as error:
            late(second, OLD)
        assert error.value.sqlstate == "55006"
        assert "run sk generations advance" in error.value.hint


def test_the_horizon_moves_up_within_a_suffix() -> None:
    trim = Trim(OLD)
    for apply_lsn, horizon_lsn in [(0, 0), (100, 100), (50, 100), (0, 100), (101, 101)]:
        trim = reported(trim, OLD, apply_lsn)
        assert trim == Trim(OLD, horizon_lsn)


def test_a_newer_one_may_need_more_than_the_one_before() -> None:
    second = registered(Trim(OLD, 100), NEW)
    assert reported(second, NEW, 0) is second
    assert reported(second, NEW, 100) == Trim(NEW, 100)
    lower = reported(second, NEW, 60)
    assert lower == Trim(NEW, 60)
    assert reported(lower, NEW, 50) is lower


def test_any_reports_in_any_order() -> None:
    """The suffix never decreases; the horizon only with the first report of a newer one."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    dice = random.Random(seed)
    known: Trim | None = None
    for _ in range(2000):
        suffix, lsn = dice.randrange(40), dice.randrange(1000)
        before = known
        try:
            known = registered(known, suffix)
            if dice.random() < 0.7:
                known = reported(known, suffix, lsn)
        except SafekeeperError:
            assert before is not None
            assert suffix < before.suffix
            continue
        assert before is None or known.suffix >= before.suffix
        if before is not None and known.horizon_lsn < before.horizon_lsn:
            assert known.suffix > before.suffix or before.is_inherited


@pytest.mark.parametrize("text", ["", "7", "000700000300001a", "0x0300001A", "0" * 17, "é" * 16])
def test_invalid_suffixes(text: str) -> None:
    with pytest.raises(SafekeeperError, match="expected a suffix of 16 hex digits") as error:
        parse_suffix(text)
    assert error.value.sqlstate == "22023"


def test_a_suffix() -> None:
    assert parse_suffix("000700000300001A") == OLD
    assert registered(None, OLD).suffix_text == "000700000300001A"
