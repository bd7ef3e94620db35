"""Waking the thread of a connection from other threads; also after its end."""

from __future__ import annotations

import os
import select
from threading import Thread

from quorum_wal.pgwire.interrupt import Interrupt


def is_woken(interrupt: Interrupt) -> bool:
    return bool(select.select([interrupt], [], [], 0)[0])


def test_several_wake_ups_count_once() -> None:
    interrupt = Interrupt()
    assert not is_woken(interrupt)
    interrupt.wake()
    interrupt.wake()
    assert is_woken(interrupt)
    interrupt.clear()
    interrupt.clear()
    assert not is_woken(interrupt)
    assert not interrupt.canceled
    interrupt.cancel()
    assert interrupt.canceled
    assert is_woken(interrupt)
    interrupt.close()
    interrupt.close()


def test_a_late_wake_up_writes_to_no_other_file() -> None:
    """While descriptors are closed and their numbers are reused."""
    interrupts = [Interrupt() for _ in range(200)]

    def wake_all() -> None:
        for _ in range(50):
            for interrupt in interrupts:
                interrupt.wake()

    thread = Thread(target=wake_all)
    thread.start()
    pipes = []
    for interrupt in interrupts:
        interrupt.close()
        pipes.append(os.pipe2(os.O_NONBLOCK))
    thread.join()
    for reader, writer in pipes:
        assert not select.select([reader], [], [], 0)[0]
        os.close(reader)
        os.close(writer)
