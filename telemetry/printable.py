"""Texts of others for a terminal: without the characters that a terminal obeys.

Any client can choose its name and any server the text of its error. An escape sequence in it could
move the cursor, change colours or the title, and hide lines from the reader of a log. Pure.
"""

from __future__ import annotations


def printable(text: str) -> str:
    """All characters but spaces, line feeds and printable ones as escapes of Python: `\\x1b`."""
    if text.isprintable():
        return text
    return "".join(c if c == "\n" or c.isprintable() else _escaped(c) for c in text)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
