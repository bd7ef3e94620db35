"""What a truncation does to the checksums: it makes nothing good that was damaged before."""

from __future__ import annotations

from pathlib import Path

import pytest
from timeline_on_disk import leading_pusher
from wal_log import START_LSN

from safekeeper.block_sums import BLOCK_BYTES
from safekeeper.errors import WalDamaged

CUT = START_LSN + BLOCK_BYTES + 10_000


@pytest.mark.parametrize("is_rotten", [True, False])
def test_a_block_that_rotted_is_still_damaged_when_its_end_is_cut_off(
    tmp_path: Path, is_rotten: bool
) -> None:
    pusher = leading_pusher(tmp_path)
    while pusher.log.lsn < START_LSN + 3 * BLOCK_BYTES:
        pusher.log.append(f"R{len(pusher.log.ends)}", 1000)
    pusher.push()
    store = pusher.timeline.store
    end_lsn = pusher.log.boundary_after(CUT)
    (path,) = store.files_of(1)
    if is_rotten:
        content = bytearray(path.read_bytes())
        content[BLOCK_BYTES + 5000] ^= 1
        path.write_bytes(content)
    store.truncate(end_lsn)
    store.write(end_lsn, pusher.log.read(end_lsn, pusher.log.lsn))
    facts = store.facts(START_LSN)
    whole = store.checked.read(START_LSN, BLOCK_BYTES, facts)
    assert whole == pusher.log.read(START_LSN, START_LSN + BLOCK_BYTES)
    if is_rotten:
        with pytest.raises(WalDamaged):
            store.checked.read(START_LSN + BLOCK_BYTES, BLOCK_BYTES, facts)
    else:
        store.checked.read(START_LSN + BLOCK_BYTES, BLOCK_BYTES, facts)
