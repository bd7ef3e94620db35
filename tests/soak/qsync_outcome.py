"""The end of a soak of qsync: its figures, and its verdict."""

from __future__ import annotations

import time

from .qsync_book import COMMITTED, NEVER, ROLLED_BACK
from .qsync_run import QsyncSoak

VIOLATIONS_SHOWN = 20


def problem_of(soak: QsyncSoak, raised: str) -> str:
    """The reason for a failure; "" if it passed. `raised`: the error that ended the run."""
    if soak.book.violations:
        return "a law is broken"
    if raised:
        return raised
    if soak.knows_too_little:
        return f"{soak.unknown} of {soak.book.orphans_count} outcomes are unknown"
    missing = soak.tally.missing(soak.plan.minima)
    return f"the run has not come to {'; '.join(missing)}" if missing else ""


def print_qsync_outcome(soak: QsyncSoak) -> None:
    seconds = time.monotonic() - soak.chronicle.begun
    book, tally = soak.book, soak.tally
    print(f"\nafter {seconds / 60:.1f} minutes, {seconds / max(1, tally.faults):.1f} s a fault")
    for line in tally.table():
        print(line)
    for step, count in tally.broken_off.items():
        print(f"{count:9}  sk promote killed in {step}")
    for what, figure in _figures(soak).items():
        print(f"{figure:9}  {what}")
    print(
        f"the longest plain commit on a healthy primary: {soak.plain.longest_seconds:.2f} s, "
        f"{soak.plain.longest_delay_seconds:.2f} s more than the control"
    )
    for violation in book.violations[:VIOLATIONS_SHOWN]:
        print(violation)


def _figures(soak: QsyncSoak) -> dict[str, int]:
    book, tally = soak.book, soak.tally
    return {
        "faults": tally.faults,
        "strikes that missed: the client did not come to the step": tally.missed.total(),
        "failovers": tally.failovers.total(),
        "of them broken off and run again": tally.broken_off.total(),
        "rests, in which all that was pending ended": soak.rests,
        "transactions begun": len(book.gids),
        "committed": book.count(COMMITTED),
        "rolled back": book.count(ROLLED_BACK),
        "refused, or failed before their PREPARE": book.count(NEVER),
        "rows seen": book.seen_count,
        "comparisons": soak.looks("open"),
        "looks at a standby": soak.looks("standby"),
        "looks at a promoted server before it was open": soak.looks("closed"),
        "outcomes asked for": soak.inquirer.answers,
        "of transactions whose client was not told": book.orphans_count,
        "of them such that nothing could tell but the table": soak.unknown,
        "plain commits": soak.plain.commits,
        "violations": len(book.violations),
    }
