"""Byte streams of an attacker: recorded conversations, mutated; and how to throw them at a port.

Wire        cut into packets: the startup packet(s), then frames `type | length | payload`
mutate      flips, cuts, doubles, swaps, splices, and lies about lengths
throw       sends many streams at once, and insists that the service ends every connection
"""

from __future__ import annotations

import random
import selectors
import socket
import struct
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

CONNECTIONS_MAX = 24  # connections at once
ANSWER_BYTES_MAX = 64 << 10  # bytes kept of each answer
STREAM_TIMEOUT = 60.0  # seconds until the service must end a connection after its client has
SSL_REQUEST = struct.pack("!II", 8, 80877103)
LIES = (0, 1, 3, 4, 5, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)  # lengths that lie


# ---- packets


def split_packets(stream: bytes) -> list[bytes]:
    """The packets that a client sent, from the first byte on. An incomplete last packet is cut
    off."""
    packets = []
    at = 0
    while at + 8 <= len(stream):
        started = any(packet != SSL_REQUEST for packet in packets)
        (length,) = struct.unpack_from("!I", stream, at + started)
        if at + started + length > len(stream):
            break
        packets.append(stream[at : at + started + length])
        at += started + length
    return packets


def copy_data(payload: bytes) -> bytes:
    return b"d" + struct.pack("!I", 4 + len(payload)) + payload


# ---- mutations


def mutate(generator: random.Random, packets: list[bytes], others: list[list[bytes]]) -> bytes:
    """One to three mutations of a conversation, some of packets, some of bytes."""
    packets = list(packets)
    for _ in range(generator.randint(0, 2)):
        mutate_packets(generator, packets, generator.choice(others))
    stream = bytearray(b"".join(packets))
    for _ in range(generator.randint(1, 2)):
        mutate_bytes(generator, stream)
    return bytes(stream)


def mutate_packets(generator: random.Random, packets: list[bytes], others: list[bytes]) -> None:
    at = generator.randrange(len(packets))
    match generator.randrange(6):
        case 0:  # remove one
            if len(packets) > 1:
                del packets[at]
        case 1:  # send it twice
            packets.insert(at, packets[at])
        case 2:  # send it too early
            packets.insert(generator.randrange(len(packets)), packets.pop(at))
        case 3:  # insert a packet of another conversation
            packets[at:] = others[generator.randrange(len(others)) :]
        case 4:  # change the length
            with_type = at > 0
            head, tail = packets[at][:with_type], packets[at][with_type + 4 :]
            packets[at] = head + struct.pack("!I", generator.choice(LIES)) + tail
        case 5:  # change one byte, most often one of the first
            packet = bytearray(packets[at])
            packet[generator.randrange(min(len(packet), 1 << generator.randrange(3, 9)))] ^= (
                1 << generator.randrange(8)
            )
            packets[at] = bytes(packet)


def mutate_bytes(generator: random.Random, stream: bytearray) -> None:
    at = generator.randrange(len(stream) + 1)
    match generator.randrange(5):
        case 0:  # flip bits
            for _ in range(generator.randint(1, 16)):
                if stream:
                    stream[generator.randrange(len(stream))] = generator.randrange(256)
        case 1:  # truncate
            del stream[at:]
        case 2:  # repeat a part
            stream[at:at] = stream[at : at + generator.randint(1, 64)]
        case 3:  # remove a part
            del stream[at : at + generator.randint(1, 64)]
        case 4:  # insert random bytes
            stream[at:at] = generator.randbytes(generator.randint(1, 64))


# ---- sending


@dataclass(slots=True)
class Throw:
    """One connection: the bytes left to send, whether our side has ended, and the answer."""

    sock: socket.socket
    rest: memoryview
    started_at: float
    ended: bool = False
    answer: bytearray = field(default_factory=bytearray)


def throw(address: str, streams: Iterable[bytes], patience: float = 0.0) -> Iterator[bytes]:
    """Send each stream on its own connection, end our side, and yield the answer.

    Many connections at once, in no order. Our side ends only after `patience` seconds, because a
    service may not answer a client that has ended. Raises TimeoutError if the service keeps a
    connection open.
    """
    host, _, port = address.rpartition(":")
    waiting = iter(streams)
    with selectors.DefaultSelector() as selector, hung_up_at_the_end(selector):
        exhausted = False
        while not exhausted or selector.get_map():
            while not exhausted and len(selector.get_map()) < CONNECTIONS_MAX:
                stream = next(waiting, None)
                exhausted = stream is None
                if stream is not None:
                    connection = connect(host, int(port), stream)
                    selector.register(
                        connection.sock, selectors.EVENT_READ | selectors.EVENT_WRITE, connection
                    )
            for key, events in selector.select(patience or 1.0):
                if go_on(selector, key.data, events):
                    yield bytes(key.data.answer)
            check_time(selector, patience)


@contextmanager
def hung_up_at_the_end(selector: selectors.BaseSelector) -> Iterator[None]:
    """A caller that stops early leaves no connection open."""
    try:
        yield
    finally:
        for key in selector.get_map().values():
            key.data.sock.close()


def connect(host: str, port: int, stream: bytes) -> Throw:
    sock = socket.create_connection((host, port), STREAM_TIMEOUT)
    sock.setblocking(False)
    return Throw(sock, memoryview(stream), time.monotonic())


def go_on(selector: selectors.BaseSelector, connection: Throw, events: int) -> bool:
    """Whether the connection has ended."""
    try:
        if events & selectors.EVENT_WRITE:
            connection.rest = connection.rest[connection.sock.send(connection.rest) :]
            if not connection.rest:
                selector.modify(connection.sock, selectors.EVENT_READ, connection)
        if events & selectors.EVENT_READ:
            data = connection.sock.recv(1 << 16)
            if len(connection.answer) < ANSWER_BYTES_MAX:
                connection.answer += data
            if data:
                return False
        else:
            return False
    except BlockingIOError:
        return False
    except OSError:
        pass  # reset: the service did not read the rest
    selector.unregister(connection.sock)
    connection.sock.close()
    return True


def check_time(selector: selectors.BaseSelector, patience: float) -> None:
    """End our side of the connections that have sent everything and waited long enough."""
    now = time.monotonic()
    for key in list(selector.get_map().values()):
        connection: Throw = key.data
        age = now - connection.started_at
        if age > STREAM_TIMEOUT:
            raise TimeoutError(f"the service keeps a connection after {connection.answer!r}")
        if not connection.rest and not connection.ended and age >= patience:
            connection.ended = True
            try:
                connection.sock.shutdown(socket.SHUT_WR)
            except OSError:
                pass  # it was reset; the next read reports it
