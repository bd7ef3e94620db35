"""packaging/kubernetes/ as tests read it: the objects, and the containers of their Pods."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from quorum_wal.pg_fixtures.processes import SK

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "packaging/kubernetes"
IMAGE = "registry.example/quorum-wal"
POD_INDEX = "metadata.labels['apps.kubernetes.io/pod-index']"

_IMAGE_VARIABLE = re.compile(r"\b(SK_[A-Z_]+)=(\S+)")
#: Placeholders of the kubelet, in arguments and in values.
REFERENCE = re.compile(r"\$\(([A-Za-z_][A-Za-z0-9_]*)\)")


@dataclass(frozen=True, slots=True)
class Manifest:
    """One object of a file."""

    file: str
    object: dict[str, Any]

    @property
    def name(self) -> str:
        return f"{self.file}-{self.object['kind']}-{self.object['metadata']['name']}"

    @property
    def pod(self) -> dict[str, Any] | None:
        """The template of its Pods: `metadata` and `spec`."""
        template: dict[str, Any] | None = self.object.get("spec", {}).get("template")
        return template


@dataclass(frozen=True, slots=True)
class Container:
    """A container of a Pod, or an init container."""

    manifest: Manifest
    spec: dict[str, Any]

    @property
    def name(self) -> str:
        return f"{self.manifest.name}-{self.spec['name']}"

    @property
    def is_ours(self) -> bool:
        return str(self.spec["image"]).partition(":")[0] == IMAGE

    @property
    def arguments(self) -> list[str]:
        """The arguments of `sk`, the entry point of the image."""
        assert self.is_ours
        assert "command" not in self.spec
        return list(self.spec["args"])

    def environment(self, secrets: Mapping[str, str], pod_index: int = 1) -> dict[str, str]:
        """The variables, as the kubelet sets them; `secrets` by "secret/key". Raises KeyError."""
        done: dict[str, str] = {}
        for entry in self.spec.get("env", []):
            source = entry.get("valueFrom", {})
            if "secretKeyRef" in source:
                key = source["secretKeyRef"]
                done[entry["name"]] = secrets[f"{key['name']}/{key['key']}"]
            elif "fieldRef" in source:
                assert source["fieldRef"]["fieldPath"] == POD_INDEX
                done[entry["name"]] = str(pod_index)
            else:
                done[entry["name"]] = REFERENCE.sub(lambda found: done[found[1]], entry["value"])
        return done


def read_manifests() -> list[Manifest]:
    """All objects, in the order of the files and within each file."""
    return [
        Manifest(path.stem, each)
        for path in sorted(FOLDER.glob("*.yaml"))
        for each in yaml.load_all(path.read_text(), yaml.CSafeLoader)
    ]


def containers_of(manifest: Manifest) -> list[Container]:
    pod = manifest.pod["spec"] if manifest.pod else {}
    specs = [*pod.get("initContainers", []), *pod.get("containers", [])]
    return [Container(manifest, spec) for spec in specs]


def container_named(file: str, name: str) -> Container:
    (found,) = (
        container
        for manifest in read_manifests()
        for container in containers_of(manifest)
        if (manifest.file, container.spec["name"]) == (file, name)
    )
    return found


def image_environment() -> dict[str, str]:
    """The variables of `sk` that our image sets."""
    return dict(_IMAGE_VARIABLE.findall((ROOT / "Dockerfile").read_text()))


def create_secrets(folder: Path) -> dict[str, dict[str, bytes]]:
    """Run the commands of the page that create the Secrets, in `folder`. Name -> key -> content.

    `kubectl` writes its words: each ends with a zero byte, and each command with another one.
    """
    page = (ROOT / "docs/kubernetes.md").read_text()
    section = page.partition("\n## Secrets\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("    ")]
    script = 'sk() { "$PYTHON" -m quorum_wal.cli.main "$@"; }\n'
    script += "kubectl() { printf '%s\\0' \"$@\" '' >>kubectl.words; }\n" + "\n".join(lines)
    subprocess.run(
        ["bash", "-e", "-o", "pipefail", "-c", script],
        cwd=folder,
        env={**os.environ, "PYTHON": SK[0]},
        capture_output=True,
        check=True,
    )
    commands = (folder / "kubectl.words").read_text().removesuffix("\0\0").split("\0\0")
    return dict(_created_secret(command.split("\0"), folder) for command in commands)


def _created_secret(words: list[str], folder: Path) -> tuple[str, dict[str, bytes]]:
    """As `kubectl create secret generic NAME` makes it: the name, and its keys."""
    command, name, options = words[:3], words[3], words[4:]
    assert command == ["create", "secret", "generic"]
    keys = {}
    for option in options:
        kind, _, value = option.partition("=")
        key, is_named, rest = value.partition("=")
        match kind:
            case "--from-file":
                keys[key] = (folder / (rest if is_named else key)).read_bytes()
            case "--from-literal":
                keys[key] = rest.encode()
            case _:
                assert kind == "--type"
    return name, keys
