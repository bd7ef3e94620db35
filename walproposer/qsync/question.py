"""A question of the coordinator's port, and the interface to the module that answers it.

port    -- ask(question) -->           Verdicts      on the port's thread, which must not wait
port    <-- question.answer(row) --    any thread
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from quorum_wal.walproposer.qsync.answers import ROW_OF, Row
from quorum_wal.walproposer.qsync.verbs import Verb


class Refusal(Exception):
    """The answer is an error."""

    def __init__(self, sqlstate: str, text: str, hint: str = "") -> None:
        super().__init__(text)
        self.sqlstate = sqlstate
        self.hint = hint


class Question:
    """A verb that waits for its answer. `waiter` is the number of its connection, which has one
    question at a time. A question that was cancelled or answered ignores later answers."""

    __slots__ = ("_reply", "user", "verb", "waiter")

    def __init__(
        self,
        waiter: int,
        user: str,
        verb: Verb,
        reply: Callable[[Question, tuple[Row, ...] | Refusal], None],
    ) -> None:
        self.waiter = waiter
        self.user = user
        self.verb = verb
        self._reply = reply

    def answer(self, *rows: Row) -> None:
        """Any thread may call it. The rows have the type that ROW_OF has for the verb; exactly one
        row, except for ShowList."""
        assert all(type(row) is ROW_OF[type(self.verb)] for row in rows)
        self._reply(self, rows)

    def refuse(self, sqlstate: str, text: str, hint: str = "") -> None:
        """Any thread may call it."""
        self._reply(self, Refusal(sqlstate, text, hint))


class Verdicts(Protocol):
    """Answers questions. All methods are called on the port's thread, and return at once."""

    def ask(self, question: Question) -> None:
        """Answer it, now or later."""

    def cancel_question(self, waiter: int) -> None:
        """Its question was cancelled, and the client has been told. The connection stays open."""

    def leave(self, waiter: int) -> None:
        """The connection is closed, and its question with it. Called once for each connection that
        has ever asked a question."""
