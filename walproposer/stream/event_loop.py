"""The loop of the hot path: epoll, a few timers, and an inbox for the results of threads.

One thread runs it. An event costs one dictionary look-up and one call. asyncio and uvloop were
measured, and add more to a commit than the project allows (`docs/decisions/`).
"""

from __future__ import annotations

import math
import select
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from threading import Lock, Thread, get_ident
from typing import Protocol, TypeVar, runtime_checkable

from quorum_wal.walproposer.errors import WalProposerError

T = TypeVar("T")


class HasFileno(Protocol):
    def fileno(self) -> int: ...


@runtime_checkable
class Closeable(Protocol):
    def close(self) -> None: ...


@dataclass(slots=True)
class _Watch:
    file: HasFileno
    on_readable: Callable[[], None]
    on_writable: Callable[[], None]
    interest: int


class EventLoop:
    """Any thread may call `wake` and `call`. Everything else is for the thread that runs the
    loop."""

    def __init__(self) -> None:
        #: For a caller that waits for some of the files itself, and leaves the others to
        #: `run_once`.
        self.epoll = select.epoll()
        self._watches: dict[int, _Watch] = {}
        #: Callbacks, each with the result of a thread that it handles.
        self._inbox: SimpleQueue[tuple[Callable[[], None], object]] = SimpleQueue()
        self._inbox_lock = Lock()
        self._is_closed = False
        self._timers: list[tuple[float, Callable[[], None]]] = []
        #: Of the thread that runs it; 0: none yet.
        self._thread_id = 0
        self._after_events: list[Callable[[], None]] = []
        self._wake_receiver, self._wake_sender = socket.socketpair()
        self._wake_receiver.setblocking(False)
        self._wake_sender.setblocking(False)
        self.watch(self._wake_receiver, self._take_inbox, lambda: None)

    def close(self) -> None:
        """Results that threads have delivered, or deliver later, are closed."""
        with self._inbox_lock:
            self._is_closed = True
        while not self._inbox.empty():
            _discard(self._inbox.get_nowait()[1])
        self.epoll.close()
        self._wake_receiver.close()
        self._wake_sender.close()

    def wake(self) -> None:
        """End the wait of `run_once`."""
        try:
            self._wake_sender.send(b"\0")
        except OSError:
            return  # a wake-up is pending, or the loop has ended

    @property
    def next_timer(self) -> float:
        """When it is due, by the monotonic clock."""
        return min((due for due, _ in self._timers), default=math.inf)

    def run_once(self, timeout_seconds: float) -> None:
        """Wait for events, at most for this time or until the next timer, and handle them."""
        self._thread_id = get_ident()
        if self._after_events:
            timeout_seconds = 0.0
        if self._timers:
            next_timer = min(due for due, _ in self._timers) - time.monotonic()
            timeout_seconds = max(0.0, min(timeout_seconds, next_timer))
        for fd, mask in self.epoll.poll(timeout_seconds):
            watch = self._watches.get(fd)
            if watch is None:
                continue  # unwatched by the previous event
            if mask & select.EPOLLOUT:
                watch.on_writable()
            if mask & ~select.EPOLLOUT:
                watch.on_readable()
        if self._timers:
            self._run_timers()
        if self._after_events:
            callbacks, self._after_events = self._after_events, []
            for callback in callbacks:
                callback()

    def _run_timers(self) -> None:
        now = time.monotonic()
        due = [timer for timer in self._timers if timer[0] <= now]
        self._timers = [timer for timer in self._timers if timer[0] > now]
        for _, callback in due:
            callback()

    def watch(
        self, file: HasFileno, on_readable: Callable[[], None], on_writable: Callable[[], None]
    ) -> None:
        """Call `on_readable` on input, at the end of the stream, or on an error."""
        fd = file.fileno()
        self._watches[fd] = _Watch(file, on_readable, on_writable, select.EPOLLIN)
        self.epoll.register(fd, select.EPOLLIN)

    def unwatch(self, file: HasFileno) -> None:
        """The file is being closed, or was closed: then its number may already belong to another
        file."""
        fd = file.fileno()
        watch = self._watches.get(fd)
        if watch is None or watch.file is not file:
            return
        del self._watches[fd]
        try:
            self.epoll.unregister(fd)
        except OSError:
            return  # closed before: the kernel has already dropped it

    def set_interest(
        self, file: HasFileno, *, reads: bool, writes: bool, leaves: bool = False
    ) -> None:
        """Cheap if nothing changes. `leaves`: report only the end of the peer's stream, even if
        there is input that is not to be read yet; it counts as readable."""
        wanted = (select.EPOLLIN if reads else 0) | (select.EPOLLOUT if writes else 0)
        wanted |= select.EPOLLRDHUP if leaves else 0
        watch = self._watches.get(file.fileno())
        if watch is not None and watch.file is file and watch.interest != wanted:
            watch.interest = wanted
            self.epoll.modify(file.fileno(), wanted)

    def call_later(self, seconds: float, callback: Callable[[], None]) -> None:
        self._timers.append((time.monotonic() + seconds, callback))

    def call(self, callback: Callable[[], None]) -> None:
        """Call `callback` on the loop, soon. For any thread. Does nothing once the loop has
        ended."""
        self._deliver(callback, None)

    def call_after_events(self, callback: Callable[[], None]) -> None:
        """For any thread: like `call`. From the loop's own thread it costs no wake-up; the callback
        runs at the end of `run_once`. Not for a loop whose caller waits for files itself."""
        if get_ident() == self._thread_id:
            self._after_events.append(callback)
        else:
            self.call(callback)

    def _deliver(self, callback: Callable[[], None], result: object) -> None:
        with self._inbox_lock:
            if not self._is_closed:
                self._inbox.put((callback, result))
                self.wake()
                return
        _discard(result)

    def in_thread(
        self, work: Callable[[], T], done: Callable[[T | WalProposerError], None]
    ) -> None:
        """Run `work` in a thread of its own, and `done` on the loop with its result, or with the
        WalProposerError that it raised. Any other exception is a bug: it is raised on the loop.
        After the end of the loop, a result that can be closed is closed."""

        def run() -> None:
            try:
                result: T | WalProposerError = work()
            except WalProposerError as error:
                result = error
            except BaseException as bug:
                self.call(_raiser(bug))
                return
            self._deliver(lambda: done(result), result)

        Thread(target=run, daemon=True).start()

    def _take_inbox(self) -> None:
        try:
            self._wake_receiver.recv(4096)
        except BlockingIOError:
            return
        while True:
            try:
                callback, _ = self._inbox.get_nowait()
            except Empty:
                return
            callback()


def _discard(result: object) -> None:
    """A connection that came too late would otherwise stay open as long as the process runs."""
    if isinstance(result, Closeable):
        result.close()


def _raiser(bug: BaseException) -> Callable[[], None]:
    def reraise() -> None:
        raise bug

    return reraise
