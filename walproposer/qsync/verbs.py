"""The commands of the coordinator's port: text <-> values. Pure.

    ADMIT                                             may a transaction be prepared now?
    WAIT_LSN X/X TIMEOUT ms [GID 'gid']               answer when a quorum has that position
    BARRIER X/X TIMEOUT ms [TLI n START us]           the same, in a term proved to lead since
    OUTCOME 'gid' [LSN X/X]                           the outcome of a transaction
    QSYNC_STATUS      QSYNC_LIST                      the coordinator; its limbo
    RESOLVE 'gid' COMMIT | ROLLBACK [TIMEOUT ms]      finish a transaction

Key words are case-insensitive. A `;` may end the command. A parameter `$1` may replace an LSN, a
number or a gid, because drivers prepare frequent statements. TIMEOUT 0 asks once. For the answers
see `answers.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from quorum_wal.pgwal.errors import LsnSyntaxError
from quorum_wal.pgwal.lsn import Lsn
from quorum_wal.pgwire.errors import INVALID_PARAMETER_VALUE, CommandSyntaxError
from quorum_wal.pgwire.tokens import Tokens
from quorum_wal.qsync.gid import Gid, GidError

TIMEOUT_MS_MAX = (1 << 31) - 1
TLI_MAX = (1 << 32) - 1
START_US_MAX = (1 << 63) - 1
PARAMETERS_MAX = 8
#: The timeout of a RESOLVE without TIMEOUT.
RESOLVE_TIMEOUT_MS = 10_000

_DIGITS_MAX = 19
_NO_SQL = "The port of a coordinator runs no SQL. Use ADMIT, WAIT_LSN, BARRIER, OUTCOME, \
QSYNC_STATUS, QSYNC_LIST or RESOLVE."
_NO_TRANSACTION = "The port of a coordinator has no transactions. Connect with autocommit."
_OF_TRANSACTIONS = ("BEGIN", "START", "COMMIT", "ROLLBACK", "END", "ABORT", "SAVEPOINT")


class InvalidArgument(CommandSyntaxError):
    """The syntax is correct, but a value is not: a gid of another program, a number out of
    range."""

    sqlstate = INVALID_PARAMETER_VALUE


@dataclass(frozen=True, slots=True)
class Admit:
    """May one more transaction be prepared?"""


@dataclass(frozen=True, slots=True)
class WaitLsn:
    """With `gid`, the connection is the client of that transaction, as long as it is open."""

    lsn: int
    timeout_ms: int
    gid: Gid | None = None


@dataclass(frozen=True, slots=True)
class Barrier:
    """`server`: the primary that `lsn` was read from, if the client knows it: its timeline, and
    pg_postmaster_start_time() in microseconds since the Unix epoch."""

    lsn: int
    timeout_ms: int
    server: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class AskOutcome:
    """`lsn`: an upper bound of the end of its PREPARE, if the client knows one."""

    gid: Gid
    lsn: int | None = None


@dataclass(frozen=True, slots=True)
class ShowStatus:
    """QSYNC_STATUS."""


@dataclass(frozen=True, slots=True)
class ShowList:
    """QSYNC_LIST."""


@dataclass(frozen=True, slots=True)
class Resolve:
    """An administrator finishes `gid`."""

    gid: Gid
    commit: bool
    timeout_ms: int = RESOLVE_TIMEOUT_MS


Verb: TypeAlias = Admit | WaitLsn | Barrier | AskOutcome | ShowStatus | ShowList | Resolve

WORDS: dict[type[Verb], str] = {
    Admit: "ADMIT",
    WaitLsn: "WAIT_LSN",
    Barrier: "BARRIER",
    AskOutcome: "OUTCOME",
    ShowStatus: "QSYNC_STATUS",
    ShowList: "QSYNC_LIST",
    Resolve: "RESOLVE",
}


def parse_verb(text: str, values: Sequence[str | None] = ()) -> Verb:
    """Parse a command. `values` are those of its parameters, None for NULL.

    Raises only CommandSyntaxError, with the position.
    """
    return _parse(_VerbTokens(text, values))


def parse_statement(text: str) -> tuple[Verb, int]:
    """Parse a command whose parameters have no values yet. Returns the verb, with placeholder
    values, and the number of parameters. Raises CommandSyntaxError."""
    tokens = _VerbTokens(text, None)
    verb = _parse(tokens)
    return verb, tokens.parameters


def _parse(tokens: _VerbTokens) -> Verb:
    parse = _PARSERS.get(tokens.text.upper()) if tokens.kind == "word" else None
    if parse is None:
        is_transaction = tokens.text.upper() in _OF_TRANSACTIONS
        tokens.fail("a verb", hint=_NO_TRANSACTION if is_transaction else _NO_SQL)
    tokens.step()
    verb = parse(tokens)
    tokens.accept(";")
    if tokens.kind != "end":
        tokens.fail("the end of the command")
    return verb


class _VerbTokens(Tokens):
    """`values` of the parameters; None: there are none yet, and placeholders are used.
    `parameters`: the greatest parameter number found."""

    def __init__(self, source: str, values: Sequence[str | None] | None) -> None:
        self.parameters = 0
        self._values = values
        super().__init__(source)

    def lsn(self) -> Lsn:
        if self.kind != "parameter":
            return super().lsn()
        text = self._value("0/0")
        try:
            lsn = Lsn.parse(text)
        except LsnSyntaxError as error:
            raise self._invalid(f'"{text[:40]}" is not an LSN such as 16/B374D848') from error
        self.step()
        return lsn

    def number(self, expected: str, number_max: int) -> int:
        if self.kind not in ("number", "parameter"):
            self.fail(expected)
        text = self._value("1") if self.kind == "parameter" else self.text
        is_short = len(text) <= _DIGITS_MAX and text.isascii() and text.isdecimal()
        if not is_short or int(text) > number_max:
            raise self._invalid(f'"{text[:40]}" is out of range: expected {expected}')
        self.step()
        return int(text)

    def timeout_ms(self) -> int:
        return self.number(f"milliseconds, 0 to {TIMEOUT_MS_MAX}", TIMEOUT_MS_MAX)

    def gid(self) -> Gid:
        if self.kind not in ("value", "parameter"):
            self.fail("a gid in quotes")
        if self.kind == "parameter":
            text = self._value(_SOME_GID)
        else:
            text = self.text[1:-1].replace("''", "'")
        try:
            gid = Gid.parse(text)
        except GidError as error:
            raise self._invalid(str(error)) from error
        self.step()
        return gid

    def _value(self, some: str) -> str:
        """The value of the current parameter; `some` if there are no values yet. Raises
        CommandSyntaxError."""
        number = int(self.text[1:])
        if not 1 <= number <= PARAMETERS_MAX:
            raise self._invalid(f"there is no parameter {self.text}")
        self.parameters = max(self.parameters, number)
        if self._values is None:
            return some
        if number > len(self._values):
            raise self._invalid(f"there is no parameter {self.text}")
        value = self._values[number - 1]
        if value is None:
            raise self._invalid(f"parameter {self.text} is null")
        return value

    def _invalid(self, message: str) -> InvalidArgument:
        return InvalidArgument(message, position=self._at + 1)


_SOME_GID = f"skq1.d.1.1-1-1-1.{'0' * 32}"


def _wait_lsn(tokens: _VerbTokens) -> Verb:
    lsn = int(tokens.lsn())
    tokens.expect("TIMEOUT")
    timeout_ms = tokens.timeout_ms()
    return WaitLsn(lsn, timeout_ms, tokens.gid() if tokens.accept("GID") else None)


def _barrier(tokens: _VerbTokens) -> Verb:
    lsn = int(tokens.lsn())
    tokens.expect("TIMEOUT")
    timeout_ms = tokens.timeout_ms()
    server = None
    if tokens.accept("TLI"):
        tli = tokens.number("a timeline", TLI_MAX)
        tokens.expect("START")
        server = tli, tokens.number("microseconds since 1970", START_US_MAX)
    return Barrier(lsn, timeout_ms, server)


def _outcome(tokens: _VerbTokens) -> Verb:
    gid = tokens.gid()
    return AskOutcome(gid, int(tokens.lsn()) if tokens.accept("LSN") else None)


def _resolve(tokens: _VerbTokens) -> Verb:
    gid = tokens.gid()
    commit = tokens.accept("COMMIT")
    if not commit and not tokens.accept("ROLLBACK"):
        tokens.fail("COMMIT or ROLLBACK")
    timeout_ms = tokens.timeout_ms() if tokens.accept("TIMEOUT") else RESOLVE_TIMEOUT_MS
    return Resolve(gid, commit, timeout_ms)


_PARSERS = {
    "ADMIT": lambda _: Admit(),
    "WAIT_LSN": _wait_lsn,
    "BARRIER": _barrier,
    "OUTCOME": _outcome,
    "QSYNC_STATUS": lambda _: ShowStatus(),
    "QSYNC_LIST": lambda _: ShowList(),
    "RESOLVE": _resolve,
}
