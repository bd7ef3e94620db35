"""The owner and the mode that a file with a secret must have."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from quorum_wal.storage import private_file
from quorum_wal.storage.private_file import NotPrivate, check_private, read_private

ROOT, US, OTHER = 0, 1000, 1001


@pytest.mark.parametrize(
    ("owner", "we_are", "mode", "is_private"),
    [
        (US, US, 0o600, True),
        (US, US, 0o400, True),
        (US, US, 0o700, True),
        (US, US, 0o640, False),
        (US, US, 0o604, False),
        (US, US, 0o620, False),
        (US, US, 0o602, False),
        (US, US, 0o601, False),
        (ROOT, US, 0o640, True),
        (ROOT, US, 0o440, True),
        (ROOT, US, 0o600, True),
        (ROOT, US, 0o660, False),
        (ROOT, US, 0o650, False),
        (ROOT, US, 0o644, False),
        (ROOT, US, 0o444, False),
        (ROOT, US, 0o642, False),
        (ROOT, ROOT, 0o640, True),
        (ROOT, ROOT, 0o644, False),
        (OTHER, US, 0o600, False),
        (OTHER, ROOT, 0o600, False),
    ],
)
def test_the_rule_of_postgres(
    monkeypatch: pytest.MonkeyPatch, owner: int, we_are: int, mode: int, is_private: bool
) -> None:
    found = os.stat_result((stat.S_IFREG | mode, 1, 1, 1, owner, owner, 9, 0, 0, 0))
    monkeypatch.setattr(os, "geteuid", lambda: we_are)
    monkeypatch.setattr(os, "stat", lambda _: found)
    if is_private:
        check_private(Path("key"))
        return
    words = "owned by uid 1001" if owner == OTHER else f"its mode is 0{mode:o}"
    with pytest.raises(NotPrivate, match=words) as caught:
        check_private(Path("key"))
    assert "0640" in caught.value.hint


def test_the_checked_file_is_the_one_that_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that replaces it in between is neither."""
    path = tmp_path / "users"
    path.touch(mode=0o600)
    path.write_text("private")
    fstat = os.fstat

    def replaced(descriptor: int) -> os.stat_result:
        (tmp_path / "new").write_text("public")
        (tmp_path / "new").chmod(0o644)
        (tmp_path / "new").rename(path)
        return fstat(descriptor)

    monkeypatch.setattr(private_file.os, "fstat", replaced)
    assert read_private(path) == b"private"


def test_only_a_regular_file(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe, 0o600)
    with pytest.raises(NotPrivate, match="is not a regular file"):
        read_private(pipe)
    with pytest.raises(NotPrivate, match="is not a regular file"):
        check_private(tmp_path)
    with pytest.raises(FileNotFoundError):
        read_private(tmp_path / "none")
