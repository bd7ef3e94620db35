"""`sk promote` that kills itself with kill -9.

    python -m tests.integration.broken_promotion STEP ARGUMENT...

STEP is the step that it begins. `half of RESOLVE`: one transaction is committed, others are not
yet. `half of CLOSE`, `half of OPEN`: postgresql.auto.conf is written, but not loaded.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import quorum_wal.cli.promote
from quorum_wal.cli.main import cli as sk
from quorum_wal.walproposer.failover import client_writes, completion
from quorum_wal.walproposer.failover.failover import Failover
from quorum_wal.walproposer.failover.promotion import Step
from quorum_wal.walproposer.qsync import resolve

HALF = "half of RESOLVE"
HALF_CLOSED = "half of CLOSE"
HALF_OPEN = "half of OPEN"


def main() -> None:
    at, *arguments = sys.argv[1:]
    match at:
        case "half of RESOLVE":
            resolve._try_commit = _and_die(resolve._try_commit)
        case "half of CLOSE":
            client_writes._reload = die
        case "half of OPEN":
            completion.open_again = _open_half
        case "RESOLVE":
            resolve.commit_limbo = die
        case "OPEN":
            completion.open_again = die
        case _:
            dying = partial(Failover, began=partial(die_at, at))
            quorum_wal.cli.promote.Failover = dying  # type: ignore[misc]
    sk(["promote", *arguments], prog_name="sk")


def die(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def die_at(at: str, step: Step) -> None:
    if step.name == at:
        die()


def _open_half(*arguments: Any) -> None:
    client_writes._reload = die
    client_writes.open_again(*arguments)


def _and_die(act: Callable[..., Any]) -> Callable[..., Any]:
    def act_and_die(*arguments: Any) -> None:
        act(*arguments)
        die()

    return act_and_die


if __name__ == "__main__":
    main()
