"""Combined feedback of several standbys: compared with epochs; xid 0 is not valid."""

from __future__ import annotations

import pytest

from quorum_wal.consensus.messages import NO_FEEDBACK, HotStandbyFeedback
from quorum_wal.consensus.standby_feedback import oldest_feedback


def feedback(xmin: int = 0, epoch: int = 0, catalog: int = 0, at: int = 5) -> HotStandbyFeedback:
    return HotStandbyFeedback(at, xmin, epoch, catalog, epoch if catalog else 0)


@pytest.mark.parametrize(
    ("feedbacks", "oldest"),
    [
        ([], NO_FEEDBACK),
        ([NO_FEEDBACK, feedback(at=9)], NO_FEEDBACK),
        ([feedback(700), NO_FEEDBACK], feedback(700)),
        ([feedback(700, at=1), feedback(600, at=2), feedback(800, at=3)], feedback(600, at=3)),
        # 4294967290 of epoch 0 is older than 5 of epoch 1
        ([feedback(5, 1), feedback(4294967290, 0)], feedback(4294967290, 0)),
        ([feedback(4294967290, 1), feedback(7, 2)], feedback(4294967290, 1)),
        # each horizon separately: one has only an xmin, the other only a catalog_xmin
        ([feedback(700, 0), feedback(0, 3, 650)], HotStandbyFeedback(5, 700, 0, 650, 3)),
    ],
)
def test_the_oldest_of_each_counts(
    feedbacks: list[HotStandbyFeedback], oldest: HotStandbyFeedback
) -> None:
    assert oldest_feedback(feedbacks) == oldest
    assert oldest_feedback(reversed(feedbacks)) == oldest
