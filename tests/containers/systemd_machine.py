"""`Machine`: a container with systemd as its first process, on which Debian packages are installed.

It may mount file systems, because the units have mount namespaces and cgroups of their own. It is
not privileged: that needs every capability, and an engine may itself lack one.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import docker
from container_network import PinnedNetwork
from container_service import ServiceContainer
from docker.types import Mount

START_TIMEOUT = 120.0  # seconds

#: What `systemctl is-system-running` says when the start is over.
STARTED = {"running", "degraded"}
#: A folder of this machine. It is not below a file system that systemd mounts later.
SHARED = "/shared"
_INTO_FILE = 'exec "$@" >"$0" 2>&1'


@dataclass(frozen=True, slots=True)
class UnitState:
    """What systemd says about a unit: `active`, `enabled`; its process, and its starts so far."""

    active: str
    enabled: str
    pid: int
    restarts: int
    result: str


class Machine(ServiceContainer):
    def __init__(
        self, client: docker.DockerClient, network: PinnedNetwork, host: int, image: str, name: str
    ) -> None:
        self._shared = tempfile.TemporaryDirectory(prefix="sk-machine-")
        Path(self._shared.name).chmod(0o777)  # accounts of the container write there
        super().__init__(
            *(client, network, host, image, []),
            name=name,
            cap_add=["SYS_ADMIN"],
            security_opt=["seccomp=unconfined", "apparmor=unconfined"],
            cgroupns="private",
            mounts=[Mount(SHARED, self._shared.name, type="bind")],
        )
        self._numbers = count(1)

    def start(self) -> None:
        """Returns when systemd has started everything."""
        super().start()
        self.wait_until(self._has_started, START_TIMEOUT, "systemd to have started")

    def discard(self) -> None:
        super().discard()
        self._shared.cleanup()

    def _has_started(self) -> bool:
        return self.run("systemctl", "is-system-running")[1] in STARTED

    def run(self, *command: str, **options: Any) -> tuple[int, str]:
        """As of every container; the output goes through a file.

        An engine drops what a command prints if it does not copy that within two seconds after the
        end of the command. To copy a file from the container costs it more than the command.
        """
        name = f"output-{next(self._numbers)}"
        code, _ = super().run("sh", "-c", _INTO_FILE, f"{SHARED}/{name}", *command, **options)
        return code, Path(self._shared.name, name).read_text(errors="replace").strip()

    def do(self, *command: str) -> str:
        """Run a program that succeeds: its output."""
        code, text = self.run(*command)
        assert code == 0, f"{self.name}: {' '.join(command)}: exit code {code}\n{text}"
        return text

    def shell(self, script: str, account: str = "root") -> str:
        code, text = self.run("bash", "-euo", "pipefail", "-c", script, user=account)
        assert code == 0, f"{self.name}: {script}: exit code {code}\n{text}"
        return text

    def unit(self, name: str) -> UnitState:
        wanted = ("ActiveState", "UnitFileState", "MainPID", "NRestarts", "Result")
        text = self.do("systemctl", "show", f"--property={','.join(wanted)}", name)
        found = dict(line.split("=", 1) for line in text.splitlines())
        active, enabled, pid, restarts, result = (found.get(key, "") for key in wanted)
        return UnitState(active, enabled, int(pid or 0), int(restarts or 0), result)

    def put(self, path: str, content: bytes, owner: str = "root:root", mode: str = "0644") -> None:
        Path(self._shared.name, "upload").write_bytes(content)
        user, _, group = owner.partition(":")
        self.do("install", "-D", "-o", user, "-g", group, "-m", mode, f"{SHARED}/upload", path)

    def journal(self, unit: str) -> str:
        return self.run("journalctl", "--no-pager", "--output=cat", f"--unit={unit}")[1]

    def log_text(self) -> str:
        """Of systemd and of our units: the container itself prints little."""
        if not self.alive:
            return super().log_text()
        return self.run("journalctl", "--no-pager", "--lines=60", "--unit=sk-*")[1]
