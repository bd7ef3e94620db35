"""How much may wait, and for how long: what ADMIT refuses, and what an operator is told. Pure.

A prepared transaction holds its locks, the xmin horizon and, with a logical slot, WAL.
"""

from __future__ import annotations

from collections.abc import Mapping

from walproposer.qsync.limbo_events import Refusal

LIMIT_EXCEEDED = "53400"

_HINT = "See sk qsync list: which is the oldest, and who should finish it."


class Bounds:
    """`limbo_max`: how many of ours; `age_max_ms`: of the oldest."""

    def __init__(self, limbo_max: int, age_max_ms: int) -> None:
        self.limbo_max = limbo_max
        self.age_max_ms = age_max_ms
        self._old: set[str] = set()
        self._is_full = False

    def problem(self, count: int, age_ms: int) -> Refusal | None:
        """Why no more may come now, or None."""
        if count >= self.limbo_max:
            text = f"{count} transactions are prepared and not finished"
            return Refusal(LIMIT_EXCEEDED, f"{text}: expected less than {self.limbo_max}", _HINT)
        if age_ms > self.age_max_ms:
            text = f"a transaction has been prepared for {age_ms / 1000:.0f} s"
            limit = f"{self.age_max_ms / 1000:.0f} s"
            return Refusal(LIMIT_EXCEEDED, f"{text}: expected at most {limit}", _HINT)
        return None

    def alarms(self, ages_ms: Mapping[str, int]) -> list[str]:
        """Of all that are prepared, by gid: one for each that gets old, and one whenever they have
        become too many, after they were less than half of that."""
        old = {gid for gid, age_ms in ages_ms.items() if age_ms > self.age_max_ms}
        texts = [
            f"{gid} has been prepared for {ages_ms[gid] / 1000:.0f} s: it holds locks, and WAL"
            for gid in sorted(old - self._old)
        ]
        self._old = old
        if len(ages_ms) >= self.limbo_max and not self._is_full:
            self._is_full = True
            texts.append(
                f"{len(ages_ms)} transactions are prepared and not finished: no more is admitted"
            )
        elif 2 * len(ages_ms) < self.limbo_max:
            self._is_full = False
        return texts
