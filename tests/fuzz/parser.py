"""`Parser`: one parser of outside bytes or texts, and the errors that it may raise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from .bounds import bounded
from .mutation import mutate, mutate_text

Exceptions = tuple[type[Exception], ...]


@dataclass(frozen=True, slots=True)
class Parser:
    """One row. Exactly one of `seeds` and `texts`; `reseal` corrects a checksum."""

    name: str
    read: Callable[[Any], object]
    declared: Exceptions
    seeds: tuple[bytes, ...] = ()
    texts: tuple[str, ...] = ()
    covers: tuple[str, ...] = ()
    reseal: Callable[[bytes], bytes] = bytes

    def case(self, random: Random) -> bytes:
        """In the form of the corpus: a text is UTF-8, with surrogates."""
        if self.texts:
            return mutate_text(random, self.texts).encode("utf-8", "surrogatepass")
        case = mutate(random, self.seeds)
        return self.reseal(case) if random.random() < 0.7 else case

    def valid(self) -> list[bytes]:
        return [*self.seeds, *(text.encode("utf-8", "surrogatepass") for text in self.texts)]

    def try_case(self, case: bytes) -> bool:
        """Whether it was accepted. Raises Excess, and undeclared errors."""
        given = case.decode("utf-8", "surrogatepass") if self.texts else case
        try:
            bounded(lambda: self.read(given), len(given))
        except self.declared:
            return False
        return True
