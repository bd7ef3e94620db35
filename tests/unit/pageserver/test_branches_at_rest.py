"""The settings of a branch's server, and the folder of branches, without a server."""

from __future__ import annotations

import os
import shlex
from datetime import UTC, datetime
from pathlib import Path

import pytest

from quorum_wal.pageserver.branches.branch_folder import BranchFolder, BranchState, branch_folders
from quorum_wal.pageserver.branches.branch_record import Branch, decode_branch
from quorum_wal.pageserver.branches.branch_server import state_of
from quorum_wal.pageserver.branches.branch_settings import (
    check_user_settings,
    command_line,
    configuration,
    fixed_settings,
)
from quorum_wal.pageserver.errors import BranchError


def record(name: str) -> Branch:
    at = datetime(2026, 11, 21, 10, 15, tzinfo=UTC)
    return Branch(
        name=name, timeline="t", lsn=300, cut_lsn=200, tli=2, moment=at, last_commit_at=None,
        pg_version="15.18", bin_dir="/usr/bin", port=5433, database="postgres",
        superuser="postgres", prepared=0, created_at=at,
    )  # fmt: skip


def made(root: Path, name: str) -> BranchFolder:
    folder = BranchFolder(root, name)
    folder.begin()
    folder.work.mkdir()
    folder.data.mkdir()
    folder.finish(record(name))
    return folder


def test_fixed_settings_cannot_be_set() -> None:
    check_user_settings({"work_mem": "7MB"})
    for name in fixed_settings("x", 1):
        with pytest.raises(BranchError, match="cannot be set"):
            check_user_settings({name.upper(): "on"})


def test_values_are_quoted() -> None:
    words = shlex.split(command_line({"cluster_name": "branch it's", "primary_conninfo": ""}))
    assert words == ["--cluster_name=branch it's", "--primary_conninfo="]
    assert "a = 'it''s \\\\'\n" in configuration({"a": "it's \\"})


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "-a", ".a", "a b", "x" * 49, "\u00e4"])
def test_invalid_names_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(BranchError, match="is not a valid branch name"):
        BranchFolder(tmp_path, name)


def test_a_socket_that_clients_could_not_reach_is_refused(tmp_path: Path) -> None:
    longest = 107 - len(os.fsencode(tmp_path)) - len("//n/socket/.s.PGSQL.65535")
    BranchFolder(tmp_path / ("d" * longest), "n").begin()
    folder = BranchFolder(tmp_path / ("e" * (longest + 1)), "n")
    with pytest.raises(BranchError, match="expected at most 107 bytes, got 108"):
        folder.begin()
    assert not folder.path.parent.exists()


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    folder = made(tmp_path, "a")
    assert folder.require() == record("a")
    assert state_of(folder) is BranchState.STOPPED
    with pytest.raises(BranchError, match="branch a already exists"):
        BranchFolder(tmp_path, "a").begin()
    with pytest.raises(BranchError, match="format 2, expected 1"):
        decode_branch(record("a").encode().replace(b'"format": 1', b'"format": 2'))


def test_an_incomplete_branch_is_listed_and_removed(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()  # as after a kill before its first file
    begun = BranchFolder(tmp_path, "begun")
    begun.begin()
    (begun.path / "data").mkdir()
    (begun.path / "data/file").write_text("x")
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "letter").write_text("mine")
    found = branch_folders(tmp_path)
    assert [(each.name, state_of(each)) for each in found] == [
        ("begun", BranchState.INCOMPLETE),
        ("empty", BranchState.INCOMPLETE),
    ]
    for each in found:
        with pytest.raises(BranchError, match="is incomplete"):
            each.require()
        each.remove()
    with pytest.raises(BranchError, match="is not the folder of a branch"):
        BranchFolder(tmp_path, "foreign").remove()
    assert list(tmp_path.iterdir()) == [foreign]


def test_an_interrupted_removal_leaves_an_incomplete_branch(tmp_path: Path) -> None:
    folder = made(tmp_path, "a")
    (folder.path / "branch.json").rename(folder.path / "incomplete")  # a removal's first step
    assert state_of(folder) is BranchState.INCOMPLETE
    folder.remove()
    assert branch_folders(tmp_path) == []


def test_a_branch_is_locked_by_one_process(tmp_path: Path) -> None:
    folder = made(tmp_path, "a")
    with folder.locked():
        assert state_of(folder) is BranchState.BUSY
        with pytest.raises(BranchError, match="in use by another"), folder.locked():
            pass
    assert state_of(folder) is BranchState.STOPPED


def test_a_damaged_record_is_an_error_and_can_be_removed(tmp_path: Path) -> None:
    folder = made(tmp_path, "a")
    (folder.path / "branch.json").write_text("{}")
    with pytest.raises(BranchError, match="is damaged"):
        state_of(folder)
    folder.remove()
    assert not folder.path.exists()
