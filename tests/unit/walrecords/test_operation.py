"""Names of operations, and differences between versions."""

from __future__ import annotations

import pytest

from quorum_wal.pgwal.errors import WalError
from quorum_wal.pgwal.versions import SUPPORTED_MAJORS
from quorum_wal.walrecords.operation import operation_name, operation_names


@pytest.mark.parametrize(
    ("rmgr_id", "info", "names"),
    [
        (0, 0x10, ["CHECKPOINT_ONLINE"] * 6),
        (0, 0xE0, ["UNKNOWN (e0)"] * 4 + ["CHECKPOINT_REDO"] * 2),
        (1, 0x80, ["COMMIT"] * 6),
        (1, 0x60, ["UNKNOWN (60)"] + ["INVALIDATION"] * 5),
        (1, 0xF0, ["UNKNOWN (f0)"] * 6),
        (4, 0x00, ["CREATE"] * 2 + ["CREATE_FILE_COPY"] * 4),
        (4, 0x10, ["DROP"] * 2 + ["CREATE_WAL_LOG"] * 4),
        (9, 0x10, ["CLEAN"] + ["PRUNE"] * 3 + ["PRUNE_ON_ACCESS"] * 2),
        (9, 0x20, ["FREEZE_PAGE"] + ["VACUUM"] * 3 + ["PRUNE_VACUUM_SCAN"] * 2),
        (9, 0xD0, ["MULTI_INSERT+INIT"] * 6),
        (10, 0x80, ["INSERT+INIT"] * 6),
        (10, 0x43, ["HOT_UPDATE"] * 6),
        (18, 0x20, ["SETTS"] + ["UNKNOWN (20)"] * 5),
    ],
)
def test_names_by_version(rmgr_id: int, info: int, names: list[str]) -> None:
    assert [operation_name(rmgr_id, info, major) for major in SUPPORTED_MAJORS] == names


def test_custom_resource_managers_have_operations_without_names() -> None:
    assert operation_name(200, 0x30, 16) == "UNKNOWN (30)"
    with pytest.raises(WalError, match="invalid resource manager ID 200 for Postgres 14"):
        operation_name(200, 0x30, 14)


@pytest.mark.parametrize("major", SUPPORTED_MAJORS)
def test_the_table_has_every_name_at_its_code(major: int) -> None:
    names = operation_names(major)
    assert len(names) == 256 * 16
    assert names[10 << 4 | 0x8] == "INSERT+INIT"
    assert names[22 << 4] == ""
    assert (names[128 << 4] == "UNKNOWN (0)") == (major >= 15)
    assert max(map(len, names)) <= 32
