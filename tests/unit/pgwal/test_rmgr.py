"""Differences by major version: page magic, resource managers, bits of page images."""

from __future__ import annotations

import pytest

from quorum_wal.pgwal.errors import UnsupportedVersionError, WalError
from quorum_wal.pgwal.rmgr import is_rmgr_id, rmgr_name
from quorum_wal.pgwal.versions import SUPPORTED_MAJORS, wal_version


def test_every_version_has_its_own_magic() -> None:
    assert SUPPORTED_MAJORS == (13, 14, 15, 16, 17, 18)
    magics = [wal_version(major).page_magic for major in SUPPORTED_MAJORS]
    assert magics == [0xD106, 0xD10D, 0xD110, 0xD113, 0xD116, 0xD118]


@pytest.mark.parametrize("major", [0, 12, 19])
def test_other_versions_are_refused(major: int) -> None:
    with pytest.raises(UnsupportedVersionError, match="expected 13 to 18"):
        wal_version(major)


@pytest.mark.parametrize("major", SUPPORTED_MAJORS)
def test_builtin_names(major: int) -> None:
    assert rmgr_name(0, major) == "XLOG"
    assert rmgr_name(10, major) == "Heap"
    assert rmgr_name(21, major) == "LogicalMessage"
    assert not is_rmgr_id(22, wal_version(major))
    assert not is_rmgr_id(127, wal_version(major))


@pytest.mark.parametrize("major", [15, 16, 17, 18])
def test_custom_names(major: int) -> None:
    assert rmgr_name(128, major) == "custom128"
    assert rmgr_name(255, major) == "custom255"


@pytest.mark.parametrize(
    ("rmgr_id", "major"), [(128, 14), (255, 13), (22, 18), (256, 18), (-1, 18)]
)
def test_invalid_ids(rmgr_id: int, major: int) -> None:
    with pytest.raises(WalError, match="invalid resource manager ID"):
        rmgr_name(rmgr_id, major)
