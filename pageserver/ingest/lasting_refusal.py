"""Refusals of safekeepers that only an administrator can end: a wrong user, password or role.

Law: a safekeeper that does not answer, and one that answers something else, refuses nobody for
good. A pageserver must be able to start before its safekeepers do.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import closing
from queue import Empty, SimpleQueue

from quorum_wal.backup.safekeeper_wal import Safekeeper
from quorum_wal.pageserver.errors import PageserverError
from quorum_wal.pgclient.connection import NO_PASSWORD
from quorum_wal.pgclient.errors import ServerError
from quorum_wal.pgclient.questions import identify_system

#: errcodes.h: the user has no role for the command.
INSUFFICIENT_PRIVILEGE = "42501"
#: A connection that is refused has no SQLSTATE, only the server's text.
TEXTS = ("authentication failed", NO_PASSWORD)
ANSWER_SECONDS = 6.0


def is_lasting(error: Exception) -> bool:
    """Whether a repetition gets the same answer until an administrator changes something."""
    if getattr(error, "sqlstate", "") == INSUFFICIENT_PRIVILEGE:
        return True
    text = str(error)
    return any(each in text for each in TEXTS)


def check_not_refused(safekeepers: Sequence[Safekeeper], seconds: float = ANSWER_SECONDS) -> None:
    """Raises PageserverError if every safekeeper that answers in time refuses to serve WAL for a
    lasting reason. Returns at the first other answer."""
    answers: SimpleQueue[tuple[Safekeeper, Exception | None]] = SimpleQueue()
    for each in safekeepers:
        # Daemon threads: a connection attempt to an unreachable host may outlast the wait.
        threading.Thread(target=_ask, args=(each, answers), daemon=True).start()
    deadline = time.monotonic() + seconds
    refusal: PageserverError | None = None
    for _ in safekeepers:
        try:
            safekeeper, error = answers.get(timeout=max(0.0, deadline - time.monotonic()))
        except Empty:
            break
        hint = str(getattr(error, "hint", ""))
        if error is not None and is_lasting(error):
            words, name = " ".join(str(error).split()), safekeeper.name
            words = words if name in words else f"safekeeper {name}: {words}"
            refusal = refusal or PageserverError(
                f"the safekeepers refuse this pageserver: {words}",
                hint=hint or "Give another user in --safekeeper-conninfo.",
            )
        elif error is None or hint or isinstance(error, ServerError):
            return  # else there is no answer: a server's refusal to connect has a hint
    if refusal is not None:
        raise refusal


def _ask(safekeeper: Safekeeper, answers: SimpleQueue[tuple[Safekeeper, Exception | None]]) -> None:
    try:
        with closing(safekeeper.connect()) as connection:
            identify_system(connection.pgconn)
    except Exception as error:  # any error of the connection: the caller judges it
        answers.put((safekeeper, error))
    else:
        answers.put((safekeeper, None))
