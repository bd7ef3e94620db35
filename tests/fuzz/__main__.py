"""The command: `python -m tests.fuzz --minutes 10 --only pgwire --seed 7`.

It runs every row of the table in turn, until the time is over. A case that fails is reduced and
saved in the corpus; then the exit code is 1.
"""

from __future__ import annotations

import argparse
import secrets
import sys
import time
from random import Random

from .corpus import ROWS, failure, keep, minimise
from .datum_seeds import compile_all
from .parsers import Parser
from .streams import Stream

TURN_SECONDS = 1.0
MINIMISE_TRIES_MAX = 2000


def main() -> int:
    arguments = _parser().parse_args()
    seed = secrets.randbits(32) if arguments.seed is None else arguments.seed
    rows = [row for name, row in ROWS.items() if arguments.only in name]
    print(f"seed {seed}, {len(rows)} parsers, {arguments.minutes:g} minutes", flush=True)
    compile_all()
    generator = Random(seed)
    deadline = time.monotonic() + arguments.minutes * 60
    failed: dict[str, str] = {}
    cases = 0
    while time.monotonic() < deadline:
        for row in rows:
            if row.name not in failed and time.monotonic() < deadline:
                cases += _turn(row, generator, failed)
    print(f"{cases} cases, {len(failed)} parsers failed")
    return 1 if failed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--only", default="", metavar="TEXT", help="rows with this in their name")
    parser.add_argument("--seed", type=int)
    return parser


def _turn(row: Parser | Stream, generator: Random, failed: dict[str, str]) -> int:
    """Run cases for a second, or until one fails; returns how many."""
    end = time.monotonic() + TURN_SECONDS
    cases = 0
    while time.monotonic() < end:
        case, seed = row.case(generator), generator.getrandbits(32)
        cases += 1
        if what := failure(row, case, seed):
            failed[row.name] = what
            print(
                f"{row.name}: {what}\n  kept in {keep(row, _smaller(row, case, seed))}", flush=True
            )
            break
    return cases


def _smaller(row: Parser | Stream, case: bytes, seed: int) -> bytes:
    tries = iter(range(MINIMISE_TRIES_MAX))

    def fails(data: bytes) -> bool:
        return next(tries, None) is not None and bool(failure(row, data, seed))

    return minimise(case, fails)


if __name__ == "__main__":
    sys.exit(main())
