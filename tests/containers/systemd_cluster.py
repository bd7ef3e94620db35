"""`SystemdCluster`: three machines with the Debian package, set up by its own config files.

    sk1, sk2    a safekeeper
    db          a safekeeper, Debian's postgresql@15-main, and its proposer

Each line of the shipped config files that is commented out is used, with the addresses of the test.
All connections have TLS and passwords.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from types import TracebackType
from typing import Self

import docker
import trustme
from container_network import PinnedNetwork
from debian_packages import VERSION
from remote_postgres import RemotePostgres
from systemd_machine import Machine, UnitState

from quorum_wal.pg_fixtures.waiting import wait_until

TIMEOUT = 120.0  # seconds
HOST_FIRST = 41
NAMES = ("sk1", "sk2", "db")
UNITS = ("sk-safekeeper", "sk-proposer", "sk-pageserver", "sk-generations")
PASSWORD = "of-the-proposer"
PRIMARY_PASSWORD = "of-the-primary"
TOKEN = b"0123456789abcdef0123456789abcdef\n"
FOLDER = "/etc/quorum-wal"
CLUSTER = "postgresql@15-main"
SYNC = "SELECT application_name, sync_state FROM pg_stat_replication"

_EXAMPLE = re.compile(r"^# (?=[a-z-]+ = )", re.MULTILINE)


class SystemdCluster:
    """A context manager: commits wait for the quorum inside the block."""

    def __init__(self, client: docker.DockerClient, image: str) -> None:
        self._client = client
        self._image = image
        self._network = PinnedNetwork(client)
        self._authority = trustme.CA()
        self._open = ExitStack()
        self.machines: list[Machine] = []
        #: Of each unit of `db` after the installation.
        self.installed: dict[str, UnitState] = {}

    def __enter__(self) -> Self:
        with self._open:  # until all has gone well
            self._open.enter_context(self._network)
            for host, name in enumerate(NAMES, HOST_FIRST):
                machine = Machine(self._client, self._network, host, self._image, name)
                self._open.callback(machine.discard)
                self.machines.append(machine)
            self.postgres = RemotePostgres(self.db.ip, PRIMARY_PASSWORD)
            self.on_each(Machine.start)
            self.on_each(lambda machine: install(machine, VERSION))
            self.installed = {unit: self.db.unit(unit) for unit in UNITS}
            self.on_each(self.configure_safekeeper)
            self._configure_primary()
            for machine in self.machines:
                machine.do("systemctl", "enable", "--now", "sk-safekeeper")
            self.db.do("systemctl", "enable", "--now", "sk-proposer", CLUSTER)
            self.wait_protected()
            self._open = self._open.pop_all()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._open.close()

    @property
    def db(self) -> Machine:
        return self.machines[-1]

    @property
    def safekeepers(self) -> str:
        """As --safekeepers takes them."""
        return ",".join(f"{machine.ip}:5454" for machine in self.machines)

    def on_each(self, action: Callable[[Machine], None]) -> None:
        with ThreadPoolExecutor() as pool:
            list(pool.map(action, self.machines))

    def wait_protected(self) -> None:
        """The primary relies on the proposer, and all three safekeepers follow."""
        wait_until(
            self._is_protected,
            TIMEOUT,
            "commits to be protected",
        )

    def _is_protected(self) -> bool:
        if not self.postgres.accepts_connections():
            return False
        return self.postgres.execute(SYNC) == [("walproposer", "sync")] and self.status()[0] == 0

    def status(self) -> tuple[int, str]:
        """`sk status` on the machine of the primary, as its account."""
        return self.db.run(
            *("sk", "status", "--safekeepers", self.safekeepers),
            *("--safekeeper-conninfo", CONNINFO, "--http-token-file", f"{FOLDER}/token"),
            user="postgres",
        )

    # ---- as an administrator

    def configure_safekeeper(self, machine: Machine) -> None:
        """By the example of the package: every setting but the archive."""
        certificate = self._authority.issue_cert(machine.ip)
        chain = b"".join(blob.bytes() for blob in certificate.cert_chain_pems)
        machine.put(f"{FOLDER}/ca.crt", self._authority.cert_pem.bytes())
        machine.put(f"{FOLDER}/tls.crt", chain)
        # The proposer has another account: it may read what the group ssl-cert may
        machine.put(f"{FOLDER}/tls.key", certificate.private_key_pem.bytes(), "root:sk", "0640")
        machine.put(f"{FOLDER}/token", TOKEN, "root:sk", "0640")
        add_user = f"sk user add {FOLDER}/users primary1 --role proposer --role monitor"
        machine.shell(
            f"rm -f {FOLDER}/users && echo {PASSWORD} | {add_user}"
            f" && chown root:sk {FOLDER}/users && chmod 0640 {FOLDER}/users"
        )
        id = self.machines.index(machine) + 1
        rewrite(machine, "safekeeper", {"id = 1": f"id = {id}", "archive = ": "# archive = "})

    def _configure_primary(self) -> None:
        db = self.db
        db.shell("adduser --quiet postgres sk")  # for the key and the token
        hosts = ",".join(f'"{machine.ip}:5454"' for machine in self.machines)
        rewrite(db, "proposer", {'"sk1:5454", "sk2:5454", "sk3:5454"': hosts})
        passfile = f"*:5454:*:primary1:{PASSWORD}\n".encode()
        db.put("/var/lib/postgresql/.pgpass", passfile, "postgres:postgres", "0600")
        db.do("pg_createcluster", "15", "main", "--", "--wal-segsize=1", "--no-sync")
        configuration = "/etc/postgresql/15/main"
        db.shell(
            f"echo \"listen_addresses = '*'\" >>{configuration}/postgresql.conf\n"
            f"echo 'host all all all scram-sha-256' >>{configuration}/pg_hba.conf\n"
            f"systemctl start {CLUSTER}"
        )
        db.shell(f"psql -c \"ALTER ROLE postgres PASSWORD '{PRIMARY_PASSWORD}'\"", "postgres")


CONNINFO = f"user=primary1 sslmode=verify-full sslrootcert={FOLDER}/ca.crt"


def install(machine: Machine, version: str) -> None:
    machine.shell(f"DEBIAN_FRONTEND=noninteractive dpkg --install /packages/quorum-wal_{version}_*")


def rewrite(machine: Machine, name: str, changes: Mapping[str, str]) -> None:
    """Use every example of a config file, with these changes."""
    path = f"{FOLDER}/{name}.toml"
    text = _EXAMPLE.sub("", machine.do("cat", path))
    for ours, theirs in changes.items():
        assert ours in text, f"{machine.name}: {path} has no {ours}: {text}"
        text = text.replace(ours, theirs)
    machine.put(path, text.encode())
