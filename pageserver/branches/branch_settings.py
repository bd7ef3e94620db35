"""Settings of a branch's server, and its client authentication. Pure.

Laws. A branch has the system identifier and the passwords of its cluster. So it must not write to
the cluster's files or archive, and must not accept connections in its place. `fixed_settings`
ensure this. They are passed on the command line, which ALTER SYSTEM cannot override. Logical
replication workers are disabled, so that the cluster's subscriptions do not read from a publisher's
slot. The cluster's postgresql.conf is not used: it names the cluster's files, and may load
libraries that run jobs (pg_cron). The server listens on the loopback interface. Only its own
account can connect without a password, by a socket in a folder with mode 0700.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from quorum_wal.backup.recovery_settings import quoted
from quorum_wal.pageserver.branches.branch_folder import SOCKET
from quorum_wal.pageserver.errors import BranchError

#: The cluster's configuration files are kept with this extension.
CLUSTER_SUFFIX = ".cluster"
CONF, AUTO_CONF = "postgresql.conf", "postgresql.auto.conf"
HBA, IDENT = "pg_hba.conf", "pg_ident.conf"
#: A dump locks all tables. Prepared transactions need as many locks as on the cluster.
LOCKS_PER_TRANSACTION = 1024

#: `md5` uses SCRAM if the stored password is SCRAM, the default (see auth-password in the manual).
#: It also accepts roles with an older md5 password.
LOCAL_HBA = """\
# Branch. Only the server's account can enter the folder of the socket.
local  all  all                trust
host   all  all  127.0.0.1/32  md5
host   all  all  ::1/128       md5
"""

#: The cluster's settings that change the output of a query, and nothing else.
OUTPUT_SETTINGS = (
    "timezone", "datestyle", "intervalstyle", "default_text_search_config", "bytea_output",
    "search_path",
)  # fmt: skip


def fixed_settings(name: str, port: int) -> dict[str, str]:
    """Settings that no file and no ALTER SYSTEM can change."""
    return {
        "archive_mode": "off",
        "cluster_name": f"branch {name}",
        "max_logical_replication_workers": "0",
        "max_wal_senders": "0",
        "port": str(port),
        "primary_conninfo": "",
        "synchronous_standby_names": "",
        "unix_socket_directories": f"../{SOCKET}",  # relative, because the path length is limited
    }


def own_settings(name: str, port: int, prepared_max: int) -> dict[str, str]:
    """Its postgresql.conf. Includes the fixed settings, for a start without sk."""
    return {
        **fixed_settings(name, port),
        "listen_addresses": "127.0.0.1",
        "unix_socket_permissions": "0700",
        "max_prepared_transactions": str(prepared_max),
        "max_locks_per_transaction": str(LOCKS_PER_TRANSACTION),
        "allow_in_place_tablespaces": "on",  # tablespaces are folders in pg_tblspc
    }


def check_user_settings(chosen: Mapping[str, str]) -> None:
    """Checks the user's settings. Raises BranchError."""
    fixed = fixed_settings("", 0)
    refused = [name for name in chosen if name.lower() in fixed]
    if refused:
        raise BranchError(
            f"{refused[0]} cannot be set for a branch",
            hint="This setting isolates the branch from the cluster. Set the port with --port.",
        )


def configuration(settings: Mapping[str, str]) -> str:
    """The contents of postgresql.conf."""
    lines = (f"{name} = {quoted(value)}" for name, value in settings.items())
    return "\n".join(["# Settings of a branch, see sk branch", *lines]) + "\n"


def command_line(settings: Mapping[str, str]) -> str:
    """As pg_ctl passes it to a shell."""
    return " ".join(shlex.quote(f"--{name}={value}") for name, value in settings.items())
