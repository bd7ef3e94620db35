"""The bearer token of the HTTP ports: one line in a file, never on a command line or in a log."""

from __future__ import annotations

import re
from pathlib import Path

TOKEN_CHARACTERS_MIN = 16
_TOKEN = re.compile(r"[A-Za-z0-9\-._~+/]+=*")  # b64token of RFC 6750


def read_http_token(path: Path) -> str:
    """Raises OSError, and ValueError that tells nothing of the content."""
    token = path.read_text("ascii", "replace").strip()
    if len(token) < TOKEN_CHARACTERS_MIN or _TOKEN.fullmatch(token) is None:
        raise ValueError(
            f'"{path}" holds no token: expected one line of at least {TOKEN_CHARACTERS_MIN} '
            "letters, digits and -._~+/"
        )
    return token
