"""Who may connect to the WAL port and what for: TLS, users and limits, put together.

Certificates and users are those of the files at that moment: a connection is let in, and a command
is allowed, by what they say then. What runs already goes on.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from pgwire.blocking import ServerConfig
from pgwire.commands import Command
from pgwire.tls import TlsFiles, server_tls_context
from safekeeper.admission import DEFAULT_LIMITS, Admission, ConnectionLimits
from safekeeper.errors import SafekeeperError
from safekeeper.roles import check_role
from safekeeper.users import UserFileError, Users, read_users
from telemetry.watched_files import WatchedFiles


@dataclass(frozen=True, slots=True)
class AccessConfig:
    """Without `tls` nothing is encrypted; without `user_file` whoever comes may do anything."""

    tls: TlsFiles | None = None
    user_file: Path | None = None
    limits: ConnectionLimits = DEFAULT_LIMITS


TRUST = AccessConfig()


class Access:
    """Any thread may use it."""

    def __init__(self, config: AccessConfig) -> None:
        """Raises SafekeeperError when a file cannot be used."""
        self.admission = Admission(config.limits, time.monotonic)
        self._wants_certificate = config.tls is not None and config.tls.client_ca is not None
        self._tls: WatchedFiles[ssl.SSLContext] | None = None
        self._users: WatchedFiles[Users] | None = None
        if config.tls is not None:
            self._tls = _watch_tls(config.tls)
        if config.user_file is not None:
            self._users = _watch_users(config.user_file)

    def server_config(self, base: ServerConfig, number: int, host: str) -> ServerConfig:
        """For one connection: what holds now."""

        def on_startup(parameters: Mapping[str, str]) -> None:
            self.admission.check_tries(number, parameters.get("user", ""), host)

        def on_authenticated(parameters: Mapping[str, str]) -> None:
            self.admission.admit(number, parameters["user"])

        users = None if self._users is None else self._users.current()
        return replace(
            base,
            tls=None if self._tls is None else self._tls.current(),
            require_tls=self._tls is not None,
            require_certificate=self._wants_certificate,
            verifiers=None if users is None else {u.name: u.verifier for u in users.values()},
            on_startup=on_startup,
            on_authenticated=on_authenticated,
        )

    def check_command(self, user: str, command: Command) -> None:
        """Raises SafekeeperError (42501) unless the user's roles allow it."""
        if self._users is not None:
            known = self._users.current().get(user)
            check_role(user, frozenset() if known is None else known.roles, command)


def _watch_tls(files: TlsFiles) -> WatchedFiles[ssl.SSLContext]:
    try:
        return WatchedFiles(files.paths, lambda: server_tls_context(files))
    except OSError as error:
        raise SafekeeperError(f"could not load the TLS certificate: {error}") from error


def _watch_users(path: Path) -> WatchedFiles[Users]:
    try:
        return WatchedFiles([path], lambda: read_users(path))
    except UserFileError as error:
        raise SafekeeperError(
            f'user file "{path}": {error}', hint=f"sk user add {path} USER --role ROLE writes it."
        ) from error
