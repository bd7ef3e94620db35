"""A machine of a Patroni cluster: Patroni, its Postgres, and the proposer's unit beside it.

The Patroni configuration is that of docs/integrations.md, and so is `pre_promote`. Everything is a
real process; etcd is one, too.
"""

from __future__ import annotations

import json
import shlex
import signal
import sys
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import yaml
from psycopg.conninfo import make_conninfo

from quorum_wal.pg_fixtures.crash import crash_postmaster
from quorum_wal.pg_fixtures.data_directory import DataDirectory
from quorum_wal.pg_fixtures.http_status import http_get
from quorum_wal.pg_fixtures.ports import free_port
from quorum_wal.pg_fixtures.process_table import family, signal_entry
from quorum_wal.pg_fixtures.processes import SK, ServiceProcess
from quorum_wal.pg_server.account import Account, give
from quorum_wal.pg_server.binaries import PostgresBinaries
from quorum_wal.pg_server.postmaster_file import read_postmaster_file

SCOPE = "quorum"
#: Patroni's minimum for `ttl` is 20. The other times are as short as it allows.
TTL_SECONDS = 20
LOOP_WAIT_SECONDS = 1
RETRY_TIMEOUT_SECONDS = 3
REST_TIMEOUT_SECONDS = 60
ROLE_TIMEOUT_SECONDS = 180.0
RESTART_SECONDS = 0.1

PRE_PROMOTE = """#!/bin/sh
exec timeout 30 {sk} promote --no-promote --keep-ahead --http 127.0.0.1:0 \\
    --standby {dsn} --safekeepers {safekeepers}
"""


class PatroniNode:
    """One machine, `name`. Its folder belongs to the account that runs Postgres."""

    def __init__(
        self,
        name: str,
        folder: Path,
        *,
        etcd_address: str,
        safekeepers: list[str],
        binaries: PostgresBinaries,
        account: Account | None,
    ) -> None:
        self.name = name
        self.port = free_port()
        self.rest_address = f"127.0.0.1:{free_port()}"
        self.data_dir = folder / name / "data"
        self._binaries = binaries
        self._data = DataDirectory(self.data_dir, binaries)
        self.data_dir.parent.mkdir(parents=True)
        give(self.data_dir.parent, account)
        pre_promote = self.data_dir.with_name("pre_promote")
        pre_promote.write_text(
            PRE_PROMOTE.format(
                sk=shlex.join(map(str, SK)),
                dsn=shlex.quote(self.dsn),
                safekeepers=",".join(safekeepers),
            )
        )
        pre_promote.chmod(0o755)
        config = self.data_dir.with_name("patroni.yml")
        config.write_text(yaml.safe_dump(self._config(etcd_address, pre_promote)))
        self.patroni = ServiceProcess(
            [sys.executable, "-m", "patroni", config],
            name=f"patroni {name}",
            log_path=folder / f"{name}-patroni.log",
            account=account,
        )
        # as Restart=always of systemd
        attach = [*SK, "attach", "--supervise", self.data_dir, "--take-over", "--primary", self.dsn]
        attach += ["--safekeepers", ",".join(safekeepers), "--http", f"127.0.0.1:{free_port()}"]
        unit = f"while :; do {shlex.join(map(str, attach))}; sleep {RESTART_SECONDS}; done"
        self.unit = ServiceProcess(
            ["sh", "-c", unit], name=f"proposer {name}", log_path=folder / f"{name}-proposer.log"
        )

    def _config(self, etcd_address: str, pre_promote: Path) -> dict[str, Any]:
        parameters = {"synchronous_standby_names": "walproposer", "wal_log_hints": "on"}
        dcs = {
            "ttl": TTL_SECONDS,
            "loop_wait": LOOP_WAIT_SECONDS,
            "retry_timeout": RETRY_TIMEOUT_SECONDS,
            "synchronous_mode": False,
            "maximum_lag_on_failover": 1 << 30,
            "slots": {"walproposer": {"type": "physical"}},
            "postgresql": {"use_pg_rewind": True, "parameters": parameters},
        }
        trusted = [f"{kind} all 127.0.0.1/32 trust" for kind in ("host all", "host replication")]
        return {
            "scope": SCOPE,
            "name": self.name,
            "restapi": {"listen": self.rest_address},
            "etcd3": {"host": etcd_address},
            "bootstrap": {"dcs": dcs, "initdb": [{"encoding": "UTF8"}, {"auth": "trust"}]},
            "postgresql": {
                "listen": f"127.0.0.1:{self.port}",
                "data_dir": str(self.data_dir),
                "bin_dir": str(self._binaries.bin_dir),
                "pg_hba": trusted,
                "pgpass": str(self.data_dir.with_name("pgpass")),
                "pre_promote": str(pre_promote),
                "authentication": {
                    "superuser": {"username": "postgres"},
                    "replication": {"username": "postgres"},
                },
                "parameters": {"unix_socket_directories": ""},
            },
        }

    @property
    def dsn(self) -> str:
        return make_conninfo(host="127.0.0.1", port=self.port, user="postgres", dbname="postgres")

    def request(self, method: str, path: str, body: object) -> str:
        """Call Patroni's REST API and return the answer. Raises OSError."""
        url = f"http://{self.rest_address}{path}"
        request = Request(url, json.dumps(body).encode(), method=method)
        with urlopen(request, timeout=REST_TIMEOUT_SECONDS) as answer:
            return str(answer.read().decode())

    @property
    def role(self) -> str:
        """`primary`, `replica`, or "" if Patroni does not answer or its server does not run."""
        try:
            _, text = http_get(self.rest_address, "/patroni")
        except OSError:
            return ""
        status = json.loads(text)
        return str(status["role"]) if status.get("state") in ("running", "streaming") else ""

    def wait_role(self, role: str) -> None:
        """Raises ProcessEnded, DeadlineExceeded."""
        self.patroni.wait_until(
            lambda: self.role == role, ROLE_TIMEOUT_SECONDS, f"{self.name} to be {role}"
        )

    # ---- faults

    def start(self) -> None:
        self.patroni.start()
        self.unit.start()

    def kill(self) -> None:
        """kill -9 of Patroni and Postgres, as in a power failure. The proposer keeps running."""
        self.patroni.kill()
        postmaster = read_postmaster_file(self.data_dir)
        if postmaster is not None:
            crash_postmaster(postmaster.pid, self._data)

    def restart(self) -> None:
        """Start Patroni again if it was killed; Patroni starts Postgres."""
        if not self.patroni.alive:
            self.patroni.start()

    def close(self) -> None:
        self.unit.kill()
        self.resume()
        self.kill()

    def freeze(self) -> None:
        """SIGSTOP of all processes on it."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        postmaster = read_postmaster_file(self.data_dir)
        for process in (self.patroni, self.unit):
            if process.alive:
                process.send_signal(number)
        for entry in family(postmaster.pid) if postmaster is not None else ():
            signal_entry(entry, number)
