"""`Pod`: a Pod of packaging/kubernetes/ in a container engine, as a kubelet would run it.

    sandbox            holds the network: one address, the names of its Services
    init containers    one after another, to their end; a sidecar keeps running
    containers         images, arguments, variables, accounts, mounts, limits of the manifest

Only the images are others: those of the ring. A field of a container that is not known here is an
error, so what the manifest says is what runs.

Sources: the Kubernetes API reference (PodSpec, Container), and the kubelet for what fsGroup does:
volumes belong to that group and are writable by it; files of Secrets are readable by it.
"""

from __future__ import annotations

import io
import re
import tarfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from types import TracebackType
from typing import Any, Self

import docker
from container_engine import LABELS
from container_images import Images
from container_network import PinnedNetwork
from container_service import STATE_TIMEOUT, ServiceContainer
from docker.models.containers import Container as DockerContainer
from docker.types import Mount
from kubernetes_manifests import Container, Manifest, containers_of, read_manifests
from pod_probes import answers

from quorum_wal.pg_fixtures.waiting import wait_until

TIMEOUT = 120.0  # seconds

CONTAINER_KEYS = {
    *("name", "image", "command", "args", "env", "securityContext", "volumeMounts"),
    *("restartPolicy", "ports", "readinessProbe", "livenessProbe"),
    "resources",  # requests only: for the scheduler
}
DEFAULT_MODE = 0o644  # of files in a Secret or ConfigMap
SECURITY_KEYS = {"allowPrivilegeEscalation", "readOnlyRootFilesystem", "capabilities"}

#: name -> key -> content
Secrets = Mapping[str, Mapping[str, bytes]]

_MEBIBYTES = re.compile(r"(\d+)Mi")


