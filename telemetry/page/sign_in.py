"""Sessions of browsers, which cannot send a bearer token: a random cookie for the token.

    POST /login  token=...  -->  Set-Cookie: sk_session_PORT=RANDOM; HttpOnly; SameSite=Strict
    GET /        Cookie: sk_session_PORT=RANDOM

Browsers send cookies to every port of a host, so the name contains the port. Law: a session ends
after SESSION_SECONDS, on sign-out, when SESSIONS_MAX newer ones exist, and when its token is
replaced. Only hashes of the cookies are stored, so the time of a look-up reveals nothing about
them. The random numbers are the only I/O.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from urllib.parse import parse_qs

SESSION_SECONDS = 12 * 3600
SESSIONS_MAX = 64
COOKIE_BYTES = 32
FORM_FIELDS_MAX = 4
#: RFC 6265bis: browsers take such a cookie over TLS only, and from this host only.
SECURE_PREFIX = "__Host-"


def cookie_name(port: int, *, is_encrypted: bool) -> str:
    return f"{SECURE_PREFIX if is_encrypted else ''}sk_session_{port}"


def parse_token_form(body: bytes) -> str:
    """The token in a submitted form (application/x-www-form-urlencoded). Raises ValueError."""
    fields = parse_qs(body.decode("ascii"), errors="strict", max_num_fields=FORM_FIELDS_MAX)
    (token,) = fields.get("token") or ("",)
    return token.strip()


@dataclass(frozen=True, slots=True)
class Session:
    ends_at: float
    token_hash: bytes


class Sessions:
    """For one thread. `now` is in seconds of a clock that never goes back; `tokens` are those in
    force at the moment."""

    def __init__(self) -> None:
        self._sessions: dict[bytes, Session] = {}  # the oldest first

    def open(self, given: str, tokens: Sequence[str], now: float) -> str | None:
        """The cookie, if what was given is one of the tokens."""
        is_right = [_is_equal(given, token) for token in tokens]
        if not any(is_right):
            return None
        self._drop_ended(now)
        while len(self._sessions) >= SESSIONS_MAX:
            del self._sessions[next(iter(self._sessions))]
        cookie = secrets.token_urlsafe(COOKIE_BYTES)
        self._sessions[_hash(cookie)] = Session(now + SESSION_SECONDS, _hash(given))
        return cookie

    def admits(self, cookie: str, tokens: Sequence[str], now: float) -> bool:
        """Whether this is the cookie of a session that has not ended."""
        session = self._sessions.get(_hash(cookie))
        if session is None or session.ends_at <= now:
            return False
        return any(hmac.compare_digest(session.token_hash, _hash(token)) for token in tokens)

    def close(self, cookie: str) -> None:
        self._sessions.pop(_hash(cookie), None)

    def _drop_ended(self, now: float) -> None:
        self._sessions = {k: s for k, s in self._sessions.items() if s.ends_at > now}


def _is_equal(given: str, token: str) -> bool:
    return hmac.compare_digest(_hash(given), _hash(token))


def _hash(text: str) -> bytes:
    return sha256(text.encode("utf-8", "surrogatepass")).digest()
