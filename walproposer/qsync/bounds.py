"""How many transactions may wait, and for how long: when ADMIT refuses, and the alarms. Pure.

A prepared transaction holds its locks, the xmin horizon and, with a logical slot, WAL.
"""

from __future__ import annotations

from collections.abc import Mapping

from quorum_wal.walproposer.qsync.limbo_events import Refusal

LIMIT_EXCEEDED = "53400"

_HINT = "Run sk qsync list to find the oldest transaction and its owner."


class Bounds:
    """`limbo_max`: the greatest number of qsync transactions; `age_max_ms`: the greatest age of the
    oldest."""

    def __init__(self, limbo_max: int, age_max_ms: int) -> None:
        self.limbo_max = limbo_max
        self.age_max_ms = age_max_ms
        self._old: set[str] = set()
        self._is_full = False

    def problem(self, count: int, age_ms: int) -> Refusal | None:
        """Why no more transactions can be admitted now, or None."""
        if count >= self.limbo_max:
            text = f"{count} transactions are prepared and not finished"
            return Refusal(LIMIT_EXCEEDED, f"{text}: expected fewer than {self.limbo_max}", _HINT)
        if age_ms > self.age_max_ms:
            text = f"a transaction has been prepared for {age_ms / 1000:.0f} s"
            limit = f"{self.age_max_ms / 1000:.0f} s"
            return Refusal(LIMIT_EXCEEDED, f"{text}: expected at most {limit}", _HINT)
        return None

    def alarms(self, ages_ms: Mapping[str, int]) -> list[str]:
        """The new alarms, from the ages of all prepared transactions by gid. One for each
        transaction that becomes too old; one when there are too many, repeated only after their
        number was below half of the limit."""
        old = {gid for gid, age_ms in ages_ms.items() if age_ms > self.age_max_ms}
        texts = [
            f"{gid} has been prepared for {ages_ms[gid] / 1000:.0f} s: it holds locks and WAL"
            for gid in sorted(old - self._old)
        ]
        self._old = old
        if len(ages_ms) >= self.limbo_max and not self._is_full:
            self._is_full = True
            texts.append(
                f"{len(ages_ms)} transactions are prepared and not finished: no more are admitted"
            )
        elif 2 * len(ages_ms) < self.limbo_max:
            self._is_full = False
        return texts
