"""Frames are independent of how the bytes were cut; lengths and memory are limited."""

from __future__ import annotations

import struct

import pytest

from quorum_wal.pgwire.errors import ProtocolError
from quorum_wal.pgwire.framing import (
    FRAME_BUFFER_BYTES,
    MESSAGE_BYTES_MAX,
    STARTUP_PACKET_BYTES_MAX,
    FrameBuffer,
    PayloadReader,
    cstring,
)


def frame(kind: bytes, payload: bytes) -> bytes:
    return kind + struct.pack(">I", 4 + len(payload)) + payload


def buffer_with(data: bytes) -> FrameBuffer:
    frames = FrameBuffer()
    frames.feed(data)
    return frames


def test_a_frame_is_taken_when_its_last_byte_has_come() -> None:
    frames = FrameBuffer()
    for byte in frame(b"Q", b"abc"):
        assert frames.take_frame(100) is None
        assert not frames.has_frame
        frames.feed(bytes([byte]))
    assert frames.has_frame
    taken = frames.take_frame(100)
    assert taken is not None
    assert (taken[0], bytes(taken[1])) == (ord("Q"), b"abc")
    assert len(frames) == 0


@pytest.mark.parametrize("length", [0, 3, 4 + 101, 0x7FFFFFFF, 0xFFFFFFFF])
def test_an_impossible_length_is_refused_at_the_header(length: int) -> None:
    frames = buffer_with(b"Q" + struct.pack(">I", length))
    with pytest.raises(ProtocolError, match=f"expected 4 to 104, got {length}, message type 0x51"):
        frames.take_frame(100)


@pytest.mark.parametrize("length", [0, 7, 4 + STARTUP_PACKET_BYTES_MAX + 1, 0x47455420])
def test_an_impossible_startup_packet_is_refused_at_its_length(length: int) -> None:
    with pytest.raises(ProtocolError, match=f"got {length}") as caught:
        buffer_with(struct.pack(">I", length)).take_startup()
    assert caught.value.sqlstate == "08P01"


def test_the_longest_startup_packet_is_taken() -> None:
    payload = bytes(STARTUP_PACKET_BYTES_MAX)
    taken = buffer_with(struct.pack(">I", 4 + len(payload)) + payload).take_startup()
    assert taken is not None
    assert bytes(taken) == payload


def test_copy_data_is_taken_up_to_another_frame() -> None:
    frames = buffer_with(
        frame(b"d", b"one") + frame(b"d", b"") + frame(b"c", b"") + frame(b"d", b"two")
    )
    assert [bytes(p) for p in frames.take_copy_data(100)] == [b"one", b""]
    assert frames.take_copy_data(100) == []
    assert frames.peek_type() == ord("c")


def test_copy_data_is_taken_up_to_an_incomplete_frame() -> None:
    whole, cut = frame(b"d", b"one"), frame(b"d", b"two")
    frames = buffer_with(whole + cut[:-1])
    assert [bytes(p) for p in frames.take_copy_data(100)] == [b"one"]
    assert frames.take_copy_data(100) == []
    frames.feed(cut[-1:])
    assert [bytes(p) for p in frames.take_copy_data(100)] == [b"two"]


@pytest.mark.parametrize("length", [3, 4 + MESSAGE_BYTES_MAX + 1])
def test_copy_data_of_an_impossible_length_is_refused(length: int) -> None:
    frames = buffer_with(b"d" + struct.pack(">I", length))
    assert frames.has_frame, "who polls must not wait for what cannot come"
    with pytest.raises(ProtocolError, match="invalid message length"):
        frames.take_copy_data(MESSAGE_BYTES_MAX)


def test_memory_is_bounded_by_the_longest_message() -> None:
    """Received in small pieces through room(), with a message at the limit always in the way."""
    frames = FrameBuffer()
    stream = 3 * frame(b"d", bytes(MESSAGE_BYTES_MAX))
    taken = at = 0
    while at < len(stream):
        room = frames.room()
        count = min(50_000, len(room), len(stream) - at)
        room[:count] = stream[at : at + count]
        frames.filled(count)
        at += count
        taken += len(frames.take_copy_data(MESSAGE_BYTES_MAX))
    assert taken == 3
    assert FRAME_BUFFER_BYTES < frames.capacity < 2 * (MESSAGE_BYTES_MAX + 5)


def test_views_stay_valid_until_the_next_room() -> None:
    frames = buffer_with(frame(b"d", b"one") + frame(b"d", b"two")[:6])
    (view,) = frames.take_copy_data(100)
    assert bytes(view) == b"one"
    room = frames.room()
    room[:2] = b"wo"
    frames.filled(2)
    assert [bytes(p) for p in frames.take_copy_data(100)] == [b"two"]


def test_growing_keeps_the_content_and_earlier_views() -> None:
    frames = buffer_with(frame(b"d", b"one") + b"d\0\0")
    (view,) = frames.take_copy_data(100)
    frames.reserve(10 * FRAME_BUFFER_BYTES)
    assert bytes(view) == b"one"
    frames.feed(b"\0\x07two")
    assert [bytes(p) for p in frames.take_copy_data(100)] == [b"two"]


def test_a_reader_names_the_message_and_the_offset() -> None:
    fields = PayloadReader(b"ab\0c", "Query")
    assert fields.string() == "ab"
    with pytest.raises(ProtocolError, match="invalid Query message: expected 4 more bytes at o"):
        fields.uint32()
    with pytest.raises(ProtocolError, match="got no zero byte"):
        fields.string()
    with pytest.raises(ProtocolError, match="expected its end at offset 3, got 1 more bytes"):
        fields.finish()
    with pytest.raises(ProtocolError, match="expected UTF-8"):
        PayloadReader(b"\xff\0", "Query").string()


def test_a_text_with_a_zero_byte_is_not_sent() -> None:
    with pytest.raises(ValueError, match="zero byte"):
        cstring("a\0b")
