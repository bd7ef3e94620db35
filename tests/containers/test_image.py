"""The image: its user, what it refuses, when it is healthy, how it ends."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import trustme
from container_cluster import DATA_DIR
from container_images import ROOT, VERSION, Engine, Images
from container_network import PinnedNetwork
from container_service import ServiceContainer
from reckoning import TIMEOUT

from quorum_wal.cli.output import ExitCode
from quorum_wal.pgwire.auth import make_verifier

UID = "10001"
VERIFIER = make_verifier("pencil", b"0123456789abcdef")
RUN = ("safekeeper", "run", "--id", "1")


@pytest.fixture(scope="module")
def network(engine: Engine) -> Iterator[PinnedNetwork]:
    with PinnedNetwork(engine.client) as network:
        yield network


@pytest.fixture
def sk(
    engine: Engine, images: Images, network: PinnedNetwork
) -> Iterator[Callable[..., ServiceContainer]]:
    """`sk("--version", **options of ServiceContainer)`: a started container."""
    with ExitStack() as stack:

        def run(*command: str, **options: Any) -> ServiceContainer:
            container = ServiceContainer(
                engine.client, network, 10, images.sk, command, name="sk", **options
            )
            stack.callback(container.discard)
            container.start()
            return container

        yield run


def test_it_is_the_sk_command_of_this_release(sk: Callable[..., ServiceContainer]) -> None:
    container = sk("--version")
    assert container.wait(TIMEOUT) == 0
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert container.log_text() == f"sk, version {version}\n"
    labels = container.container.image.labels
    assert labels["org.opencontainers.image.version"] == VERSION


def test_it_runs_without_privileges_and_writes_only_its_volume(
    sk: Callable[..., ServiceContainer],
) -> None:
    container = sk(
        *RUN,
        "--insecure",
        volume_path=DATA_DIR,
        read_only=True,
        cap_drop=["ALL"],
        security_opt=["no-new-privileges:true"],
    )
    container.wait_well()
    assert container.output_of("id", "-u") == UID
    assert container.output_of("stat", "-c", "%u", f"{DATA_DIR}/safekeeper.json") == UID
    code, text = container.run("python3", "-m", "pip", "--version")
    assert code == 1, text


def test_an_open_port_without_protection_is_refused(sk: Callable[..., ServiceContainer]) -> None:
    container = sk(*RUN)
    assert container.wait(TIMEOUT) == ExitCode.USAGE
    log = container.log_text()
    assert "--listen 0.0.0.0 can be reached from other machines" in log
    assert "hint: Give --tls-cert, --user-file" in log


def test_it_is_healthy_behind_tls_and_a_token(sk: Callable[..., ServiceContainer]) -> None:
    certificate = trustme.CA().issue_cert("safekeeper-1.example")
    container = sk(
        *RUN,
        *("--tls-cert", "/etc/sk.pem", "--tls-key", "/etc/sk.key"),
        *("--user-file", "/etc/sk.users", "--http-token-file", "/etc/sk.token"),
        files={
            "/etc/sk.pem": b"".join(blob.bytes() for blob in certificate.cert_chain_pems),
            "/etc/sk.key": certificate.private_key_pem.bytes(),
            "/etc/sk.users": f"ops:monitor:{VERIFIER}\n".encode(),
            "/etc/sk.token": b"0123456789abcdef0123456789abcdef\n",
        },
        files_mode=0o440,  # root's, readable for its group, as mounted secrets are
        group_add=["0"],
    )
    container.wait_well()
    assert container.check_health() == (0, "ok")


def test_a_stop_ends_it_in_good_order(sk: Callable[..., ServiceContainer]) -> None:
    container = sk(*RUN, "--insecure")
    container.wait_well()
    container.container.stop(timeout=10)
    assert container.exit_code == 0


def test_the_check_fails_without_a_listener(sk: Callable[..., ServiceContainer]) -> None:
    container = sk(*RUN, "--insecure", "--http", "127.0.0.1:9")
    container.wait_until(lambda: container.log_text(), TIMEOUT, "a first line of the log")
    code, text = container.check_health()
    assert code == 1
    assert text.startswith("no process listens")
