"""Settings of a branch's server, and who may connect to it. Pure.

Laws. A branch has the system identifier and the passwords of its cluster, so it must not be able to
write where the cluster writes, or to answer in its place. `fixed_settings` see to that; they stand
on the command line, where ALTER SYSTEM does not reach. Without logical replication workers no
subscription of the cluster takes changes out of a publisher's slot. The cluster's postgresql.conf
is not used: it says where the cluster's files are, and may load libraries that act on their own
(pg_cron). It listens on the loopback; without a password only the server's account is let in, by a
socket in a folder that others may not enter.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from backup.recovery_settings import quoted
from pageserver.branches.branch_folder import SOCKET
from pageserver.errors import BranchError

#: What is left of the cluster's configuration is kept under this ending, to be read.
OF_CLUSTER = ".cluster"
CONF, AUTO_CONF = "postgresql.conf", "postgresql.auto.conf"
HBA, IDENT = "pg_hba.conf", "pg_ident.conf"
#: A dump locks all tables; prepared transactions need as many as they had.
LOCKS_PER_TRANSACTION = 1024

#: `md5` asks for SCRAM where the password is stored so, which is the default (auth-password in the
#: manual); it also lets in those whose password is older.
LOCAL_HBA = """\
# Of a branch. The folder of its socket is entered by its account only.
local  all  all                trust
host   all  all  127.0.0.1/32  md5
host   all  all  ::1/128       md5
"""

#: Of the cluster's settings those that change what a query answers, and nothing else.
OF_ANSWERS = (
    "timezone", "datestyle", "intervalstyle", "default_text_search_config", "bytea_output",
    "search_path",
)  # fmt: skip


def fixed_settings(name: str, port: int) -> dict[str, str]:
    """What no file, and no ALTER SYSTEM, changes."""
    return {
        "archive_mode": "off",
        "cluster_name": f"branch {name}",
        "max_logical_replication_workers": "0",
        "max_wal_senders": "0",
        "port": str(port),
        "primary_conninfo": "",
        "synchronous_standby_names": "",
        "unix_socket_directories": f"../{SOCKET}",  # short, as sockets need it
    }


def own_settings(name: str, port: int, prepared_max: int) -> dict[str, str]:
    """Of its postgresql.conf: the fixed ones too, for who starts it by other means."""
    return {
        **fixed_settings(name, port),
        "listen_addresses": "127.0.0.1",
        "unix_socket_permissions": "0700",
        "max_prepared_transactions": str(prepared_max),
        "max_locks_per_transaction": str(LOCKS_PER_TRANSACTION),
        "allow_in_place_tablespaces": "on",  # its tablespaces are folders in pg_tblspc
    }


def check_chosen(chosen: Mapping[str, str]) -> None:
    """What a user sets. Raises BranchError."""
    fixed = fixed_settings("", 0)
    refused = [name for name in chosen if name.lower() in fixed]
    if refused:
        raise BranchError(
            f"{refused[0]} of a branch cannot be set",
            hint="It keeps the branch away from the cluster. A port is chosen by --port.",
        )


def configuration(settings: Mapping[str, str]) -> str:
    """postgresql.conf."""
    lines = (f"{name} = {quoted(value)}" for name, value in settings.items())
    return "\n".join(["# Of a branch: sk branch", *lines]) + "\n"


def command_line(settings: Mapping[str, str]) -> str:
    """As pg_ctl hands it to a shell."""
    return " ".join(shlex.quote(f"--{name}={value}") for name, value in settings.items())
