"""`ServiceContainer`: a `ServiceProcess` whose process is the first one of a container.

It sends signals through the engine, so the fixtures and checks for processes work here, too. kill()
and start() act on one container with its volume; replace() creates a new container, possibly of
another image, with the same volume and address.
"""

from __future__ import annotations

import io
import shutil
import signal
import subprocess
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import docker
from container_engine import LABELS
from container_network import PinnedNetwork
from docker.models.containers import Container
from testcontainers.core.container import DockerContainer

from quorum_wal.pg_fixtures.errors import FixtureError, ProcessEnded
from quorum_wal.pg_fixtures.processes import ServiceProcess
from quorum_wal.pg_fixtures.waiting import wait_until

STATE_TIMEOUT = 30.0  # seconds
READY_TIMEOUT = 180.0  # a Postgres on a busy machine accepts no client for long
HEALTH_TRIES = 5
#: An engine that asks for the health of each container needs a tenth of the ring's processor time.
UNASKED = {"test": ["NONE"]}


class ServiceContainer(ServiceProcess):
    """`host` is its number on the network, where `names` also resolve to it. The content of
    `volume_path` outlives the container.

    `files` are added to it, as root's, with `files_mode`; its `ports` are published at an address
    and port of this machine; `options` are those of docker-py's `containers.create`. The engine
    asks for its health only with the option `healthcheck`; None is the check of the image.
    """

    def __init__(
        self,
        client: docker.DockerClient,
        network: PinnedNetwork,
        host: int,
        image: str,
        command: Sequence[str],
        *,
        name: str,
        volume_path: str = "",
        env: Mapping[str, str] | None = None,
        files: Mapping[str, bytes] | None = None,
        files_mode: int = 0o444,
        ports: Mapping[str, tuple[str, int]] | None = None,
        names: Sequence[str] = (),
        **options: Any,
    ) -> None:
        self.name = name
        self.image = image
        self.command = list(command)
        self.env = dict(env or {})
        self.files = dict(files or {})
        self._files_mode = files_mode
        self.ports = dict(ports or {})
        self._names = (name, *names)
        self.ip = network.address(host)
        self._client = client
        self._network = network
        self._host = host
        self._options = {"healthcheck": UNASKED, **options}
        self._volume_path = volume_path
        self._volume = client.volumes.create(labels=LABELS) if volume_path else None
        self._copies: tempfile.TemporaryDirectory[str] | None = None
        self._docker_container: DockerContainer | None = None

    # ---- life

    def start(self) -> None:
        if self.alive:
            raise FixtureError(f"{self.name} is running already")
        if self._docker_container is not None:
            self.container.start()
            return
        made = DockerContainer(self.image).with_command(self.command).with_envs(**self.env)
        if self._volume is not None:
            made.with_volume_mapping(self._volume.name, self._volume_path, "rw")
        for path, content in self.files.items():
            made.with_copy_into_container(content, path, mode=self._files_mode)
        made.ports.update(self.ports)
        made.with_kwargs(**self._network.endpoint(self._host, *self._names), **self._options)
        self._docker_container = made
        made.start()

    def replace(self, image: str = "") -> None:
        """Remove the container and start another one, of `image`, in its place and on its data."""
        self.remove()
        self.image = image or self.image
        self.start()

    def remove(self) -> None:
        """Remove the container, dead or alive; its volume remains. Allowed if there is none."""
        if self._docker_container is not None:
            self._docker_container.stop(delete_volume=True)  # that is, anonymous volumes
            self._docker_container = None

    def discard(self) -> None:
        """remove(), and remove its data."""
        self.remove()
        if self._volume is not None:
            self._volume.remove()
        if self._copies is not None:
            self._copies.cleanup()

    @property
    def container(self) -> Container:
        """Its state at the last call of the engine."""
        if self._docker_container is None:
            raise ProcessEnded(f"{self.name} was not started")
        return self._docker_container.get_wrapped_container()

    @property
    def engine_state(self) -> dict[str, Any]:
        """The present state from the engine: Status, Running, Paused, ExitCode, Health, Pid."""
        self.container.reload()
        state: dict[str, Any] = self.container.attrs["State"]
        return state

    @property
    def alive(self) -> bool:
        return self._docker_container is not None and bool(self.engine_state["Running"])

    @property
    def exit_code(self) -> int | None:
        """As a shell knows it: 128 + N when signal N ended it."""
        if self._docker_container is None or self.alive:
            return None
        return int(self.engine_state["ExitCode"])

    @property
    def pid(self) -> int:
        """In the host's numbering."""
        return int(self.engine_state["Pid"])

    def kill(self) -> None:
        if self.alive:
            self.resume()
            self.send_signal(signal.SIGKILL)
            self.wait(STATE_TIMEOUT)

    def send_signal(self, number: signal.Signals) -> None:
        """To the first process; SIGKILL to all processes."""
        if not self.alive:
            raise ProcessEnded(self._end_text())
        self.container.kill(int(number))

    def pause(self) -> None:
        self.container.pause()

    def resume(self) -> None:
        if self._docker_container is not None and self.engine_state["Paused"]:
            self.container.unpause()

    def wait(self, timeout: float) -> int:
        wait_until(lambda: not self.alive, timeout, f"the end of {self.name}")
        return int(self.engine_state["ExitCode"])

    # ---- the network

    @property
    def is_cut(self) -> bool:
        """disconnect() was called, and connect() was not."""
        self.container.reload()
        return self._network.name not in self.container.attrs["NetworkSettings"]["Networks"]

    def disconnect(self) -> None:
        self._network.disconnect(self.container.id)

    def connect(self) -> None:
        self._network.connect(self.container.id, self._host)

    # ---- the inside

    @property
    def health(self) -> str:
        """`starting`, `healthy`, `unhealthy`."""
        return str(self.engine_state["Health"]["Status"])

    def wait_healthy(self, timeout: float = READY_TIMEOUT) -> None:
        """Return when the engine has found it healthy. Raises ProcessEnded."""
        self.wait_until(lambda: self.health == "healthy", timeout, "the health check to succeed")

    def wait_well(self, timeout: float = READY_TIMEOUT) -> None:
        """Return when the health check of the image succeeds, which the engine need not run."""
        self.wait_until(lambda: self.check_health()[0] == 0, timeout, "the health check to succeed")

    def check_health(self) -> tuple[int, str]:
        """Run the image's health check now: its exit code, and what it prints. It always prints
        something, but an engine under load may lose the output of a program that ends at once."""
        _, *command = self.container.image.attrs["Config"]["Healthcheck"]["Test"]
        for _ in range(HEALTH_TRIES):
            code, text = self.run(*command)
            if text:
                break
        return code, text

    def run(self, *command: str, **options: Any) -> tuple[int, str]:
        """Run a program beside the service: its exit code and output."""
        result = self.container.exec_run(list(command), **options)
        return int(result.exit_code), result.output.decode(errors="replace").strip()

    def output_of(self, *command: str) -> str:
        """Of a program that succeeds, and prints something. A busy engine may lose the output of
        one that ends at once: then it is run again."""

        def printed() -> str:
            code, text = self.run(*command)
            assert code == 0, text
            return text

        return wait_until(printed, READY_TIMEOUT, f"{command[0]} to print")

    def copy_of(self, path: str) -> Path:
        """A copy of a file or folder of the container, in a folder of ours."""
        if self._copies is None:
            self._copies = tempfile.TemporaryDirectory(prefix="sk-copy-")
        target = Path(self._copies.name) / Path(path).name
        shutil.rmtree(target, ignore_errors=True)
        chunks, _ = self.container.get_archive(path)
        unpack = ["tar", "--extract", "--no-same-owner", f"--directory={target.parent}"]
        subprocess.run(unpack, input=b"".join(chunks), check=True)
        return target

    def write_file(self, path: str, content: bytes) -> None:
        """Replace a file of the container; its owner and mode remain."""
        before, _ = self.container.get_archive(path)
        with tarfile.open(fileobj=io.BytesIO(b"".join(before))) as archive:
            (entry,) = archive.getmembers()
        entry.size = len(content)
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as archive:
            archive.addfile(entry, io.BytesIO(content))
        assert self.container.put_archive(str(Path(path).parent), packed.getvalue())

    def log_text(self) -> str:
        if self._docker_container is None:
            return ""
        return self.container.logs().decode(errors="replace")

    def _end_text(self, when: str = "") -> str:
        end = f"ended with exit code {self.exit_code}"
        if self._docker_container is None:
            end = "was not started"
        return "\n".join(filter(None, (f"{self.name} {end} {when}".rstrip(), self.log_tail())))
