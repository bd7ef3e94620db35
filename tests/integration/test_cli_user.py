"""`sk user`: the file that it writes, the users that may connect, and that the file is always
whole."""

from __future__ import annotations

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from sk_command import assert_refused, assert_wrong_usage, sk, sk_json

from quorum_wal.access.roles import Role
from quorum_wal.access.users import parse_users
from quorum_wal.pgwire.auth import make_verifier

PASSWORD = "correct horse"


def add(file: Path, user: str, *more: str, password: str = PASSWORD) -> None:
    done = sk("user", "add", file, user, *more, stdin=f"{password}\nsecond line\n")
    assert done.returncode == 0, done.stderr
    assert password not in done.stdout + done.stderr


def test_users_are_added_and_removed(tmp_path: Path) -> None:
    file = tmp_path / "users"
    add(file, "alice", "--role", "proposer")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    file.write_text(f"# the primary\n{file.read_text()}\n")
    file.chmod(0o640)
    add(file, "bob smith", "--role", "replica", "--role", "monitor")
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    assert sk_json("user", "list", file) == [
        {"user": "alice", "roles": ["proposer"]},
        {"user": "bob smith", "roles": ["replica", "monitor"]},
    ]
    verifier = parse_users(file.read_text())["alice"].verifier
    assert make_verifier(PASSWORD, verifier.salt, verifier.iterations) == verifier
    assert str(verifier) not in sk("user", "list", file).stdout

    before = file.read_text()
    again = sk("user", "add", file, "alice", "--role", "admin", stdin="other\n")
    assert_refused(again, 1, 'already has user "alice"', "--replace")
    assert file.read_text() == before
    add(file, "alice", "--role", "admin", "--replace", password="other")
    assert parse_users(file.read_text())["alice"].roles == {Role.ADMIN}
    assert parse_users(file.read_text())["alice"].verifier != verifier
    assert file.read_text().startswith("# the primary\nalice:admin:SCRAM-SHA-256$")

    assert sk("user", "remove", file, "alice").returncode == 0
    assert list(parse_users(file.read_text())) == ["bob smith"]
    assert file.read_text().startswith("# the primary\n")
    assert_refused(sk("user", "remove", file, "alice"), 1, 'has no user "alice"', "sk user list")
    last = sk("user", "remove", file, "bob smith")
    assert_refused(last, 1, '"bob smith" is the last user in', "Add another user first")
    assert [path.name for path in tmp_path.iterdir()] == ["users"]


def test_two_additions_at_once_lose_nothing(tmp_path: Path) -> None:
    file = tmp_path / "users"
    names = [f"user{number}" for number in range(6)]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda name: add(file, name, "--role", "replica"), names))
    assert sorted(parse_users(file.read_text())) == names


def test_what_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "users"
    role = ("--role", "admin")
    assert_refused(sk("user", "add", file, "alice", *role), 1, "password is empty", "stdin")
    long = tmp_path / ("x" * 300)
    assert_refused(sk("user", "remove", long, "a"), 1, "File name too long", "Correct the file")
    assert_refused(sk("user", "add", long, "a", *role, stdin="x\n"), 1, "File name too long")
    os.mkfifo(tmp_path / "pipe")  # a device would be replaced by a file, as root
    done = sk("user", "add", tmp_path / "pipe", "alice", *role, stdin="x\n")
    assert_refused(done, 1, 'pipe": it is not a regular file', "Correct the file")
    assert_wrong_usage(sk("user", "add", file, "a:b", *role, stdin="x\n"), 'no ":" or "#"')
    assert_wrong_usage(sk("user", "add", file, "alice", stdin="x\n"), "--role")
    assert_wrong_usage(sk("user", "add", file, "alice", "--role", "king", stdin="x"), "'king'")
    nowhere = sk("user", "add", tmp_path / "none" / "users", "alice", *role, stdin="x\n")
    assert_refused(nowhere, 1, "No such file or directory")
    assert_refused(sk("user", "list", file), 1, "No such file or directory", "Correct the file")
    assert not file.exists()
    file.write_text("alice:hunter2\n")
    done = sk("user", "add", file, "bob", *role, stdin="x\n")
    assert_refused(done, 1, "line 1: expected user:role", "Correct the file")
    assert "hunter2" not in done.stderr
    assert file.read_text() == "alice:hunter2\n"
