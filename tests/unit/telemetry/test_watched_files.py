"""Values that follow their files, except if the files become unusable."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from quorum_wal.telemetry.http_token import TOKEN_CHARACTERS_MIN, read_http_token
from quorum_wal.telemetry.loopback import is_loopback
from quorum_wal.telemetry.watched_files import WatchedFiles


class Numbers:
    """Two files with a number each; the value is their sum."""

    def __init__(self, folder: Path) -> None:
        self.paths = [folder / "a", folder / "b"]
        self.loads = 0
        for path in self.paths:
            self.write(path, "1")
        self.watched = WatchedFiles(self.paths, self.load)

    def write(self, path: Path, text: str) -> None:
        path.with_suffix(".new").write_text(text)
        path.with_suffix(".new").rename(path)

    def load(self) -> int:
        self.loads += 1
        return sum(int(path.read_text()) for path in self.paths)


@pytest.fixture
def numbers(tmp_path: Path) -> Numbers:
    return Numbers(tmp_path)


def test_files_are_read_when_they_change_and_only_then(numbers: Numbers) -> None:
    for _ in range(3):
        assert numbers.watched.current() == 2
    assert numbers.loads == 1
    numbers.write(numbers.paths[1], "5")
    for _ in range(3):
        assert numbers.watched.current() == 6
    assert numbers.loads == 2


def test_a_change_of_the_same_size_in_place_is_seen(numbers: Numbers) -> None:
    numbers.paths[0].write_text("7")
    os.utime(numbers.paths[0], ns=(0, 0))
    assert numbers.watched.current() == 8


def test_unusable_files_change_nothing_and_are_reported_once(numbers: Numbers) -> None:
    with capture_logs() as logs:
        numbers.write(numbers.paths[0], "none")
        assert [numbers.watched.current() for _ in range(3)] == [2, 2, 2]
        numbers.paths[0].unlink()
        assert [numbers.watched.current() for _ in range(3)] == [2, 2, 2]
        numbers.write(numbers.paths[0], "3")
        assert numbers.watched.current() == 4
    assert [entry["log_level"] for entry in logs] == ["error", "error", "info"]
    assert numbers.loads == 4


def test_files_must_be_usable_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        WatchedFiles([tmp_path / "a"], (tmp_path / "a").read_text)


def test_a_token_is_one_line_that_cannot_be_guessed(tmp_path: Path) -> None:
    path = tmp_path / "token"
    for text in ("0123456789abcdef", "  0123456789abcdef==\n"):
        path.write_text(text)
        assert read_http_token(path) == text.strip()
    short, two = "s3cret" * 2, "s3cret-s3cret-s3cret\nsecond line"
    assert len(short) < TOKEN_CHARACTERS_MIN
    for text in ("", short, two, "s3cret s3cret s3cret", "s3crétttttttttttttttt"):
        path.write_text(text)
        with pytest.raises(ValueError, match="holds no token") as caught:
            read_http_token(path)
        assert "s3cr" not in str(caught.value)


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.1", False),
        ("localhost.example", False),
        ("", False),
    ],
)
def test_hosts_that_other_machines_can_reach(host: str, expected: bool) -> None:
    assert is_loopback(host) == expected
