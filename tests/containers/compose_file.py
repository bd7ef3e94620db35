"""`ComposeStack`: the services of compose.yaml, started as `docker compose up` would start them.

It implements the keys that our file uses, and refuses every other, so the test runs exactly what
the file describes. The stack has its own networks and volumes; a service is reached by its name
there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import docker
import yaml
from container_network import PinnedNetwork
from container_service import ServiceContainer

COMPOSE_FILE = Path(__file__).parents[2] / "compose.yaml"

HOST_FIRST = 10
TOP_KEYS = {"name", "services", "networks", "volumes", "configs"}
SERVICE_KEYS = {
    *("image", "build", "command", "environment", "healthcheck", "depends_on"),
    *("networks", "ports", "volumes", "configs", "restart", "stop_grace_period"),
    *("read_only", "cap_drop", "security_opt"),
}
HEALTHCHECK_KEYS = {"test", "interval", "timeout", "retries"}
NANOSECONDS = 1_000_000_000

_VARIABLE = re.compile(r"\$(?:(\$)|\{([A-Z_]+):-([^}]*)\})")
_SECONDS = re.compile(r"(\d+)s")


class ComposeStack:
    """A context manager: all services run inside the block, in the order of their dependencies."""

    def __init__(
        self, client: docker.DockerClient, variables: Mapping[str, str], path: Path = COMPOSE_FILE
    ) -> None:
        self.file = interpolated(yaml.safe_load(path.read_text()), variables)
        known(self.file, TOP_KEYS, extensions=True)
        self.services: dict[str, ServiceContainer] = {}
        self._client = client
        self._network = PinnedNetwork(client)
        self._open = ExitStack()

    def __enter__(self) -> Self:
        with self._open:  # until everything has succeeded
            self._open.enter_context(self._network)
            for name, service in self.file["services"].items():
                container = self._container(name, service)
                self._open.callback(container.discard)
                self.services[name] = container
            self.up()
            self._open = self._open.pop_all()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._open.close()

    def up(self) -> None:
        """`docker compose up --wait`: return when all health checks succeed."""
        for name in self.start_order():
            for needed, condition in self.file["services"][name].get("depends_on", {}).items():
                assert condition == {"condition": "service_healthy"}
                self.services[needed].wait_healthy()
            self.services[name].start()
        for service in self.services.values():
            service.wait_healthy()

    def down(self) -> dict[str, int]:
        """`docker compose down`: the volumes remain. Returns the exit code of every service."""
        codes = {}
        for name in reversed(self.start_order()):
            service = self.services[name]
            service.container.stop(
                timeout=seconds(self.file["services"][name]["stop_grace_period"])
            )
            codes[name] = service.exit_code
            service.remove()
        return codes

    def start_order(self) -> list[str]:
        """Every service after its dependencies."""
        order: list[str] = []
        while len(order) < len(self.services):
            for name, service in self.file["services"].items():
                if name not in order and order_covers(order, service.get("depends_on", {})):
                    order.append(name)
        return order

    def _container(self, name: str, service: dict[str, Any]) -> ServiceContainer:
        known(service, SERVICE_KEYS)
        assert service.get("build", ".") == "."
        assert set(service["networks"]) <= set(self.file["networks"])
        volume, _, volume_path = next(iter(service.get("volumes", [])), "").partition(":")
        assert len(service.get("volumes", [])) <= 1
        assert not volume or volume in self.file["volumes"]
        return ServiceContainer(
            self._client,
            self._network,
            HOST_FIRST + len(self.services),
            service["image"],
            service.get("command", []),  # none: that of the image
            name=name,
            volume_path=volume_path,
            env=service.get("environment"),
            files={
                config["target"]: self.file["configs"][config["source"]]["content"].encode()
                for config in service.get("configs", [])
            },
            ports=dict(map(published, service.get("ports", []))),
            restart_policy={"Name": service["restart"]},
            healthcheck=healthcheck(service.get("healthcheck")),
            **{
                key: service[key]
                for key in ("read_only", "cap_drop", "security_opt") & service.keys()
            },
        )


def interpolated(value: Any, variables: Mapping[str, str]) -> Any:
    """`${NAME:-default}` becomes the variable's value, `$$` a dollar, in all strings of a tree."""
    if isinstance(value, dict):
        return {key: interpolated(each, variables) for key, each in value.items()}
    if isinstance(value, list):
        return [interpolated(each, variables) for each in value]
    if isinstance(value, str):
        return _VARIABLE.sub(lambda m: m[1] or variables.get(m[2], m[3]), value)
    return value


def known(table: Mapping[str, Any], keys: Iterable[str], *, extensions: bool = False) -> None:
    unknown = {key for key in table if not (extensions and key.startswith("x-"))} - set(keys)
    assert not unknown, f"compose.yaml uses {unknown}, which the test does not understand"


def order_covers(order: list[str], needed: Iterable[str]) -> bool:
    return set(needed) <= set(order)


def healthcheck(table: dict[str, Any] | None) -> dict[str, Any] | None:
    """In the form of the engine; None: that of the image."""
    if table is None:
        return None
    known(table, HEALTHCHECK_KEYS)
    return {
        "test": table["test"],
        "interval": seconds(table["interval"]) * NANOSECONDS,
        "timeout": seconds(table["timeout"]) * NANOSECONDS,
        "retries": table["retries"],
    }


def published(text: str) -> tuple[str, tuple[str, int]]:
    """`ADDRESS:PORT:CONTAINER_PORT`, in the form of docker-py."""
    address, port, container_port = text.split(":")
    return container_port, (address, int(port))


def seconds(text: str) -> int:
    found = _SECONDS.fullmatch(text)
    assert found is not None, f"{text!r} is not a number of seconds"
    return int(found[1])
