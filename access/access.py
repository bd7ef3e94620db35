"""Access to a listener, put together: TLS, users and limits.

Certificates and users are those of the files at that moment, for each new connection and each
command. A change does not affect commands that run already.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from quorum_wal.access.admission import DEFAULT_LIMITS, Admission, ConnectionLimits
from quorum_wal.access.errors import AccessError
from quorum_wal.access.roles import Role, check_role
from quorum_wal.access.users import UserFileError, Users, read_users
from quorum_wal.pgwire.blocking import ServerConfig
from quorum_wal.pgwire.tls import ServerTls, TlsFiles
from quorum_wal.storage.private_file import NotPrivate
from quorum_wal.telemetry.watched_files import WatchedFiles

PROCESS_ID_MASK = 0x7FFFFFFF  # clients expect a positive int32


@dataclass(frozen=True, slots=True)
class AccessConfig:
    """Without `tls` nothing is encrypted; without `user_file` every client may do anything."""

    tls: TlsFiles | None = None
    user_file: Path | None = None
    limits: ConnectionLimits = DEFAULT_LIMITS


TRUST = AccessConfig()


class AdmissionRule(Protocol):
    """An additional rule of a listener for connections. Any thread may call it."""

    def enter(self, number: int, parameters: Mapping[str, str], roles: frozenset[Role]) -> None:
        """Called after authentication, with the startup parameters. Raises ConnectionRefused."""

    def leave(self, number: int) -> None:
        """The connection ended, whether it had entered or not."""


class Access:
    """Any thread may use it."""

    def __init__(
        self,
        config: AccessConfig,
        rules: Sequence[AdmissionRule] = (),
        trusted: Mapping[str, frozenset[Role]] | None = None,
    ) -> None:
        """`trusted`: without authentication only the name is known; users of these names have these
        roles. Raises AccessError if a file cannot be used."""
        self.admission = Admission(config.limits, time.monotonic)
        self._rules = rules
        self._trusted = trusted or {}
        self._wants_certificate = config.tls is not None and config.tls.client_ca is not None
        self._tls: WatchedFiles[ServerTls] | None = None
        self._users: WatchedFiles[Users] | None = None
        if config.tls is not None:
            self._tls = _watch_tls(config.tls)
        if config.user_file is not None:
            self._users = _watch_users(config.user_file)

    @property
    def files(self) -> tuple[WatchedFiles[Any] | None, ...]:
        return self._tls, self._users

    def server_config(self, base: ServerConfig, number: int, host: str) -> ServerConfig:
        """The configuration for one connection, as of now. `on_authenticated` of `base` is called
        before the connection gets a place."""

        def on_startup(parameters: Mapping[str, str]) -> None:
            self.admission.check_tries(number, parameters.get("user", ""), host)

        def on_authenticated(parameters: Mapping[str, str]) -> None:
            base.on_authenticated(parameters)
            user = parameters["user"]
            roles = self._roles_of(user)
            self.admission.admit(number, user, roles)
            for rule in self._rules:
                rule.enter(number, parameters, roles)

        users = None if self._users is None else self._users.current()
        return replace(
            base,
            tls=None if self._tls is None else self._tls.current(),
            require_tls=self._tls is not None,
            require_certificate=self._wants_certificate,
            verifiers=None if users is None else {u.name: u.verifier for u in users.values()},
            on_startup=on_startup,
            on_authenticated=on_authenticated,
            process_id=number & PROCESS_ID_MASK,
        )

    def leave(self, number: int) -> None:
        """The connection ended."""
        self.admission.leave(number)
        for rule in self._rules:
            rule.leave(number)

    def check_role(self, user: str, wanted: frozenset[Role], command: str) -> None:
        """Raises PermissionDenied (42501) unless one of the user's roles is `wanted` for it."""
        if self._users is not None:
            check_role(user, self._roles_of(user), wanted, command)

    def _roles_of(self, user: str) -> frozenset[Role]:
        if self._users is None:
            return self._trusted.get(user, frozenset())
        known = self._users.current().get(user)
        return frozenset() if known is None else known.roles


def _watch_tls(files: TlsFiles) -> WatchedFiles[ServerTls]:
    try:
        return WatchedFiles(files.paths, lambda: ServerTls.load(files))
    except OSError as error:
        hint = error.hint if isinstance(error, NotPrivate) else ""
        raise AccessError(f"could not load the TLS certificate: {error}", hint=hint) from error


def _watch_users(path: Path) -> WatchedFiles[Users]:
    try:
        return WatchedFiles([path], lambda: read_users(path))
    except NotPrivate as error:
        raise AccessError(f"user file {error}", hint=error.hint) from error
    except UserFileError as error:
        raise AccessError(
            f'user file "{path}": {error}', hint=f"sk user add {path} USER --role ROLE writes it."
        ) from error
