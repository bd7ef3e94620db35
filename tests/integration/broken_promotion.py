"""`sk promote`, killed with kill -9 of itself: python broken_promotion.py STEP ARGUMENT...

STEP is the step that it begins to do; `half of RESOLVE`: one transaction is committed, others are
not yet.
"""

from __future__ import annotations

import os
import signal
import sys
from functools import partial
from typing import Any

import cli.promote
from cli.main import cli as sk
from walproposer.failover.failover import Failover
from walproposer.failover.promotion import Step
from walproposer.qsync import resolve

HALF = "half of RESOLVE"


def main() -> None:
    at, *arguments = sys.argv[1:]
    if at == HALF:
        die_after_a_commit()
    else:
        cli.promote.Failover = partial(Failover, began=partial(die_at, at))  # type: ignore[misc]
    sk(["promote", *arguments], prog_name="sk")


def die_at(at: str, step: Step) -> None:
    if step.name == at:
        os.kill(os.getpid(), signal.SIGKILL)


def die_after_a_commit() -> None:
    commit = resolve._try_commit

    def commit_and_die(*arguments: Any) -> None:
        assert commit(*arguments) is None
        os.kill(os.getpid(), signal.SIGKILL)

    resolve._try_commit = commit_and_die


if __name__ == "__main__":
    main()
