"""Which proof of the password our own clients let a safekeeper ask for: `require_auth` of libpq.

A safekeeper asks for SCRAM-SHA-256 or for nothing. A server that asks for the password itself, or
for its MD5, is none, and libpq would send it. What the user says about require_auth stands.
Source: libpq (version 16 and newer), `fe-auth.c`, `check_expected_areq`.
"""

from __future__ import annotations

from collections.abc import Mapping

SCRAM = "scram-sha-256"
#: A safekeeper without users, too: a password may be in the environment, for another server.
SCRAM_OR_NONE = f"none,{SCRAM}"

#: Settings that give a password, or may: who gives one expects to be asked for it.
_PASSWORDS = ("password", "passfile", "service")


def required_auth(settings: Mapping[str, object], environment: Mapping[str, str]) -> dict[str, str]:
    """To be added to the settings of a connection to a safekeeper; pure."""
    if settings.get("require_auth") or environment.get("PGREQUIREAUTH"):
        return {}
    has_password = any(settings.get(name) for name in _PASSWORDS)
    return {"require_auth": SCRAM if has_password else SCRAM_OR_NONE}
