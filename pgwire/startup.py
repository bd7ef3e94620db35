"""The packets that a client sends before the first message, and the options in them.

    +------------+--------------------------+
    | code (u32) | payload                  |     behind the length word, without a type byte
    +------------+--------------------------+
      80877103     -                              SSLRequest         answered by one byte: S or N
      80877104     -                              GSSENCRequest      answered by one byte: N
      80877102     process id, secret key         CancelRequest      never answered
      3 << 16 | m  name\\0 value\\0 ... \\0          StartupMessage     protocol 3.m

Sources: Postgres `backend_startup.c` (ProcessStartupPacket), `postinit.c` (pg_split_opts).
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from typing import TypeAlias

from msgspec import field

from quorum_wal.pgwire.errors import (
    FEATURE_NOT_SUPPORTED,
    INVALID_PARAMETER_VALUE,
    SYNTAX_ERROR,
    ConnectionRefused,
    ProtocolError,
)
from quorum_wal.pgwire.framing import PayloadReader, cstring
from quorum_wal.pgwire.messages import Message, NegotiateProtocolVersion

PROTOCOL_MAJOR = 3
PROTOCOL_MINOR_MAX = 2  # as Postgres 18; there is no 3.1, a client that requests it gets 3.0

_CANCEL_KEY_BYTES = 4
_LONG_CANCEL_KEY_BYTES = 32  # MAX_CANCEL_KEY_LENGTH of Postgres; the protocol allows 256
_LONG_CANCEL_KEYS_SINCE = 2  # 3.2

_CANCEL_CODE, _SSL_CODE, _GSSENC_CODE = 80877102, 80877103, 80877104
_NEGOTIATED_PREFIX = "_pq_."

# Every unambiguous prefix of the words is valid.
_BOOLEAN = re.compile(
    "t(r(ue?)?)?|f(a(l(se?)?)?)?|y(es?)?|no?|on|off?|[01]", re.IGNORECASE | re.ASCII
)
# The white space of C's isspace(); a backslash at the very end is ignored.
_WORD = re.compile(r"(?:[^\\ \t\n\v\f\r]|\\.?)+", re.DOTALL)
_ESCAPE = re.compile(r"\\(.?)", re.DOTALL)
_SPECIAL = re.compile(r"[\\ \t\n\v\f\r]")


class SSLRequest(Message, frozen=True):
    """Client: requests TLS."""

    def encode(self) -> bytes:
        return _packet(_SSL_CODE, b"")


class GSSENCRequest(Message, frozen=True):
    """Client: requests encryption by GSSAPI. Always refused."""

    def encode(self) -> bytes:
        return _packet(_GSSENC_CODE, b"")


class CancelRequest(Message, frozen=True):
    """Client: cancel the command of another connection. This one is closed without an answer."""

    process_id: int
    secret_key: bytes

    def encode(self) -> bytes:
        return _packet(_CANCEL_CODE, struct.pack(">I", self.process_id) + self.secret_key)


class StartupMessage(Message, frozen=True):
    """Client: its user and parameters. `negotiated`: the `_pq_.` options of newer protocols."""

    parameters: Mapping[str, str]
    minor: int = 0
    negotiated: Mapping[str, str] = field(default_factory=dict)

    def encode(self) -> bytes:
        pairs = {**self.parameters, **self.negotiated}
        return _packet(
            PROTOCOL_MAJOR << 16 | self.minor,
            b"".join(cstring(name) + cstring(value) for name, value in pairs.items()) + b"\0",
        )


class EncryptionAnswer(Message, frozen=True):
    """Server: a single byte, S or N. After S the shell encrypts, and startup begins again."""

    accepted: bool

    def encode(self) -> bytes:
        return b"S" if self.accepted else b"N"


StartupPacket: TypeAlias = SSLRequest | GSSENCRequest | CancelRequest | StartupMessage


def decode_startup_packet(payload: bytes) -> StartupPacket:
    """Raises ProtocolError, and ConnectionRefused (0A000) for another major version."""
    fields = PayloadReader(payload, "startup")
    code = fields.uint32()
    packet: StartupPacket
    if code == _SSL_CODE:
        packet = SSLRequest()
    elif code == _GSSENC_CODE:
        packet = GSSENCRequest()
    elif code == _CANCEL_CODE:
        packet = CancelRequest(fields.uint32(), fields.rest())
    else:
        packet = _decode_startup_message(code, fields)
    fields.finish()
    return packet


def _decode_startup_message(code: int, fields: PayloadReader) -> StartupMessage:
    major, minor = code >> 16, code & 0xFFFF
    if major != PROTOCOL_MAJOR:
        raise ConnectionRefused(
            f"unsupported frontend protocol {major}.{minor}: server supports "
            f"{PROTOCOL_MAJOR}.0 to {PROTOCOL_MAJOR}.{PROTOCOL_MINOR_MAX}",
            sqlstate=FEATURE_NOT_SUPPORTED,
        )
    pairs: dict[str, str] = {}
    while name := fields.string():
        pairs[name] = fields.string()
    negotiated = {n: value for n, value in pairs.items() if n.startswith(_NEGOTIATED_PREFIX)}
    parameters = {n: value for n, value in pairs.items() if n not in negotiated}
    return StartupMessage(parameters, minor, negotiated)


def decode_encryption_answer(answer: int) -> EncryptionAnswer:
    """Raises ProtocolError for all but S and N: an attacker could forge an error message."""
    if answer not in b"SN":
        raise ProtocolError(f"invalid answer to SSLRequest: expected S or N, got 0x{answer:02X}")
    return EncryptionAnswer(accepted=answer == ord("S"))


def negotiation(startup: StartupMessage) -> NegotiateProtocolVersion | None:
    """The answer to a client that requested more than protocol 3.2; None if it did not.

    From time to time libpq requests a version and options that no server has. It disconnects from
    a server that does not answer with the list of all unknown options.
    """
    if startup.minor <= PROTOCOL_MINOR_MAX and not startup.negotiated:
        return None
    return NegotiateProtocolVersion(
        min(startup.minor, PROTOCOL_MINOR_MAX), tuple(startup.negotiated)
    )


def check_replication(value: str) -> None:
    """Checks the startup parameter `replication`: a boolean as in Postgres, or `database`.

    Raises ConnectionRefused (22023). Source: Postgres `bool.c`.
    """
    if value != "database" and not _BOOLEAN.fullmatch(value):
        raise ConnectionRefused(
            f'invalid value for parameter "replication": "{value}"',
            sqlstate=INVALID_PARAMETER_VALUE,
            hint='Valid values are: "false", 0, "true", 1, "database".',
        )


def cancel_key_bytes(minor: int) -> int:
    """The length of a connection's cancel key in that protocol version."""
    return _LONG_CANCEL_KEY_BYTES if minor >= _LONG_CANCEL_KEYS_SINCE else _CANCEL_KEY_BYTES


