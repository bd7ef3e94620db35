"""A thread that runs one task after the other, for tasks that wait for the primary.

Tasks are short, or end when their connection ends. Laws: a task handles every error of the outside
world itself, and raises only bugs. A bug ends the thread and is reported, because later tasks would
not run.
"""

from __future__ import annotations

from collections.abc import Callable
from queue import Empty, SimpleQueue
from threading import Thread

Task = Callable[[], None]
#: Called with a bug, on the thread that it ends.
Failed = Callable[[Exception], None]


class Worker:
    """`idle` is called when there was no task for `idle_seconds`, and at the end."""

    def __init__(self, name: str, idle: Task, idle_seconds: float, failed: Failed) -> None:
        self._tasks: SimpleQueue[Task | None] = SimpleQueue()
        self._idle = idle
        self._idle_seconds = idle_seconds
        self._failed = failed
        self._thread = Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def put(self, task: Task) -> None:
        """For any thread."""
        self._tasks.put(task)

    def close(self) -> None:
        """Tasks put before still run. It does not wait for them."""
        self._tasks.put(None)

    def _run(self) -> None:
        try:
            self._work()
        except Exception as bug:
            self._failed(bug)
            raise

    def _work(self) -> None:
        try:
            while True:
                try:
                    task = self._tasks.get(timeout=self._idle_seconds)
                except Empty:
                    self._idle()
                    task = self._tasks.get()
                if task is None:
                    return
                task()
        finally:
            self._idle()
