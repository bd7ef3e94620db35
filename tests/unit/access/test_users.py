"""The user file: valid lines, refused lines, and edits of one line."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorum_wal.access.roles import Role
from quorum_wal.access.users import User, UserFileError, edit_user_file, parse_users
from quorum_wal.pgwire.auth import make_verifier

VERIFIER = make_verifier("pencil", b"0123456789abcdef", 2)
ALICE = User("alice", frozenset({Role.PROPOSER, Role.MONITOR}), VERIFIER)

names = st.text(min_size=1, max_size=12).filter(
    lambda name: not set(name) & set(":#") and name.isprintable() and name.strip() == name
)
users = st.builds(User, names, st.frozensets(st.sampled_from(Role), min_size=1), st.just(VERIFIER))


@given(users)
def test_a_user_is_read_as_written(user: User) -> None:
    assert User.parse(str(user)) == user
    assert str(User.parse(f"  {user}  ")) == str(user)


def test_a_file_with_comments() -> None:
    text = f"# who\n\n{ALICE}\n  # old: bob:admin:x\nBob:admin:{VERIFIER}"
    assert list(parse_users(text)) == ["alice", "Bob"]
    assert parse_users(text)["alice"] == ALICE
    assert parse_users("") == {}


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("alice", "expected user:role"),
        ("alice:secret", "expected user:role"),
        (f"alice:{VERIFIER}", "expected user:role"),
        (f"alice::{VERIFIER}", "unknown role"),
        (
            f"alice:secret:{VERIFIER}",
            "unknown role: expected proposer, replica, monitor, client, admin",
        ),
        (f"alice:Admin:{VERIFIER}", "unknown role"),
        ("alice:admin:secret", "invalid SCRAM verifier"),
        (f":admin:{VERIFIER}", "a user name must have 1 to 63 bytes"),
        (f"{'é' * 32}:admin:{VERIFIER}", "a user name must have 1 to 63 bytes"),
        (f"al\tice:admin:{VERIFIER}", "a user name must have 1 to 63 bytes"),
        (f"alice:admin:{VERIFIER}:more", "invalid SCRAM verifier"),
    ],
)
def test_an_invalid_line_is_refused_with_its_number(line: str, sentence: str) -> None:
    with pytest.raises(UserFileError, match=r"^line 2: ") as caught:
        parse_users(f"# users\n{line}\n")
    assert sentence in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_user_twice_is_refused() -> None:
    with pytest.raises(UserFileError, match="line 2: its user is already in a line above"):
        parse_users(f"{ALICE}\n{ALICE}\n")


@given(st.lists(users, max_size=4, unique_by=lambda user: user.name), users)
def test_an_edit_touches_one_line(known: list[User], changed: User) -> None:
    text = "# first\n" + "".join(f"{user}\n\n# next\n" for user in known)
    edited = edit_user_file(text, changed.name, changed)
    assert parse_users(edited) == {**parse_users(text), changed.name: changed}
    removed = edit_user_file(edited, changed.name, None)
    assert parse_users(removed) == {u.name: u for u in known if u.name != changed.name}
    assert removed.count("#") == text.count("#")


def test_an_edit_of_nothing() -> None:
    assert edit_user_file("", "alice", ALICE) == f"{ALICE}\n"
    assert edit_user_file(f"{ALICE}", "alice", None) == ""
