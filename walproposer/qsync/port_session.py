"""One client of the coordinator's port, on the port's loop, from its handshake to its end.

Nothing here waits. While a question is open, further input of the client is buffered, and a closed
connection is noticed at once. Laws: a slow reader delays only itself. The memory for a client is
bounded by BUFFERED_BYTES_MAX and one answer. An answer that comes too late for a question is
dropped.
"""

from __future__ import annotations

import secrets
from functools import partial
from typing import TYPE_CHECKING

import structlog

from quorum_wal.access.errors import PermissionDenied
from quorum_wal.pgwire.blocking import Authenticated
from quorum_wal.pgwire.errors import QUERY_CANCELED, ConnectionRefused, ProtocolError, WireError
from quorum_wal.pgwire.messages import Message, Terminate
from quorum_wal.walproposer.qsync.answers import Row
from quorum_wal.walproposer.qsync.conversation import Conversation
from quorum_wal.walproposer.qsync.question import Question, Refusal
from quorum_wal.walproposer.qsync.verb_roles import ROLES
from quorum_wal.walproposer.qsync.verbs import WORDS, Verb

if TYPE_CHECKING:
    from quorum_wal.walproposer.qsync.verdict_server import VerdictServer

log = structlog.get_logger()

#: Of one message; a gid and two LSNs need 200.
MESSAGE_BYTES_MAX = 8 * 1024
#: Buffered input while a question is open.
BUFFERED_BYTES_MAX = 2 * MESSAGE_BYTES_MAX
#: Messages before the next client's turn.
MESSAGES_A_TURN = 32


class PortSession:
    """`number` is the waiter of its questions. All methods but `reply` are for the loop's
    thread."""

    def __init__(
        self, server: VerdictServer, client: Authenticated, number: int, address: str
    ) -> None:
        self.number = number
        self.is_closed = False
        self._server = server
        self._key = client.key
        self._user = client.parameters["user"]
        self._address = address
        self._channel = client.channel
        self._socket = client.channel.transport.socket
        self._conversation = Conversation()
        self._question: Question | None = None
        self._has_asked = False
        self._out = bytearray()
        self._is_stuck = False  # the kernel accepts no more of `_out`

    def start(self) -> None:
        """The handshake is done. The client may already have sent a command."""
        self._server.loop.watch(self._socket, self._on_readable, self._proceed)
        self._proceed()

    def close(self, error: WireError | None = None) -> None:
        """Close it. Sends `error` first if the client accepts it at once."""
        if self.is_closed:
            return
        self._question = None
        self._server.loop.unwatch(self._socket)
        try:
            if error is not None:
                self._out += self._channel.connection.farewell(error)
            self._flush()
        except OSError:
            pass  # the client has already disconnected
        self.is_closed = True
        self._channel.close()
        self._server.left(self.number, has_asked=self._has_asked)

    def cancel(self, key: bytes) -> None:
        """Handle a CancelRequest. Does nothing if the key is wrong, or there is no question."""
        if not secrets.compare_digest(key, self._key.secret_key) or self._question is None:
            return
        self._question = None
        self._server.verdicts.cancel_question(self.number)
        self._refuse(Refusal(QUERY_CANCELED, "canceling statement due to user request"))
        self._proceed()

    def reply(self, question: Question, found: tuple[Row, ...] | Refusal) -> None:
        """Any thread may call it."""
        self._server.post(partial(self._deliver, question, found))

    # ---- on the loop

    def _deliver(self, question: Question, found: tuple[Row, ...] | Refusal) -> None:
        if question is not self._question:
            return  # it was cancelled, or its client has disconnected
        self._question = None
        if isinstance(found, Refusal):
            self._refuse(found)
        else:
            self._say(*self._conversation.answer(question.verb, found))
        self._proceed()

    def _on_readable(self) -> None:
        if self._is_full():
            self.close()  # only the end of the connection was watched
        else:
            self._receive()

    def _receive(self) -> None:
        channel = self._channel
        if self.is_closed or self._is_full():
            return
        try:
            count = channel.transport.receive_into(channel.connection.room(), 0)
        except OSError as error:
            self._lost(error)
            return
        if count == 0:
            self.close()
        elif count:
            channel.connection.filled(count)
            self._proceed()

    def _is_full(self) -> bool:
        return self._channel.connection.buffered >= BUFFERED_BYTES_MAX

    def _proceed(self) -> None:
        """Answer the messages received, send what can be sent, and set the events to wait for."""
        if self.is_closed:
            return
        try:
            has_more = self._take_turn()
        except (ProtocolError, ConnectionRefused) as error:
            self._server.refusals.note(
                "client broke the protocol", self._address, reason=str(error)
            )
            self.close(error)
            return
        except OSError as error:
            self._lost(error)
            return
        if self.is_closed:
            return
        is_full = self._is_full()
        self._server.loop.set_interest(
            self._socket, reads=not is_full, writes=self._is_stuck, leaves=is_full
        )
        if has_more:
            self._server.post(self._proceed)
        elif self._channel.transport.pending():  # input within TLS, which the kernel does not see
            self._server.post(self._receive)

    def _take_turn(self) -> bool:
        """Returns whether more messages can be taken at once. Raises ProtocolError,
        ConnectionRefused, OSError."""
        if self._is_stuck:
            self._flush()
        if self._is_stuck:
            return False  # it continues when the socket is writable
        has_more = True
        for _ in range(MESSAGES_A_TURN):
            message = self._next_message()
            if message is None:
                has_more = False
                break
            self._take(message)
        self._flush()
        return has_more and not self._is_stuck

    def _next_message(self) -> Message | None:
        """None: no message has arrived, or a question is open. Raises ProtocolError,
        ConnectionRefused."""
        if self._question is not None or self.is_closed:
            return None
        message = self._channel.connection.next()
        return message if isinstance(message, Message) else None

    def _take(self, message: Message) -> None:
        if isinstance(message, Terminate):
            self.close()
            return
        found = self._conversation.receive(message)
        if isinstance(found, list):
            self._say(*found)
        else:
            self._ask(found)

    def _ask(self, verb: Verb) -> None:
        try:
            self._server.access.check_role(self._user, ROLES[type(verb)], WORDS[type(verb)])
        except PermissionDenied as error:
            self._server.refusals.note(
                "refused", self._address, command=WORDS[type(verb)], sqlstate=error.sqlstate,
                reason=str(error),
            )  # fmt: skip
            self._refuse(Refusal(error.sqlstate, str(error), error.hint))
            return
        self._has_asked = True
        self._question = Question(self.number, self._user, verb, self.reply)
        self._server.verdicts.ask(self._question)

    def _refuse(self, refusal: Refusal) -> None:
        text = str(refusal)
        self._say(*self._conversation.refuse(refusal.sqlstate, text, refusal.hint))

    def _say(self, *messages: Message) -> None:
        self._out += self._channel.connection.send(*messages)

    def _flush(self) -> None:
        """Send what the kernel accepts at once. Raises OSError."""
        if self._out and not self.is_closed:
            sent = self._channel.transport.send_some(memoryview(bytes(self._out)))
            del self._out[:sent]
        self._is_stuck = bool(self._out)

    def _lost(self, error: OSError) -> None:
        log.debug("client lost", client=self._address, reason=str(error))
        self.close()