class Pod:
    """A context manager: it runs inside the block. `names` are those of its Services; `index` is
    the ordinal in its StatefulSet."""

    def __init__(
        self,
        client: docker.DockerClient,
        network: PinnedNetwork,
        host: int,
        manifest: Manifest,
        images: Images,
        secrets: Secrets,
        *,
        names: tuple[str, ...] = (),
        index: int = 1,
    ) -> None:
        assert manifest.pod is not None
        self.manifest = manifest
        self.spec: dict[str, Any] = manifest.pod["spec"]
        self.ip = network.address(host)
        self.containers: dict[str, DockerContainer] = {}
        self._client = client
        self._images = images
        self._secrets = secrets
        self._index = index
        self._volumes: dict[str, Callable[..., Mount]] = {}
        self._open = ExitStack()
        self._sandbox = ServiceContainer(
            *(client, network, host, images.postgres, []),
            name=f"{manifest.name.lower()}-{index}",
            names=names,
            entrypoint=["sleep", "infinity"],
        )

    def __enter__(self) -> Self:
        with self._open:  # until all has gone well
            self._open.callback(self._sandbox.discard)
            self._sandbox.start()
            self._make_volumes()
            for spec in self.spec.get("initContainers", []):
                container = self._start(spec)
                if spec.get("restartPolicy") != "Always":
                    self._wait_success(spec["name"], container)
            for spec in self.spec["containers"]:
                self._start(spec)
            self._open = self._open.pop_all()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._open.close()

    # ---- what a test asks for

    def wait_ready(self, timeout: float = TIMEOUT) -> None:
        """All readiness probes succeed."""
        wait_until(self._is_ready, timeout, f"the Pod {self.manifest.name} to be ready")

    def wait_complete(self, timeout: float = TIMEOUT) -> None:
        """As `kubectl wait --for=condition=complete`: all containers ended with exit code 0."""
        for name, container in self.containers.items():
            self._wait_success(name, container, timeout)

    def run(self, name: str, *command: str) -> tuple[int, str]:
        """As `kubectl exec`: the exit code and the output."""
        result = self.containers[name].exec_run(list(command))
        return int(result.exit_code), result.output.decode(errors="replace").strip()

    def restart(self, name: str) -> None:
        """As a kubelet whose container was killed."""
        container = self.containers[name]
        container.kill()
        container.wait(timeout=STATE_TIMEOUT)
        container.start()

    def stop(self, name: str) -> int:
        """As a kubelet, within the grace period: the exit code."""
        container = self.containers[name]
        container.stop(timeout=self.spec["terminationGracePeriodSeconds"])
        container.reload()
        return int(container.attrs["State"]["ExitCode"])

    def pause(self) -> None:
        for container in self.containers.values():
            container.pause()

    def resume(self) -> None:
        for container in self.containers.values():
            container.unpause()

    # ---- containers

    def _start(self, spec: dict[str, Any]) -> DockerContainer:
        known(spec, CONTAINER_KEYS)
        security = spec["securityContext"]
        known(security, SECURITY_KEYS)
        assert security["allowPrivilegeEscalation"] is False
        ours = Container(self.manifest, spec)
        account = self.spec["securityContext"]
        container = self._client.containers.create(
            self._images.sk if ours.is_ours else self._images.postgres,
            entrypoint=spec.get("command"),
            command=spec.get("args"),
            environment=ours.environment(self._flat_secrets(), self._index),
            user=f"{account['runAsUser']}:{account['runAsGroup']}",
            group_add=[account["fsGroup"]],
            network_mode=f"container:{self._sandbox.container.id}",
            read_only=security.get("readOnlyRootFilesystem", False),
            cap_drop=security["capabilities"]["drop"],
            security_opt=["no-new-privileges:true"],
            mounts=[self._mount(each) for each in spec.get("volumeMounts", [])],
            labels=LABELS,
        )
        self._open.callback(container.remove, force=True, v=True)
        self.containers[spec["name"]] = container
        container.start()
        return container

    def _wait_success(
        self, name: str, container: DockerContainer, timeout: float = TIMEOUT
    ) -> None:
        code = container.wait(timeout=timeout)["StatusCode"]
        assert code == 0, f"{name}: {container.logs().decode(errors='replace')}"

    def _is_ready(self) -> bool:
        for container in containers_of(self.manifest):
            name = container.spec["name"]
            running = self.containers[name]
            running.reload()
            probe = container.spec.get("readinessProbe")
            if probe is None:
                continue
            assert running.status == "running", running.logs().decode(errors="replace")
            if not answers(probe, container.spec["ports"], self.ip, partial(self.run, name)):
                return False
        return True

    # ---- volumes

    def _mount(self, entry: dict[str, Any]) -> Mount:
        known(entry, {"name", "mountPath", "readOnly"})
        volume = self._volumes[entry["name"]]
        return volume(target=entry["mountPath"], read_only=entry.get("readOnly", False))

    def _make_volumes(self) -> None:
        claims = self.manifest.object["spec"].get("volumeClaimTemplates", [])
        contents = {claim["metadata"]["name"]: b"" for claim in claims}
        for volume in self.spec.get("volumes", []):
            if "emptyDir" in volume:
                self._volumes[volume["name"]] = memory(volume["emptyDir"])
            else:
                contents[volume["name"]] = self._files_of(volume)
        for name in contents:
            made = self._client.volumes.create(labels=LABELS)
            self._open.callback(made.remove)
            # no_copy: the image has the folder, too, with another owner
            self._volumes[name] = partial(Mount, source=made.name, no_copy=True)
        self._fill(contents)

    def _files_of(self, volume: dict[str, Any]) -> bytes:
        """A tar of them."""
        if "configMap" in volume:
            (data,) = (
                each.object["data"]
                for each in read_manifests()
                if each.object["kind"] == "ConfigMap"
                and each.object["metadata"]["name"] == volume["configMap"]["name"]
            )
            files = {key: text.encode() for key, text in data.items()}
            return packed(files, volume["configMap"].get("defaultMode", DEFAULT_MODE))
        secret = volume["secret"]
        keys = self._secrets[secret["secretName"]]
        items = secret.get("items", [{"key": key, "path": key} for key in keys])
        files = {item["path"]: keys[item["key"]] for item in items}
        return packed(files, secret.get("defaultMode", DEFAULT_MODE))

    def _fill(self, contents: Mapping[str, bytes]) -> None:
        """By a container that root runs: files of the group, folders for the group to write."""
        mounts = [self._volumes[name](target=f"/volumes/{name}") for name in contents]
        group = self.spec["securityContext"]["fsGroup"]
        script = f"chgrp -R {group} /volumes/* && chmod 2775 /volumes/*"
        container = self._client.containers.create(
            self._images.postgres,
            entrypoint=["sh", "-c", script],
            user="0",
            network_mode="none",
            mounts=mounts,
            labels=LABELS,
        )
        try:
            for name, archive in contents.items():
                assert not archive or container.put_archive(f"/volumes/{name}", archive)
            container.start()
            self._wait_success("volumes", container)
        finally:
            container.remove(force=True, v=True)

    def _flat_secrets(self) -> dict[str, str]:
        """For variables: "secret/key" -> text. A key that is no text is not for a variable."""
        return {
            f"{name}/{key}": content.decode(errors="replace")
            for name, keys in self._secrets.items()
            for key, content in keys.items()
        }


def known(table: Mapping[str, Any], keys: set[str]) -> None:
    assert set(table) <= keys, f"the manifest uses {set(table) - keys}, which the test ignores"


def memory(empty_dir: Mapping[str, str]) -> Callable[..., Mount]:
    assert empty_dir["medium"] == "Memory"
    found = _MEBIBYTES.fullmatch(empty_dir["sizeLimit"])
    assert found is not None
    return partial(Mount, source=None, type="tmpfs", tmpfs_size=int(found[1]) << 20)


def packed(files: Mapping[str, bytes], mode: int) -> bytes:
    """A tar of files of root."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), mode
            tar.addfile(entry, io.BytesIO(content))
    return archive.getvalue()
