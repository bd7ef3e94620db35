"""The possible strikes, the next one, and those that were made. Pure.

In a strike a process is killed while a client is at a step, before the request, during it, or after
its answer. Every victim is due at every step and every moment; the rarest combination comes next.
Each tenth strike is a failover. Law: a strike counts if the client was at its step.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from .qsync_client import STEPS
from .qsync_orders import WHENS
from .world import Loss

CLIENT, COORDINATOR, PRIMARY = "the client", "the coordinator", "the primary"
SAFEKEEPER, QUORUM = "a safekeeper", "two safekeepers"
VICTIMS = (CLIENT, COORDINATOR, PRIMARY, SAFEKEEPER, QUORUM)
FAILOVER_EVERY = 10

Victim = str | Loss


@dataclass(frozen=True, slots=True)
class Strike:
    """The victim, and the step of the client."""

    victim: Victim
    step: str
    when: str

    def __str__(self) -> str:
        return f"{text_of(self.victim)} {self.when} {self.step}"


def text_of(victim: Victim) -> str:
    return victim.value if isinstance(victim, Loss) else f"kill -9 of {victim}"


@dataclass(frozen=True, slots=True)
class Minima:
    """The minima of a run; 0: none."""

    faults: int = 0
    failovers: int = 0

    @property
    def any(self) -> bool:
        return bool(self.faults or self.failovers)


@dataclass
class Tally:
    """`victims`: the processes that this run kills."""

    victims: Sequence[Victim] = VICTIMS
    struck: Counter[Strike] = field(default_factory=Counter)
    #: Strikes whose client did not reach its step.
    missed: Counter[Strike] = field(default_factory=Counter)
    failovers: Counter[Loss] = field(default_factory=Counter)
    #: Step at which `sk promote` was killed -> how often.
    broken_off: Counter[str] = field(default_factory=Counter)

    @property
    def faults(self) -> int:
        return sum(self.struck.values())

    @property
    def cells(self) -> list[Strike]:
        victims = [victim for victim in self.victims if not isinstance(victim, Loss)]
        return [Strike(v, s, w) for v in victims for s in STEPS for w in WHENS]

    def missing(self, minima: Minima) -> list[str]:
        """What is missing in a run with these minima."""
        missing = []
        if self.faults < minima.faults:
            missing.append(f"{self.faults} faults of {minima.faults}")
        if minima.faults:
            missing += [f"never: {strike}" for strike in self.holes]
        failovers = self.failovers.total()
        if failovers < minima.failovers:
            missing.append(f"{failovers} failovers of {minima.failovers}")
        if minima.failovers >= len(Loss):
            missing += [f"never: {loss.value}" for loss in Loss if not self.failovers[loss]]
            missing += [] if self.broken_off else ["never: sk promote is killed"]
        return missing

    @property
    def holes(self) -> list[Strike]:
        return [strike for strike in self.cells if not self.struck[strike]]

    def table(self) -> Iterator[str]:
        """One line for each victim: how often before / during / after each step."""
        width = max(len(step) for step in STEPS) + 2
        yield f"{'  '.join(WHENS)}:".ljust(52) + "".join(step.ljust(width) for step in STEPS)
        for victim in dict.fromkeys([*self.victims, *Loss]):
            counts = [
                "/".join(str(self.struck[Strike(victim, s, w)]) for w in WHENS) for s in STEPS
            ]
            yield text_of(victim).ljust(52) + "".join(count.ljust(width) for count in counts)


def deal(rng: random.Random, tally: Tally, minima: Minima) -> Iterator[Strike]:
    """Without end. It reads the tally each time."""
    tried: Counter[Strike] = Counter()
    losses: list[Victim] = []
    number = 0
    while True:
        number += 1
        kills = tally.cells
        if not kills or number % FAILOVER_EVERY == FAILOVER_EVERY // 2:
            only = [victim for victim in tally.victims if isinstance(victim, Loss)]
            losses = losses or rng.sample(only or list(Loss), len(only or Loss))
            yield Strike(losses.pop(), rng.choice(STEPS), rng.choice(WHENS))
            continue
        if minima.faults and tally.faults >= minima.faults:
            kills = tally.holes or kills
        least = min(tried[strike] for strike in kills)
        strike = rng.choice([strike for strike in kills if tried[strike] == least])
        tried[strike] += 1
        yield strike
