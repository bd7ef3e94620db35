"""`BrokenLaw`: what the invariants raise."""

from __future__ import annotations


class BrokenLaw(AssertionError):
    """An invariant does not hold."""

    def __init__(self, law: str, problem: object) -> None:
        super().__init__(f"{law}: {problem}")
        self.law = law


def check(law: str, holds: bool, *problem: object) -> None:
    if not holds:
        raise BrokenLaw(law, " ".join(map(str, problem)))
