"""`RestoreTarget`: the database that `sk table restore --to` restores a dump into.

Law: either the whole dump is restored, or the database is not changed. Owners and privileges are
restored if all their roles exist there and the connecting role may set the owners. Otherwise they
are left out, and a warning names the reason.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import click
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from quorum_wal.cli.output import CommandError
from quorum_wal.pageserver.pitr.dump_roles import DumpRoles
from quorum_wal.pg_server.binaries import PostgresBinaries
from quorum_wal.pg_server.program import run_program
from quorum_wal.walproposer.connection import converting_errors, open_connection

RESTORE_SECONDS_MAX = 24 * 3600.0
#: From Postgres 16 on, ALTER ... OWNER TO needs the option SET of the membership.
_SET_OPTION_VERSION = 160000
_ROLES = """
SELECT w.name, r.oid IS NOT NULL, coalesce(pg_has_role(r.oid, %(option)s), false)
FROM unnest(%(names)s::text[]) w (name) LEFT JOIN pg_roles r ON r.rolname = w.name
"""


@dataclass(frozen=True, slots=True)
class Omitted:
    """Which parts of a dump are not restored, as the options of pg_restore name them."""

    owner: bool = False
    privileges: bool = False

    @property
    def arguments(self) -> list[str]:
        chosen = {"--no-owner": self.owner, "--no-privileges": self.privileges}
        return [option for option, is_chosen in chosen.items() if is_chosen]


class RestoreTarget:
    """`dsn` may contain a password, which is never printed or put on a command line."""

    def __init__(self, dsn: str, binaries: PostgresBinaries) -> None:
        self._dsn = dsn
        self._binaries = binaries

    def load(self, dump: Path, roles: DumpRoles, omitted: Omitted) -> None:
        """Prints a warning for what cannot be restored. Raises CommandError, WalProposerError."""
        omitted = self._checked(roles, omitted)
        keywords = conninfo_to_dict(self._dsn)
        password = keywords.pop("password", None)
        done = run_program(
            [
                *(self._binaries.program("pg_restore"), "--exit-on-error", "--single-transaction"),
                *omitted.arguments,
                *(f"--dbname={make_conninfo('', **keywords)}", dump),
            ],
            env={"PGPASSWORD": str(password)} if password else None,
            timeout=RESTORE_SECONDS_MAX,
            check=False,
        )
        if done.returncode != 0:
            lines = done.stderr.strip().splitlines() or ["no reason given"]
            raise CommandError(
                f"pg_restore failed: {lines[0].removeprefix('pg_restore: error: ')}",
                "The database was not changed. Give another one, or rename its table. "
                "--no-owner and --no-privileges restore without owners and privileges.",
            )

    def _checked(self, roles: DumpRoles, omitted: Omitted) -> Omitted:
        """Omits also what the roles of the target do not allow."""
        user, settable = self._known_roles([*roles.owners, *roles.grantees])
        missing = [name for name in roles.owners if name not in settable]
        refused = [name for name in roles.owners if not settable.get(name, True)]
        unknown = [name for name in roles.grantees if name not in settable]
        no_owner, no_privileges = omitted.owner, omitted.privileges
        if not no_owner and (missing or refused):
            reason = (
                f"the target has no role {_quoted(missing)}"
                if missing
                else f'"{user}" may not set the owner {_quoted(refused)}'
            )
            _warn(f'the owner is not restored: {reason}; the objects belong to "{user}"')
            no_owner = True
        if not no_privileges and unknown:
            _warn(f"privileges are not restored: the target has no role {_quoted(unknown)}")
            no_privileges = True
        return Omitted(no_owner, no_privileges)

    def _known_roles(self, names: list[str]) -> tuple[str, dict[str, bool]]:
        """The connecting role; and of these roles those that exist, and whether it may make each
        an owner."""
        with (
            closing(open_connection(self._dsn, "the server of --to")) as connection,
            converting_errors("could not read the roles of the server of --to"),
        ):
            version = connection.info.server_version
            option = "SET" if version >= _SET_OPTION_VERSION else "MEMBER"
            ((user,),) = connection.execute("SELECT current_user").fetchall()
            rows = connection.execute(_ROLES, {"names": names, "option": option}).fetchall()
        return user, {name: may_set for name, exists, may_set in rows if exists}


def _quoted(names: list[str]) -> str:
    return ", ".join(f'"{name}"' for name in names)


def _warn(text: str) -> None:
    click.echo(f"WARNING: {text}", err=True)
