"""Combines hot-standby feedback of several standbys: the oldest of each horizon. Pure.

A safekeeper combines its replicas, the proposer its safekeepers. So the primary keeps the rows that
the oldest query on any of them needs. Source: Postgres `walreceiver.c`, `XLogWalRcvSendHSFeedback`.
"""

from __future__ import annotations

from collections.abc import Iterable

from quorum_wal.consensus.messages import NO_FEEDBACK, HotStandbyFeedback

XID_BITS = 32
_XID_MASK = (1 << XID_BITS) - 1


def oldest_feedback(feedbacks: Iterable[HotStandbyFeedback]) -> HotStandbyFeedback:
    """The oldest xmin and the oldest catalog_xmin, compared with their epochs. NO_FEEDBACK if there
    is none. `sent_at_us` is the newest of those that count."""
    counting = [f for f in feedbacks if f.xmin or f.catalog_xmin]
    if not counting:
        return NO_FEEDBACK
    xmin = _oldest((f.xmin_epoch, f.xmin) for f in counting)
    catalog_xmin = _oldest((f.catalog_xmin_epoch, f.catalog_xmin) for f in counting)
    return HotStandbyFeedback(
        sent_at_us=max(f.sent_at_us for f in counting),
        xmin=xmin & _XID_MASK,
        xmin_epoch=xmin >> XID_BITS,
        catalog_xmin=catalog_xmin & _XID_MASK,
        catalog_xmin_epoch=catalog_xmin >> XID_BITS,
    )


def _oldest(xids: Iterable[tuple[int, int]]) -> int:
    """The oldest of (epoch, xid) pairs, as 64 bits; 0 if none is valid. An xid of 0 is not."""
    return min((epoch << XID_BITS | xid for epoch, xid in xids if xid), default=0)
