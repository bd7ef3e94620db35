"""Planting: a bug is a function that patches the cores; every patch is taken back afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

Patch = Callable[[Any, str, object], None]
Plant = Callable[[Patch], None]
PLANTS: list[Plant] = []
#: In worlds whose members change; and those of them that are too rare for every run.
CHANGE_PLANTS: list[Plant] = []
RARE_PLANTS: list[Plant] = []
#: In worlds with a limbo; and those of them that are too rare for every run.
LIMBO_PLANTS: list[Plant] = []
RARE_LIMBO_PLANTS: list[Plant] = []
#: In worlds of pageservers; and those of them that are too rare for every run.
PAGESERVER_PLANTS: list[Plant] = []
RARE_PAGESERVER_PLANTS: list[Plant] = []


def plant(bug: Plant) -> Plant:
    PLANTS.append(bug)
    return bug


def plant_change(bug: Plant) -> Plant:
    CHANGE_PLANTS.append(bug)
    return bug


def plant_rare(bug: Plant) -> Plant:
    RARE_PLANTS.append(bug)
    return bug


def plant_limbo(bug: Plant) -> Plant:
    LIMBO_PLANTS.append(bug)
    return bug


def plant_rare_limbo(bug: Plant) -> Plant:
    RARE_LIMBO_PLANTS.append(bug)
    return bug


def plant_pageserver(bug: Plant) -> Plant:
    PAGESERVER_PLANTS.append(bug)
    return bug


def plant_rare_pageserver(bug: Plant) -> Plant:
    RARE_PAGESERVER_PLANTS.append(bug)
    return bug


@contextmanager
def planted(bug: Plant) -> Iterator[None]:
    """Every patch is taken back at the end."""
    before: list[tuple[Any, str, object]] = []

    def patch(owner: Any, name: str, value: object) -> None:
        before.append((owner, name, vars(owner)[name]))
        setattr(owner, name, value)

    try:
        bug(patch)
        yield
    finally:
        for owner, name, value in reversed(before):
            setattr(owner, name, value)


def without(kind: type, step: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
    """The same step of a core that forgets to order one kind of action."""
    return lambda *args: [action for action in step(*args) if not isinstance(action, kind)]
