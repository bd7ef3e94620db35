"""A worker of Spark keeps memory: measured in a process of its own, because it is for good."""

from __future__ import annotations

import subprocess
import sys

import pytest

#: As a range of WAL as rows: glibc would keep twice the size of one array.
ARRAYS, ARRAY_BYTES = 12, 4 << 20
PAGE_BYTES = 4096
ROUNDS = 10

#: Prints how many page faults arrays cause that are freed and allocated again, and how many objects
#: a collection of garbage does not look at.
SCRIPT = """
import gc, resource, sys
import numpy
from quorum_wal.spark.worker_memory import keep_memory
if sys.argv[1] == "kept":
    keep_memory()
    keep_memory()
def faults(rounds):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(rounds):
        [numpy.ones({array_bytes}, numpy.uint8) for _ in range({arrays})]
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
faults(2)
print(faults({rounds}), gc.get_freeze_count())
"""


def measured(word: str) -> tuple[int, int]:
    script = SCRIPT.format(arrays=ARRAYS, array_bytes=ARRAY_BYTES, rounds=ROUNDS)
    done = subprocess.run(
        [sys.executable, "-c", script, word], capture_output=True, text=True, check=True
    )
    faults, frozen = map(int, done.stdout.split())
    return faults, frozen


@pytest.mark.skipif(sys.platform != "linux", reason="freed memory is kept with glibc only")
def test_freed_arrays_are_used_again() -> None:
    faults, frozen = measured("kept")
    assert faults < ARRAYS * ARRAY_BYTES // PAGE_BYTES, "fewer than one round of ten needs"
    assert frozen > 1000
    assert measured("not kept") > (5 * faults, 0), "the test sees what it measures"
