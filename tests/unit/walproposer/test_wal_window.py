"""The window against a model that keeps everything: same bytes, same boundaries, within limits."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from quorum_wal.walproposer.stream import wal_window
from quorum_wal.walproposer.stream.wal_window import WalWindow

BEGIN = 1000
KEEP_BYTES = 64
KEEP_CHUNKS = 8
APPEND_BYTES_MAX = 16


@pytest.fixture(autouse=True)
def small_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wal_window, "KEEP_BYTES", KEEP_BYTES)
    monkeypatch.setattr(wal_window, "KEEP_CHUNKS", KEEP_CHUNKS)
    monkeypatch.setattr(wal_window, "APPEND_BYTES_MAX", APPEND_BYTES_MAX)
    monkeypatch.setattr(wal_window, "WINDOW_BYTES_MAX", 2 * KEEP_BYTES)


class Model:
    """All bytes ever appended, and for each end of a chunk the boundary known there."""

    def __init__(self) -> None:
        self.wal = bytearray()
        self.ends = {BEGIN: BEGIN}

    @property
    def end_lsn(self) -> int:
        return BEGIN + len(self.wal)

    def read(self, begin_lsn: int, end_lsn: int) -> bytes:
        return bytes(self.wal[begin_lsn - BEGIN : end_lsn - BEGIN])


class WindowMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.window = WalWindow(BEGIN)
        self.model = Model()
        self.durable_lsn = BEGIN

    @rule(wal=st.binary(min_size=1, max_size=APPEND_BYTES_MAX), inside=st.integers(0, 30))
    def append(self, wal: bytes, inside: int) -> None:
        """A chunk that ends on a boundary, or `inside` bytes behind the last one."""
        model = self.model
        end_lsn = model.end_lsn + len(wal)
        record_end_lsn = max(model.ends[model.end_lsn], end_lsn - inside)
        self.window.append(wal, record_end_lsn)
        model.wal += wal
        model.ends[end_lsn] = record_end_lsn

    @precondition(lambda self: self.window.size_bytes > 0)
    @rule(data=st.data())
    def read(self, data: st.DataObject) -> None:
        """From any position in the window: the model's bytes, up to the end of some chunk."""
        window, model = self.window, self.model
        lsn = data.draw(st.integers(window.begin_lsn, window.end_lsn - 1))
        chunk = window.read(lsn)
        assert chunk.begin_lsn == lsn < chunk.end_lsn <= window.end_lsn
        assert bytes(chunk.wal) == model.read(lsn, chunk.end_lsn)
        assert chunk.record_end_lsn == model.ends[chunk.end_lsn]
        assert len(chunk.wal) <= APPEND_BYTES_MAX

    @precondition(lambda self: self.window.size_bytes > 0)
    @rule(data=st.data())
    def read_as_much_as_fits(self, data: st.DataObject) -> None:
        """One Append has all the chunks that fit, so that a slow peer needs few."""
        window, model = self.window, self.model
        lsn = data.draw(st.sampled_from([e for e in model.ends if e >= window.begin_lsn]))
        if lsn < window.end_lsn:
            ends = [end for end in model.ends if end > lsn]
            fitting = [end for end in ends if end - lsn <= APPEND_BYTES_MAX]
            assert window.read(lsn).end_lsn == max(fitting)

    @rule(advance=st.integers(0, 60))
    def trim(self, advance: int) -> None:
        window = self.window
        before_lsn = window.begin_lsn
        self.durable_lsn = min(self.durable_lsn + advance, self.model.end_lsn)
        exceeded = window.exceeds_limits
        dropped = window.trim(self.durable_lsn)
        assert dropped == (window.begin_lsn > before_lsn)
        assert exceeded or not dropped, "what is allowed to stay, stays"
        assert window.begin_lsn <= max(self.durable_lsn, before_lsn), "a quorum has the rest"
        if self.durable_lsn == self.model.end_lsn:
            assert not window.exceeds_limits, "all is durable, so the limits hold"

    @invariant()
    def positions_agree(self) -> None:
        window, model = self.window, self.model
        assert window.end_lsn == model.end_lsn
        assert window.record_end_lsn == model.ends[model.end_lsn]
        assert window.begin_lsn in model.ends, "chunks are dropped whole"
        assert window.size_bytes == window.end_lsn - window.begin_lsn
        assert window.is_full == (window.size_bytes >= 2 * KEEP_BYTES)


TestWalWindow = WindowMachine.TestCase
TestWalWindow.settings = settings(max_examples=60, stateful_step_count=30)


@given(st.lists(st.integers(1, APPEND_BYTES_MAX), min_size=1, max_size=30), st.data())
def test_a_reader_gets_every_byte_once_and_in_order(sizes: list[int], data: st.DataObject) -> None:
    window, model = WalWindow(BEGIN), Model()
    for number, size in enumerate(sizes):
        wal = bytes([number % 256]) * size
        window.append(wal, window.end_lsn + size)
        model.wal += wal
    lsn = data.draw(st.integers(BEGIN, window.end_lsn))
    received = bytearray()
    begin_lsn = lsn
    while lsn < window.end_lsn:
        chunk = window.read(lsn)
        received += chunk.wal
        lsn = chunk.end_lsn
    assert bytes(received) == model.read(begin_lsn, model.end_lsn)