def parse_options(text: str) -> dict[str, str]:
    """The parameters in the startup parameter `options`: `-c name=value` and `--name=value`.

    White space separates words; a backslash escapes the next character. In a name, dashes mean
    underscores and case is ignored. The last one of several wins. Raises ConnectionRefused
    (42601).
    """
    words = iter(_split_options(text))
    options: dict[str, str] = {}
    for word in words:
        if word == "-c":
            setting = next(words, "")
        elif word.startswith("-c") or (word.startswith("--") and word != "--"):
            setting = word[2:]
        else:
            raise ConnectionRefused(
                f"invalid command-line argument for server process: {word}",
                sqlstate=SYNTAX_ERROR,
                hint="Valid options are -c name=value and --name=value.",
            )
        name, equals, value = setting.partition("=")
        if not name or not equals:
            raise ConnectionRefused(
                f'invalid option "{setting}" in startup packet: expected name=value',
                sqlstate=SYNTAX_ERROR,
            )
        options[name.replace("-", "_").lower()] = value
    return options


def format_options(options: Mapping[str, str]) -> str:
    """The text that parse_options() parses, for clients."""
    settings = (f"{name}={value}" for name, value in options.items())
    return " ".join("-c " + _SPECIAL.sub(r"\\\g<0>", setting) for setting in settings)


def _split_options(text: str) -> list[str]:
    return [_ESCAPE.sub(r"\1", word) for word in _WORD.findall(text)]


def _packet(code: int, payload: bytes) -> bytes:
    return struct.pack(">II", 8 + len(payload), code) + payload
