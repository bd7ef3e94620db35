"""`PinnedNetwork`: a bridge network on which every container keeps its address.

It uses no names: on a broken network a name fails at once, an address gives no answer.
"""

from __future__ import annotations

from ipaddress import IPv4Network
from random import Random
from types import TracebackType
from typing import Any, Self

import docker
from docker.errors import APIError
from docker.types import EndpointConfig, IPAMConfig, IPAMPool
from testcontainers.core.network import Network

SUBNETS = list(IPv4Network("10.213.0.0/16").subnets(new_prefix=24))
GATEWAY_HOST = 1


class PinnedNetwork:
    """A context manager: the network exists inside the block."""

    def __init__(self, client: docker.DockerClient) -> None:
        self._client = client
        self._subnet = SUBNETS[0]
        self._network: Network | None = None

    def __enter__(self) -> Self:
        subnets = SUBNETS.copy()
        Random().shuffle(subnets)
        while self._network is None:
            self._subnet = subnets.pop()
            pool = IPAMPool(str(self._subnet), gateway=self.address(GATEWAY_HOST))
            network = Network(docker_network_kw={"ipam": IPAMConfig(pool_configs=[pool])})
            try:
                self._network = network.create()
            except APIError as error:  # that is the network of another process
                network._docker.client.close()
                if not subnets or "overlap" not in str(error):
                    raise
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._network is not None:
            self._network.remove()
            self._network._docker.client.close()
            self._network = None

    @property
    def name(self) -> str:
        assert self._network is not None, "not entered"
        return self._network.name

    def address(self, host: int) -> str:
        """The address with that number in the subnet; 1 is the gateway."""
        return str(self._subnet[host])

    def endpoint(self, host: int, *aliases: str) -> dict[str, Any]:
        """The settings to create a container with that address on this network."""
        settings = EndpointConfig(
            self._client.api.api_version, ipv4_address=self.address(host), aliases=list(aliases)
        )
        return {"network": self.name, "networking_config": {self.name: settings}}

    def disconnect(self, container_id: str) -> None:
        """Disconnect it: open connections stall, and the other side is not notified."""
        self._client.networks.get(self.name).disconnect(container_id)

    def connect(self, container_id: str, host: int) -> None:
        """Connect it again, with the same address: open connections continue."""
        network = self._client.networks.get(self.name)
        network.connect(container_id, ipv4_address=self.address(host))
