"""`in_order`: calls a function for several inputs at the same time. The results stay in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future
from typing import TypeVar

P = TypeVar("P")
T = TypeVar("T")


def in_order(
    pool: Executor, call: Callable[[P], T], inputs: Iterable[P], ahead: int
) -> Iterator[tuple[P, T]]:
    """Each input and its result. At most `ahead` calls are running or have a result that is not
    taken. An error of a call is raised in the place of its result. `inputs` may be endless."""
    running: deque[tuple[P, Future[T]]] = deque()
    for each in inputs:
        running.append((each, pool.submit(call, each)))
        if len(running) >= ahead:
            done, future = running.popleft()
            yield done, future.result()
    for done, future in running:
        yield done, future.result()
