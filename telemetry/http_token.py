"""The bearer token of the HTTP ports: one line in a file, never in a command line or a log."""

from __future__ import annotations

import re
from pathlib import Path

from quorum_wal.storage.private_file import read_private

TOKEN_CHARACTERS_MIN = 16
_TOKEN = re.compile(r"[A-Za-z0-9\-._~+/]+=*")  # b64token of RFC 6750


def read_http_token(path: Path) -> str:
    """For a client, which only has to be able to read the file. Raises OSError, ValueError."""
    return _parse(path.read_text("ascii", "replace"), path)


def read_private_token(path: Path) -> str:
    """For a server: the file must be private. Raises OSError, NotPrivate, ValueError."""
    return _parse(read_private(path).decode("ascii", "replace"), path)


def _parse(text: str, path: Path) -> str:
    """Raises ValueError, whose text does not contain the token."""
    token = text.strip()
    if len(token) < TOKEN_CHARACTERS_MIN or _TOKEN.fullmatch(token) is None:
        raise ValueError(
            f'"{path}" holds no token: expected one line of at least {TOKEN_CHARACTERS_MIN} '
            "letters, digits and -._~+/"
        )
    return token
