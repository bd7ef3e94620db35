"""`sk status` for a user who may not ask, or whose password is wrong."""

from __future__ import annotations

from pathlib import Path

from sk_command import assert_refused, sk
from test_who_may_connect import PASSWORD, Folder, Keeper


def test_status_says_what_a_role_may_not_do(tmp_path: Path) -> None:
    """It answers, so it is not to be started."""
    with Keeper(Folder(tmp_path)) as keeper:
        check_status(keeper)


def check_status(keeper: Keeper) -> None:
    settings = "sslmode=verify-full", f"sslrootcert={keeper.folder.path}/ca.pem"
    for login, says, remedy in (
        (("user=reader", f"password='{PASSWORD}'"), 'permission denied for user "reader": LIST_TI'
         "MELINES needs the role proposer or monitor or admin", "sk user add"),
        (("user=watcher", "password=wrong"), "authentication failed", "Correct the user or its p"),
    ):  # fmt: skip
        asked = ("--safekeepers", keeper.address)
        asked += ("--safekeeper-conninfo", " ".join((*settings, *login)))
        status = sk("status", *asked)
        assert status.returncode == 1, status.stderr
        sentence = status.stdout.splitlines()[0]
        assert sentence.startswith("UNKNOWN: the safekeepers refuse to answer: ")
        assert says in sentence
        assert remedy in sentence
        assert "start" not in sentence
        assert_refused(sk("timeline", "list", *asked), 1, says, remedy)
