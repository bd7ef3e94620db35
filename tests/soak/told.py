"""The report of `sk status` during a fault, and whether it is right.

A truth takes the report and returns what is wrong with it, "" if nothing is. It is checked
repeatedly until it is right: a status may be late within a named limit, but must become right.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from quorum_wal.pg_fixtures.errors import FixtureError
from quorum_wal.pg_fixtures.processes import run_sk

from .world import World

#: How long `sk status` may take to report the right state: a frozen process differs from a busy one
#: only by its silence.
TELLING_SECONDS = 45.0
ASKING_SECONDS = 60.0  # one `sk status`, on a busy machine


class UntrueStatus(FixtureError):
    """`sk status` reports a wrong state."""


@dataclass(frozen=True, slots=True)
class Told:
    """One answer of `sk status --json`; the soak has one timeline."""

    exit_code: int
    timeline: dict[str, Any]

    @property
    def condition(self) -> str:
        return str(self.timeline["condition"])

    def member(self, safekeeper_id: int) -> str:
        """The state of that member, in the words of the status."""
        (state,) = (
            member["state"]
            for member in self.timeline["members"]
            if member["safekeeper_id"] == safekeeper_id
        )
        return str(state)

    def __str__(self) -> str:
        states = ", ".join(str(m["state"]) for m in self.timeline["members"])
        return f"exit code {self.exit_code}, {self.timeline['verdict']} ({states})"


Truth = Callable[[Told], str]


def ask(world: World) -> Told | None:
    """As an operator would ask; None if it shows no timeline."""
    primary = ("--primary", world.primary.postgres.dsn())
    safekeepers = ",".join(safekeeper.address for safekeeper in world.safekeepers)
    done = run_sk(
        "status", "--json", "--safekeepers", safekeepers, *primary, timeout=ASKING_SECONDS
    )
    try:
        timelines = json.loads(done.stdout)["timelines"]
    except (ValueError, KeyError) as error:
        raise UntrueStatus(
            f"sk status --json ended with {done.returncode} and printed no status: "
            f"{done.stdout[:200]}{done.stderr[-2000:]}"
        ) from error
    return Told(done.returncode, timelines[0]) if timelines else None


def wait_for_truth(
    world: World, truth: Truth, what: str, tend: Callable[[], None] | None = None
) -> Told:
    """Return when `sk status` is right. Raises UntrueStatus after TELLING_SECONDS, with its last
    report.

    `tend` is called between two questions.
    """
    deadline = time.monotonic() + TELLING_SECONDS
    while True:
        if tend is not None:
            tend()
        told = ask(world)
        problem = truth(told) if told is not None else "it shows no timeline"
        if told is not None and not problem:
            return told
        if time.monotonic() >= deadline:
            raise UntrueStatus(f"{what}, and sk status is wrong: {problem}: {told}")


# ---- truths


def all_is_well(told: Told) -> str:
    return "" if (told.exit_code, told.condition) == (0, "OK") else "everything works"


def commits_proceed(told: Told) -> str:
    """With or without one member less."""
    proceed = told.exit_code == 0 and told.condition in ("OK", "DEGRADED")
    return "" if proceed else "commits proceed"


def commits_wait(told: Told) -> str:
    waits = told.exit_code != 0 and told.condition not in ("OK", "DEGRADED")
    return "" if waits else "no commit returns"


def member_is(safekeeper_id: int, *states: str) -> Truth:
    """Commits proceed without that member, which has this state."""

    def truth(told: Told) -> str:
        if told.member(safekeeper_id) not in states:
            return f"safekeeper {safekeeper_id} is {' or '.join(states)}"
        return "one member is missing" if told.condition == "OK" else commits_proceed(told)

    return truth


def one_is_missed(told: Told) -> str:
    """The proposer is not connected to one member that runs."""
    return "one member is missing" if told.condition == "OK" else commits_proceed(told)
