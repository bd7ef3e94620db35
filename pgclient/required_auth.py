"""The authentication methods that our own clients accept from a safekeeper: `require_auth` of
libpq.

A safekeeper requests SCRAM-SHA-256 or no authentication. A server that requests a plain-text or MD5
password is not a safekeeper, and libpq would send the password. An explicit require_auth of the
user takes precedence. Source: libpq (version 16 and newer), `fe-auth.c`, `check_expected_areq`.
"""

from __future__ import annotations

from collections.abc import Mapping

SCRAM = "scram-sha-256"
#: Also accepts a safekeeper without users: the environment may have a password for another server.
SCRAM_OR_NONE = f"none,{SCRAM}"

#: Settings that give a password, or may. With one of them the user expects an authentication
#: request.
_PASSWORDS = ("password", "passfile", "service")


def required_auth(settings: Mapping[str, object], environment: Mapping[str, str]) -> dict[str, str]:
    """The settings to add to a connection to a safekeeper; pure."""
    if settings.get("require_auth") or environment.get("PGREQUIREAUTH"):
        return {}
    has_password = any(settings.get(name) for name in _PASSWORDS)
    return {"require_auth": SCRAM if has_password else SCRAM_OR_NONE}
