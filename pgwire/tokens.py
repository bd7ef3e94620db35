"""The words of a command: text -> tokens, one at a time. For the grammars of our listeners.

    16/B374D848   lsn         "My slot"  name       (  )  ,  ;  .   mark
    5000          number      'it''s'    value      $1              parameter
    WAIT_LSN      word


Key words are case-insensitive. Scanning is linear in the text. Pure.
"""

from __future__ import annotations

import re
from typing import NoReturn

from quorum_wal.pgwal.errors import LsnSyntaxError
from quorum_wal.pgwal.lsn import Lsn
from quorum_wal.pgwire.errors import CommandSyntaxError

_SPACE = re.compile(r"[ \t\n\v\f\r]*+")

# Possessive repeats (++): a token never shrinks to make a later one fit, so scanning is linear.
_TOKEN = re.compile(
    r"""
      (?P<lsn>    [0-9A-Fa-f]++ / [0-9A-Fa-f]++ )
    | (?P<number> [0-9]++ )
    | (?P<word>   [A-Za-z_] [A-Za-z0-9_$]*+ )
    | (?P<name>   " (?: [^"]++ | "" )++ " )
    | (?P<value>  ' (?: [^']++ | '' )*+ ' )
    | (?P<parameter> \$ [0-9]{1,5} )
    | (?P<mark>   [(),;.] )
    | (?P<end>    \Z )
    """,
    re.VERBOSE,
)


class Tokens:
    """The current token: `kind` is a group of _TOKEN or "bad". All methods but fail() advance."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._next_at = 0
        self.kind = self.text = ""
        self.step()

    def step(self) -> None:
        space = _SPACE.match(self._source, self._next_at)
        assert space is not None  # it also matches the empty string
        self._at = space.end()
        token = _TOKEN.match(self._source, self._at)
        self.kind = (token.lastgroup if token else None) or "bad"
        self.text = token[0] if token else self._source[self._at]
        self._next_at = self._at + len(self.text)

    def fail(self, expected: str, *, hint: str | None = None) -> NoReturn:
        where = "end of input" if self.kind == "end" else f'or near "{self.text[:40]}"'
        if self.kind == "bad" and self.text in ("'", '"'):
            expected = "a closing quote"
        raise CommandSyntaxError(
            f"syntax error at {where}: expected {expected}", position=self._at + 1, hint=hint
        )

    def take(self, kind: str, expected: str) -> str:
        if self.kind != kind:
            self.fail(expected)
        text = self.text
        self.step()
        return text

    def accept(self, text: str) -> bool:
        """Whether the next token is this key word or mark."""
        found = self.kind in ("word", "mark") and self.text.upper() == text
        if found:
            self.step()
        return found

    def expect(self, text: str) -> None:
        if not self.accept(text):
            self.fail(text)

    def name(self, expected: str) -> str:
        if self.kind == "name":
            return self.take("name", expected)[1:-1].replace('""', '"')
        return self.take("word", expected).lower()

    def lsn(self) -> Lsn:
        expected = "an LSN such as 16/B374D848"
        if self.kind != "lsn":
            self.fail(expected)
        try:
            lsn = Lsn.parse(self.text)
        except LsnSyntaxError:
            self.fail(expected)
        self.step()
        return lsn
