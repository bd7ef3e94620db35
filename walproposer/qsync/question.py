"""Between the coordinator's port and who knows the answers: a question, and the interface for it.

port    -- ask(question) -->           Verdicts      on the port's thread, which must not wait
port    <-- question.answer(row) --    any thread
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from walproposer.qsync.answers import ROW_OF, Row
from walproposer.qsync.verbs import Verb


class Refusal(Exception):
    """The answer is an error."""

    def __init__(self, sqlstate: str, text: str, hint: str = "") -> None:
        super().__init__(text)
        self.sqlstate = sqlstate
        self.hint = hint


class Question:
    """A verb that waits for its answer. `waiter` numbers the connection it came by, which has one
    question at a time; a question that was taken back, or answered, drops what comes later."""

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
        """Any thread may call it. The rows are of the type that ROW_OF has for the verb; one row,
        but for ShowList."""
        assert all(type(row) is ROW_OF[type(self.verb)] for row in rows)
        self._reply(self, rows)

    def refuse(self, sqlstate: str, text: str, hint: str = "") -> None:
        """Any thread may call it."""
        self._reply(self, Refusal(sqlstate, text, hint))


class Verdicts(Protocol):
    """Who knows the answers. All is called on the port's thread, and returns at once."""

    def ask(self, question: Question) -> None:
        """Answer it, now or later."""

    def take_back(self, waiter: int) -> None:
        """Its question was canceled, and the client knows it. The connection stays."""

    def leave(self, waiter: int) -> None:
        """The connection is gone, with the question it may have had. Told once of each that has
        ever asked something."""
