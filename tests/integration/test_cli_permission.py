"""`sk status` by a user without the right, or with a wrong password."""

from __future__ import annotations

from pathlib import Path

from sk_command import assert_refused, sk
from test_who_may_connect import PASSWORD, Folder, Keeper


def test_status_names_the_missing_right(tmp_path: Path) -> None:
    """The safekeeper answers, so the hint does not say to start it."""
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
