"""What the benchmark of qsync concludes from its samples: pairs of the same round, nothing else."""

from __future__ import annotations

import pytest

from benchmarks.qsync import CONTROL, DURABLE, SYNC, VISIBLE, QsyncSample, verdicts
from benchmarks.rounds import paired_differences


def sample(
    setup: str, number: int, *, end: float, wait: float = 0.0, clients: int = 8
) -> QsyncSample:
    return QsyncSample(setup, clients, number, 100.0, end, end, wait, wait, 1.0, 1.0, 1.0)


def samples(wait_ms: float, clients: int = 8) -> list[QsyncSample]:
    """Rounds differ from each other more than setups do."""
    return [
        sample(setup, number, end=end + number, wait=wait + number, clients=clients)
        for number in range(3)
        for setup, end, wait in (
            (SYNC, 2.0, 0.0),
            (CONTROL, 2.1, 0.0),
            (DURABLE, 9.0, wait_ms),
            (VISIBLE, 8.0, wait_ms),
        )
    ]


def test_differences_are_those_of_the_same_round() -> None:
    spread = paired_differences(samples(2.5), "wait_p50_ms", DURABLE, SYNC, "end_p50_ms")
    assert spread.median == spread.least == spread.greatest == pytest.approx(0.5)
    assert paired_differences(samples(2.5), "end_p50_ms", CONTROL, SYNC).median == pytest.approx(
        0.1
    )


@pytest.mark.parametrize(("wait_ms", "is_met"), [(2.9, True), (1.0, True), (3.1, False)])
def test_the_wait_is_judged_against_a_commit(wait_ms: float, *, is_met: bool) -> None:
    found = [verdict for verdict in verdicts(samples(wait_ms)) if "the wait" in verdict.claim]
    assert [verdict.is_met for verdict in found] == [is_met, is_met]
    assert "at 8 clients" in found[0].claim
    assert found[0].format().count(" ms") == 2


def test_the_wait_is_judged_with_eight_clients_only() -> None:
    assert not [v for v in verdicts(samples(99.0, clients=32)) if "the wait" in v.claim]
