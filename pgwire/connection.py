"""The messages that are legal in each state: the whole protocol as one table, and its two halves.

`TRANSITIONS[state][side]` contains the messages that the side may send in that state, and the state
that follows. Both halves read the same table: one may receive what the other may send. A half takes
bytes and returns messages, and encodes the messages to send. It does no I/O and has no policy
(`handshake.py` decides who may connect).

Laws: everything that changes the state is in this file. A message that the table does not contain
is a ProtocolError when received and a LocalProtocolError when sent. A half that raised a
ProtocolError stops for good.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from typing import Final, Literal, TypeAlias

from quorum_wal.pgwire import startup
from quorum_wal.pgwire.errors import ConnectionRefused, LocalProtocolError, ProtocolError, WireError
from quorum_wal.pgwire.extended_query import (
    Bind,
    BindComplete,
    Close,
    CloseComplete,
    Describe,
    Execute,
    Flush,
    FunctionCall,
    NoData,
    ParameterDescription,
    Parse,
    ParseComplete,
    Sync,
)
from quorum_wal.pgwire.framing import (
    AUTH_MESSAGE_BYTES_MAX,
    COPY_DATA,
    MESSAGE_BYTES_MAX,
    FrameBuffer,
    pack_header,
)
from quorum_wal.pgwire.messages import (
    AuthenticationOk,
    AuthenticationSasl,
    AuthenticationSaslContinue,
    AuthenticationSaslFinal,
    BackendKeyData,
    CommandComplete,
    CopyBothResponse,
    CopyData,
    CopyDone,
    CopyFail,
    DataRow,
    EmptyQueryResponse,
    ErrorResponse,
    Message,
    NegotiateProtocolVersion,
    NoticeResponse,
    ParameterStatus,
    Query,
    ReadyForQuery,
    RowDescription,
    SaslInitialResponse,
    SaslResponse,
    Terminate,
)
from quorum_wal.pgwire.startup import (
    CancelRequest,
    EncryptionAnswer,
    GSSENCRequest,
    SSLRequest,
    StartupMessage,
)


class Signal(Enum):
    """What next() returns when it has no message."""

    NEED_DATA = auto()  # feed more
    PAUSED = auto()  # the peer may not send now: this side must send


NEED_DATA: Final = Signal.NEED_DATA
PAUSED: Final = Signal.PAUSED
NextMessage: TypeAlias = Message | Literal[Signal.NEED_DATA, Signal.PAUSED]


class Side(Enum):
    """The two ends of a connection."""

    CLIENT = auto()
    SERVER = auto()


class State(Enum):
    """The states in the order in which a connection reaches them."""

    STARTUP = auto()  # the client may request encryption, or start
    ENCRYPTION_ASKED = auto()  # the server must answer with one byte
    TLS_HANDSHAKE = auto()  # both shells encrypt, then call tls_established()
    AUTHENTICATION = auto()  # the server accepts the client, requests SCRAM, or refuses
    SASL_ASKED = auto()  # the client must send its first SCRAM message
    SASL_CHALLENGE = auto()  # the server must send its challenge
    SASL_ANSWER = auto()  # the client must send its proof
    SASL_OUTCOME = auto()  # the server must send its signature, or refuse
    SASL_PASSED = auto()  # the server must send AuthenticationOk
    GREETING = auto()  # the server sends its parameters, then is ready
    IDLE = auto()  # the client may send a command
    BUSY = auto()  # the server answers it
    EXTENDED = auto()  # a message of an extended query; the server must answer or refuse it
    PIPELINE = auto()  # it was answered; the client may send more, until Sync
    SKIPPING = auto()  # it was refused; the rest is ignored, until Sync
    COPY_BOTH = auto()  # both sides send CopyData
    COPY_SERVER_DONE = auto()  # the server sent CopyDone, the client still sends
    COPY_CLIENT_DONE = auto()  # the client sent CopyDone, the server still sends
    FAILED = auto()  # the peer violated the protocol; a server may still send an error
    CLOSED = auto()  # neither side sends


_Moves: TypeAlias = Mapping[type[Message], State]

_REFUSAL: _Moves = {ErrorResponse: State.CLOSED}
_GOODBYE: _Moves = {Terminate: State.CLOSED}
_EXTENDED_QUERY = (Parse, Bind, Describe, Execute, Close)


def _asynchronous(state: State) -> _Moves:
    """Messages that a server may send at any time after the authentication."""
    return {NoticeResponse: state, ParameterStatus: state}


TRANSITIONS: Mapping[State, Mapping[Side, _Moves]] = {
    State.STARTUP: {
        Side.CLIENT: {
            SSLRequest: State.ENCRYPTION_ASKED,
            GSSENCRequest: State.ENCRYPTION_ASKED,
            CancelRequest: State.CLOSED,
            StartupMessage: State.AUTHENTICATION,
        },
    },
    State.ENCRYPTION_ASKED: {
        Side.SERVER: {EncryptionAnswer: State.STARTUP},  # if accepted: TLS_HANDSHAKE
    },
    State.TLS_HANDSHAKE: {},
    State.AUTHENTICATION: {
        Side.SERVER: {
            NegotiateProtocolVersion: State.AUTHENTICATION,
            AuthenticationSasl: State.SASL_ASKED,
            AuthenticationOk: State.GREETING,
            **_REFUSAL,
        },
    },
    State.SASL_ASKED: {
        Side.CLIENT: {SaslInitialResponse: State.SASL_CHALLENGE},
        Side.SERVER: _REFUSAL,
    },
    State.SASL_CHALLENGE: {
        Side.SERVER: {AuthenticationSaslContinue: State.SASL_ANSWER, **_REFUSAL},
    },
    State.SASL_ANSWER: {
        Side.CLIENT: {SaslResponse: State.SASL_OUTCOME},
        Side.SERVER: _REFUSAL,
    },
    State.SASL_OUTCOME: {
        Side.SERVER: {AuthenticationSaslFinal: State.SASL_PASSED, **_REFUSAL},
    },
    State.SASL_PASSED: {
        Side.SERVER: {AuthenticationOk: State.GREETING, **_REFUSAL},
    },
    State.GREETING: {
        Side.SERVER: {
            BackendKeyData: State.GREETING,
            ReadyForQuery: State.IDLE,
            **_asynchronous(State.GREETING),
            **_REFUSAL,
        },
    },
    State.IDLE: {
        Side.CLIENT: {
            Query: State.BUSY,
            FunctionCall: State.BUSY,
            Sync: State.BUSY,
            Flush: State.IDLE,
            **dict.fromkeys(_EXTENDED_QUERY, State.EXTENDED),
            **_GOODBYE,
        },
        Side.SERVER: {**_asynchronous(State.IDLE), **_REFUSAL},
    },
    State.EXTENDED: {
        Side.SERVER: {
            **dict.fromkeys((ParseComplete, BindComplete, CloseComplete, NoData), State.PIPELINE),
            ParameterDescription: State.EXTENDED,  # RowDescription or NoData follows
            RowDescription: State.PIPELINE,
            DataRow: State.EXTENDED,
            CommandComplete: State.PIPELINE,
            EmptyQueryResponse: State.PIPELINE,
            ErrorResponse: State.SKIPPING,
            **_asynchronous(State.EXTENDED),
        },
    },
    State.PIPELINE: {
        Side.CLIENT: {
            **dict.fromkeys(_EXTENDED_QUERY, State.EXTENDED),
            Flush: State.PIPELINE,
            Sync: State.BUSY,
            Query: State.BUSY,
            **_GOODBYE,
        },
        Side.SERVER: {**_asynchronous(State.PIPELINE), **_REFUSAL},
    },
    State.SKIPPING: {
        Side.CLIENT: {Sync: State.BUSY, **_GOODBYE},
        Side.SERVER: {**_asynchronous(State.SKIPPING), **_REFUSAL},
    },
    State.BUSY: {
        Side.SERVER: {
            RowDescription: State.BUSY,
            DataRow: State.BUSY,
            CommandComplete: State.BUSY,
            EmptyQueryResponse: State.BUSY,
            ErrorResponse: State.BUSY,
            CopyBothResponse: State.COPY_BOTH,
            ReadyForQuery: State.IDLE,
            **_asynchronous(State.BUSY),
        },
    },
    State.COPY_BOTH: {
        Side.CLIENT: {
            CopyData: State.COPY_BOTH,
            CopyDone: State.COPY_CLIENT_DONE,
            CopyFail: State.COPY_CLIENT_DONE,  # the server may not have read it yet, and send more
            **_GOODBYE,
        },
        Side.SERVER: {
            CopyData: State.COPY_BOTH,
            CopyDone: State.COPY_SERVER_DONE,
            ErrorResponse: State.BUSY,
            CommandComplete: State.CLOSED,  # "COPY 0": a server that shuts down
            **_asynchronous(State.COPY_BOTH),
        },
    },
    State.COPY_SERVER_DONE: {
        Side.CLIENT: {
            CopyData: State.COPY_SERVER_DONE,
            CopyDone: State.BUSY,
            CopyFail: State.BUSY,
            **_GOODBYE,
        },
        Side.SERVER: {ErrorResponse: State.BUSY, **_asynchronous(State.COPY_SERVER_DONE)},
    },
    State.COPY_CLIENT_DONE: {
        Side.CLIENT: _GOODBYE,
        Side.SERVER: {
            CopyData: State.COPY_CLIENT_DONE,
            CopyDone: State.BUSY,
            ErrorResponse: State.BUSY,
            CommandComplete: State.CLOSED,
            **_asynchronous(State.COPY_CLIENT_DONE),
        },
    },
    State.FAILED: {
        Side.SERVER: _REFUSAL,
    },
    State.CLOSED: {},
}

# A client may not know yet that its copy or its query has failed. The server ignores what the
# client had sent by then, as the protocol demands.
_OF_COPY = (CopyData, CopyDone, CopyFail)
STALE: Mapping[State, tuple[type[Message], ...]] = {
    State.IDLE: _OF_COPY,
    State.SKIPPING: (*_OF_COPY, *_EXTENDED_QUERY, Query, FunctionCall, Flush),
}

_OTHER_SIDE = {Side.CLIENT: Side.SERVER, Side.SERVER: Side.CLIENT}
_COPY_STATES = {
    side: tuple(state for state, sides in TRANSITIONS.items() if CopyData in sides.get(side, {}))
    for side in Side
}
_AUTHENTICATED_STATES = tuple(State)[tuple(State).index(State.GREETING) :]


def _classes_by_tag(side: Side, state: State) -> dict[bytes, type[Message]]:
    stale = STALE.get(state, ()) if side is Side.CLIENT else ()
    return {cls.tag: cls for cls in (*TRANSITIONS[state].get(side, {}), *stale)}


_CLASSES = {(side, state): _classes_by_tag(side, state) for side in Side for state in State}


class _Connection:
    """One half. Public attributes: `state`, `encrypted` (TLS is established), and `frames`: the
    bytes that were fed and not taken yet. A stream may receive into `frames` directly."""

    side: Side
    # The states in which CopyData is legal; class attributes, since an Enum is slow as a key.
    _own_copy_states: tuple[State, ...]
    _peer_copy_states: tuple[State, ...]

    def __init__(self, message_bytes_max: int = MESSAGE_BYTES_MAX) -> None:
        """`message_bytes_max`: size limit of the peer's messages after authentication."""
        self.message_bytes_max = message_bytes_max
        self.state = State.STARTUP
        self.encrypted = False
        self.frames = FrameBuffer()
        self._asked: set[type[Message]] = set()
        self._error: WireError | None = None

    # Bytes in.

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        """Take bytes of the peer, cut anywhere. Bytes of a peer that has failed are dropped."""
        if self.state not in (State.FAILED, State.CLOSED):
            self.frames.feed(data)

    def room(self) -> memoryview:
        """Memory to receive into, instead of feed(); then call filled() with the count."""
        return self.frames.room()

    def filled(self, count: int) -> None:
        """The first `count` bytes of the last room() came from the peer."""
        self.frames.filled(count)

    def reserve(self, capacity: int) -> None:
        """Make room() large, for a stream."""
        self.frames.reserve(capacity)

    def release(self) -> None:
        """Free the memory of room(): the connection is closed."""
        self.frames.release()

    @property
    def buffered(self) -> int:
        """Bytes fed and not consumed yet."""
        return len(self.frames)

    @property
    def has_frame(self) -> bool:
        """Whether they contain a whole message."""
        return self.frames.has_frame

    # Messages out of them.

    def next(self) -> NextMessage:
        """The peer's next message, NEED_DATA, or PAUSED if only this side may send now.

        Raises ProtocolError, or ConnectionRefused for another major version; after that, the same
        error on every call.
        """
        if self._error is not None:
            raise self._error
        try:
            return self._next()
        except (ProtocolError, ConnectionRefused) as error:
            self._fail(error)
            raise

    def take_copy_data(self) -> list[memoryview]:
        """The payloads of all whole CopyData that come next, not copied.

        They are valid until the next feed() or room(). Empty if another message comes next, which
        next() returns. Raises ProtocolError.
        """
        if self.state not in self._peer_copy_states:
            return []
        try:
            return self.frames.take_copy_data(self.message_bytes_max)
        except ProtocolError as error:
            self._fail(error)
            raise

    # Messages in, bytes out.

    def send(self, *messages: Message) -> bytes:
        """The bytes of our messages. Raises LocalProtocolError if one is not legal now.

        Raises ProtocolError if TLS is granted to a peer that did not wait for the answer.
        """
        for message in messages:
            self._move(self.side, message)
        return b"".join([message.encode() for message in messages])

    def copy_data_header(self, size: int) -> bytes:
        """The header before the payload of our CopyData, which is then sent without a copy."""
        if self.state not in self._own_copy_states:
            raise LocalProtocolError(f"CopyData is not legal now, in state {self.state.name}")
        assert size <= MESSAGE_BYTES_MAX
        return pack_header(COPY_DATA, size)

    def tls_established(self) -> None:
        """The shell has encrypted the connection: after TLS_HANDSHAKE, or before the first byte."""
        assert self.state in (State.STARTUP, State.TLS_HANDSHAKE)
        assert not self.encrypted
        assert not self.buffered
        self.state = State.STARTUP
        self.encrypted = True
        self._asked = {SSLRequest, GSSENCRequest}

    def _next(self) -> NextMessage:
        peer = _OTHER_SIDE[self.side]
        while True:
            if not TRANSITIONS[self.state].get(peer):
                return PAUSED
            message = self._decode(peer)
            if message is None:
                return NEED_DATA
            if self.side is Side.SERVER and isinstance(message, STALE.get(self.state, ())):
                continue
            self._move(peer, message)
            return message

    def _decode(self, peer: Side) -> Message | None:
        if self.state is State.STARTUP:
            packet = self.frames.take_startup()
            return None if packet is None else startup.decode_startup_packet(bytes(packet))
        if self.state is State.ENCRYPTION_ASKED:
            answer = self.frames.take_byte()
            return None if answer is None else startup.decode_encryption_answer(answer)
        return self._decode_frame(_CLASSES[peer, self.state])

    def _decode_frame(self, classes: Mapping[bytes, type[Message]]) -> Message | None:
        kind = self.frames.peek_type()
        if kind is None:
            return None
        if not any(tag[0] == kind for tag in classes):
            # At once, not after the rest has arrived: garbage may announce any length.
            raise self._unexpected(kind)
        authenticated = self.state in _AUTHENTICATED_STATES
        frame = self.frames.take_frame(
            self.message_bytes_max if authenticated else AUTH_MESSAGE_BYTES_MAX
        )
        if frame is None:
            return None
        payload = bytes(frame[1])
        tag_bytes = 5 if kind == AuthenticationOk.tag[0] else 1
        tag = bytes([kind]) + payload[: tag_bytes - 1]
        if tag not in classes:
            raise ProtocolError(f"unsupported authentication request {tag[1:].hex()}")
        return classes[tag].decode(payload[tag_bytes - 1 :])

    def _unexpected(self, kind: int) -> ProtocolError:
        what = "frontend" if self.side is Side.SERVER else "backend"
        return ProtocolError(
            f"invalid {what} message type {kind} in state {self.state.name}, "
            f"expected one of {sorted({chr(tag[0]) for tag in self._expected()})}"
        )

    def _expected(self) -> Mapping[bytes, type[Message]]:
        return _CLASSES[_OTHER_SIDE[self.side], self.state]

    def _move(self, sender: Side, message: Message) -> None:
        moves = TRANSITIONS[self.state].get(sender, {})
        kind = type(message)
        if kind not in moves or kind in self._asked:
            error = LocalProtocolError if sender is self.side else ProtocolError
            raise error(f"{kind.__name__} is not legal now, in state {self.state.name}")
        if kind in (SSLRequest, GSSENCRequest):
            self._asked.add(kind)  # each once, or a peer could ask for ever
        self.state = moves[kind]
        if isinstance(message, EncryptionAnswer) and message.accepted:
            self.state = State.TLS_HANDSHAKE
            if self.buffered:
                # An attacker may have injected them, to be read as if sent under TLS.
                injected = ProtocolError("received unencrypted data after SSL request")
                self._fail(injected)
                raise injected

    def _fail(self, error: WireError) -> None:
        if self._error is None:
            self._error = error
            # A peer that waits for a TLS handshake cannot read an error.
            self.state = State.CLOSED if self.state is State.TLS_HANDSHAKE else State.FAILED


class ServerConnection(_Connection):
    """The server's half."""

    side = Side.SERVER
    _own_copy_states = _COPY_STATES[Side.SERVER]
    _peer_copy_states = _COPY_STATES[Side.CLIENT]

    def farewell(self, error: WireError) -> bytes:
        """The last message to the client, FATAL; empty if the client could not read it."""
        if ErrorResponse not in TRANSITIONS[self.state].get(Side.SERVER, {}):
            return b""
        return self.send(ErrorResponse.of(error, "FATAL"))


class ClientConnection(_Connection):
    """The client's half."""

    side = Side.CLIENT
    _own_copy_states = _COPY_STATES[Side.CLIENT]
    _peer_copy_states = _COPY_STATES[Side.SERVER]
