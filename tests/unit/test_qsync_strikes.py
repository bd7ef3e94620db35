"""The strikes of the soak of qsync: every cell comes, only what struck counts, holes are named."""

from __future__ import annotations

import random
from itertools import islice

import pytest

from tests.soak.qsync_client import STEPS
from tests.soak.qsync_orders import WHENS
from tests.soak.qsync_strikes import CLIENT, VICTIMS, Minima, Strike, Tally, deal
from tests.soak.world import Loss

CELLS = len(VICTIMS) * len(STEPS) * len(WHENS)


@pytest.fixture
def tally() -> Tally:
    return Tally()


def strike_all(tally: Tally, number: int, minima: Minima) -> list[Strike]:
    dealt = []
    for strike in islice(deal(random.Random(1), tally, minima), number):
        tally.struck[strike] += 1
        if isinstance(strike.victim, Loss):
            tally.failovers[strike.victim] += 1
        dealt.append(strike)
    return dealt


def test_three_hundred_strikes_meet_every_cell_and_thirty_failovers(tally: Tally) -> None:
    minima = Minima(300, 30)
    strike_all(tally, 300, minima)
    tally.broken_off["elect"] += 1
    assert tally.missing(minima) == []
    assert tally.faults == 300
    assert min(tally.struck[cell] for cell in tally.cells) >= 2
    assert len(tally.cells) == CELLS


def test_what_is_missing_is_named(tally: Tally) -> None:
    minima = Minima(10, 5)
    hole = Strike(CLIENT, "commit", "during")
    tally.struck.update(cell for cell in tally.cells if cell != hole)
    tally.missed[hole] += 3
    tally.failovers[Loss.KILLED] += 4
    missing = tally.missing(minima)
    assert f"never: {hole}" in missing
    assert "4 failovers of 5" in missing
    assert f"never: {Loss.CUT_OFF.value}" in missing
    assert f"never: {Loss.KILLED.value}" not in missing
    assert "never: sk promote is killed" in missing
    assert tally.missing(Minima()) == []
    assert f"{CELLS - 1} faults of 1000" in tally.missing(Minima(1000))


def test_holes_come_when_all_else_is_done(tally: Tally) -> None:
    minima = Minima(10)
    holes = {Strike(CLIENT, "commit", "during"), Strike(CLIENT, "wait", "after")}
    tally.struck.update(cell for cell in tally.cells if cell not in holes)
    dealt = islice(deal(random.Random(1), tally, minima), 40)
    assert {strike for strike in dealt if not isinstance(strike.victim, Loss)} == holes


def test_only_failovers(tally: Tally) -> None:
    tally.victims = [Loss.CUT_OFF]
    assert {strike.victim for strike in islice(deal(random.Random(1), tally, Minima()), 30)} == {
        Loss.CUT_OFF
    }


def test_the_table_has_a_line_for_each_victim(tally: Tally) -> None:
    tally.struck[Strike(CLIENT, "prepare", "during")] += 7
    lines = list(tally.table())
    assert len(lines) == 1 + len(VICTIMS) + len(Loss)
    assert lines[1].split()[5:7] == ["0/7/0", "0/0/0"]
