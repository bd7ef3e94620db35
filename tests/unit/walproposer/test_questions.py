"""The answers that a coordinator gives at once, and those it cannot give yet."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from limbo_steps import NODE, SETTINGS, led

from quorum_wal.walproposer.qsync.answers import Row
from quorum_wal.walproposer.qsync.limbo import Limbo
from quorum_wal.walproposer.qsync.limbo_events import Event, Fenced, LimboRead
from quorum_wal.walproposer.qsync.question import Question, Refusal
from quorum_wal.walproposer.qsync.questions import Questions
from quorum_wal.walproposer.qsync.verbs import ShowList, ShowStatus, Verb

READ = LimboRead(NODE, (), 1000, 1000, 0)


def answer_to(verb: Verb, *events: Event) -> tuple[Row, ...] | Refusal:
    """After these events."""
    limbo = Limbo(SETTINGS)
    for event in events:
        limbo.step(event)
    coordinator: Any = SimpleNamespace(limbo=limbo, new_status=lambda: {"owner": None})
    answers: list[tuple[Row, ...] | Refusal] = []
    Questions(coordinator).ask(Question(1, "app", verb, lambda _, found: answers.append(found)))
    (found,) = answers
    return found


@pytest.mark.parametrize(
    ("events", "text"),
    [
        ((), "the coordinator does not lead"),
        ((led(), READ, Fenced("the primary was lost")), "the coordinator does not lead"),
        ((led(),), "the coordinator has not read the prepared transactions yet"),
        ((led(), READ, Fenced("it ends"), led()), "the coordinator has not read the prepared"),
    ],
)
def test_a_limbo_that_is_not_known_is_not_listed_as_empty(
    events: tuple[Event, ...], text: str
) -> None:
    found = answer_to(ShowList(), *events)
    assert isinstance(found, Refusal)
    assert found.sqlstate == "57P03"
    assert str(found).startswith(text)
    assert found.hint


def test_one_that_is_known_to_be_empty_is() -> None:
    assert answer_to(ShowList(), led(), READ) == ()


def test_the_status_is_always_available() -> None:
    assert isinstance(answer_to(ShowStatus()), tuple)
