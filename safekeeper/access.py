"""Who may connect to the WAL port and what for: TLS, users and limits, put together.

Certificates and users are those of the files at that moment: a connection is let in, and a command
is allowed, by what they say then. What runs already goes on.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pgwire.blocking import ServerConfig
from pgwire.commands import Command
from pgwire.tls import ServerTls, TlsFiles
from safekeeper.admission import DEFAULT_LIMITS, Admission, ConnectionLimits
from safekeeper.errors import SafekeeperError
from safekeeper.roles import Role, check_role
from safekeeper.startup_parameters import check_startup_parameters
from safekeeper.tenant_limits import NO_LIMITS, TenantConnections, TenantLimits
from safekeeper.users import UserFileError, Users, read_users
from storage.private_file import NotPrivate
from telemetry.watched_files import WatchedFiles


@dataclass(frozen=True, slots=True)
class AccessConfig:
    """Without `tls` nothing is encrypted; without `user_file` whoever comes may do anything."""

    tls: TlsFiles | None = None
    user_file: Path | None = None
    limits: ConnectionLimits = DEFAULT_LIMITS
    tenant_limits: TenantLimits = NO_LIMITS


TRUST = AccessConfig()
PROCESS_ID_MASK = 0x7FFFFFFF  # what clients take for one is a positive int32

# What proposers call themselves unless they are told otherwise: walproposer/safekeeper_client.py.
PROPOSER_USER = "walproposer"


class Access:
    """Any thread may use it."""

    def __init__(self, config: AccessConfig) -> None:
        """Raises SafekeeperError when a file cannot be used."""
        self.admission = Admission(config.limits, time.monotonic)
        self._tenants = TenantConnections(config.tenant_limits)
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
        """For one connection: what holds now."""

        def on_startup(parameters: Mapping[str, str]) -> None:
            self.admission.check_tries(number, parameters.get("user", ""), host)

        def on_authenticated(parameters: Mapping[str, str]) -> None:
            check_startup_parameters(parameters)
            user = parameters["user"]
            roles = self._roles_of(user)
            self.admission.admit(number, user, roles)
            self._tenants.enter(number, parameters, roles)

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
        """The connection is gone."""
        self.admission.leave(number)
        self._tenants.leave(number)

    def check_command(self, user: str, command: Command) -> None:
        """Raises SafekeeperError (42501) unless the user's roles allow it."""
        if self._users is not None:
            check_role(user, self._roles_of(user), command)

    def _roles_of(self, user: str) -> frozenset[Role]:
        """Where nobody has to prove anything, the name is all there is: places are kept for that
        of a proposer, so that idle clients of other names do not keep it out."""
        if self._users is None:
            return frozenset({Role.PROPOSER}) if user == PROPOSER_USER else frozenset()
        known = self._users.current().get(user)
        return frozenset() if known is None else known.roles


def _watch_tls(files: TlsFiles) -> WatchedFiles[ServerTls]:
    try:
        return WatchedFiles(files.paths, lambda: ServerTls.load(files))
    except OSError as error:
        hint = error.hint if isinstance(error, NotPrivate) else ""
        raise SafekeeperError(f"could not load the TLS certificate: {error}", hint=hint) from error


def _watch_users(path: Path) -> WatchedFiles[Users]:
    try:
        return WatchedFiles([path], lambda: read_users(path))
    except NotPrivate as error:
        raise SafekeeperError(f"user file {error}", hint=error.hint) from error
    except UserFileError as error:
        raise SafekeeperError(
            f'user file "{path}": {error}', hint=f"sk user add {path} USER --role ROLE writes it."
        ) from error
