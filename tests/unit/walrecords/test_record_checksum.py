"""Both ways to compute a CRC-32C in a compiled loop equal the library."""

from __future__ import annotations

import random

import numpy as np
import pytest
from crc32c import crc32c

from quorum_wal.walrecords.checksum import HAS_INSTRUCTION, extend_by_instruction, extend_by_tables

WAYS = [
    pytest.param(extend_by_tables, id="tables"),
    pytest.param(
        extend_by_instruction,
        id="instruction",
        marks=pytest.mark.skipif(not HAS_INSTRUCTION, reason="no SSE 4.2 here"),
    ),
]


@pytest.mark.parametrize("extend", WAYS)
def test_check_value(extend) -> None:  # type: ignore[no-untyped-def]
    data = np.frombuffer(b"123456789", np.uint8)
    assert extend(np.uint32(0), data, 0, 9) == 0xE3069283


@pytest.mark.parametrize("extend", WAYS)
def test_any_part_after_any_other(extend) -> None:  # type: ignore[no-untyped-def]
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    raw = rng.randbytes(300)
    data = np.frombuffer(raw, np.uint8)
    for _ in range(300):
        begin, middle, end = sorted(rng.randrange(len(raw) + 1) for _ in range(3))
        crc = extend(np.uint32(0), data, begin, middle)
        assert crc == crc32c(raw[begin:middle])
        assert extend(crc, data, middle, end) == crc32c(raw[begin:end])
