"""Bugs that the soak of qsync must detect: `--plant NAME`. Each breaks one promise, by name."""

from __future__ import annotations

from typing import Any

from quorum_wal.qsync import coordinator_client
from quorum_wal.qsync.gid import Gid
from quorum_wal.qsync.outcome import RolledBack

#: Name -> the bug, and the message of the soak.
PLANTS = {
    "confirm": "clients take a wait whose time is over for one that was confirmed: SEEN_LOST,"
    " COMMITTED_LOST or TWO_ANSWERS",
    "gone": "clients take a transaction that is pending for one that is gone: GONE_APPEARS",
    "answers": "of each fifth transaction OUTCOME says that it was rolled back: TWO_ANSWERS",
    "unknown": "OUTCOME never knows: too many outcomes are unknown",
    "janitor": "nobody ends what clients leave behind: the limbo is not empty in time",
    "names": "plain commits wait for the quorum, though nobody has asked: PLAIN_DELAYED",
}
OF_CLIENTS = ("confirm", "gone")


def plant_into_inquirer(name: str) -> None:
    """In this process, where only a watcher asks for outcomes."""
    answer = coordinator_client._outcome

    def answers(said: str | None, at: str | None, gid: Gid, lsn: int) -> Any:
        if int(gid.uuid, 16) % 5 == 0:
            return RolledBack("planted")
        return answer(said, at, gid, lsn)

    def unknown(said: str | None, at: str | None, gid: Gid, lsn: int) -> Any:
        return answer("unknown", at, gid, lsn)

    if name == "answers":
        coordinator_client._outcome = answers
    if name == "unknown":
        coordinator_client._outcome = unknown
