"""A safekeeper that answers neither `sk status` nor the proposer, which is connected to it."""

from __future__ import annotations

import pytest
from cluster_pages import HTTP, Answers, lost_peer, page, peer, safekeeper, silent

from quorum_wal.cluster.verdict import judge


@pytest.mark.parametrize(("silent_seconds", "hangs"), [(2.4, False), (2.6, True)])
def test_a_safekeeper_that_hangs(silent_seconds: float, hangs: bool) -> None:
    """The proposer closes its connection after 5 s only."""
    peers = (peer(1), peer(2, silent_seconds=silent_seconds), peer(3))
    answers = Answers([safekeeper(1), silent(2), safekeeper(3)], {HTTP: page(*peers)})
    assert str(judge(answers.view())) == (
        "DEGRADED: commits proceed with 2 of 3 safekeepers; safekeeper 2 (10.0.0.2:5454) is "
        "unreachable since 2026-01-31 12:00:27 UTC: start it, or sk member replace 2 NEWADDR"
        if hangs
        else "OK: commits proceed, 3 of 3 safekeepers"
    )


def test_one_hangs_and_another_was_never_heard() -> None:
    gone = {**lost_peer(3), "silent_seconds": None}
    peers = (peer(1), peer(2, silent_seconds=4.0), gone)
    answers = Answers([safekeeper(1), silent(2), silent(3)], {HTTP: page(*peers)})
    text = str(judge(answers.view()))
    assert text.startswith("BLOCKED: commits wait: 1 of 3 safekeepers follow, 2 are needed; ")


def test_a_quorum_hangs() -> None:
    peers = (peer(1), peer(2, silent_seconds=4.0), peer(3, silent_seconds=4.0))
    answers = Answers([safekeeper(1), silent(2), silent(3)], {HTTP: page(*peers)})
    text = str(judge(answers.view()))
    assert text.startswith("BLOCKED: commits wait: 1 of 3 safekeepers follow, 2 are needed; ")
    assert text.count("is unreachable since 2026-01-31 12:00:26 UTC: start it") == 2
