"""A batch of a proposer's messages as `receive_wal.py` takes it, without its socket."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from quorum_wal.pgwire.framing import COPY_DATA, pack_header
from quorum_wal.safekeeper.timeline import Timeline

HEADER_BYTES = 5


def framed(payloads: Iterable[bytes | memoryview]) -> bytearray:
    """CopyData frames."""
    frames = bytearray()
    for payload in payloads:
        frames += pack_header(COPY_DATA, len(payload)) + payload
    return frames


def receive_batch(
    timeline: Timeline, connection: int, payloads: Sequence[bytes | memoryview]
) -> tuple[list[bytes], bool]:
    """The payloads of the answers, and whether the steady path returned them."""
    steady = timeline.steady_path(connection)
    if steady is not None:
        frames = framed(payloads)
        at = steady.step(memoryview(frames), 0, len(frames))
        if at >= 0:
            assert at == len(frames)
            return [bytes(steady.answer)[HEADER_BYTES:]], True
    return timeline.receive_payloads(connection, [memoryview(p) for p in payloads]), False
