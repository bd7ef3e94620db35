"""The services of compose.yaml, as the file describes them."""

from __future__ import annotations

import os
import re
import shlex
import signal
from collections.abc import Iterator

import pytest
from compose_file import COMPOSE_FILE, ComposeStack
from container_images import Engine, Images
from reckoning import TIMEOUT, assert_complete

from quorum_wal.pg_fixtures.ledger import Ledger
from quorum_wal.pg_fixtures.ports import free_port
from quorum_wal.pg_fixtures.waiting import wait_until

PASSWORD = "not the default"


@pytest.fixture(scope="module")
def port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def stack(engine: Engine, images: Images, port: int) -> Iterator[ComposeStack]:
    variables = {
        "SK_IMAGE": images.sk,
        "POSTGRES_IMAGE": images.postgres,
        "POSTGRES_PASSWORD": PASSWORD,
        "POSTGRES_PORT": str(port),
    }
    with ComposeStack(engine.client, variables) as stack:
        yield stack


@pytest.fixture
def ledger(stack: ComposeStack, port: int, request: pytest.FixtureRequest) -> Iterator[Ledger]:
    """Clients on this machine, at the published port."""
    dsn = f"host=127.0.0.1 port={port} user=postgres password='{PASSWORD}'"
    with Ledger(dsn, clients=3, table=request.node.name) as ledger:
        ledger.wait_for_progress(20, TIMEOUT)
        yield ledger


def documented_commands(program: str) -> list[list[str]]:
    """Service, program and arguments, from `docker compose exec` in the head of the file."""
    lines = re.findall(r"^# +docker compose exec (.*)$", COMPOSE_FILE.read_text(), re.MULTILINE)
    commands = map(shlex.split, lines)
    return [command for command in commands if command[1] == program]


def test_commits_wait_for_the_proposer(stack: ComposeStack) -> None:
    ((service, *psql),) = documented_commands("psql")
    statement = "SELECT application_name, sync_state FROM pg_stat_replication"
    wait_until(
        lambda: (
            stack.services[service].run(*psql, "--no-align", "--tuples-only", "-c", statement)
            == (0, "walproposer|sync")
        ),
        TIMEOUT,
        "the primary to rely on the proposer",
    )


def test_its_status_is_as_documented(stack: ComposeStack, ledger: Ledger) -> None:
    ((service, *command),) = documented_commands("sk")
    text = stack.services[service].output_of(*command)
    assert all(f"safekeeper-{id}:5454" in text for id in (1, 2, 3)), text


def test_only_postgres_is_published_and_only_on_this_machine(
    stack: ComposeStack, port: int
) -> None:
    bound = {
        name: service.container.attrs["HostConfig"]["PortBindings"]
        for name, service in stack.services.items()
    }
    at = [{"HostIp": "127.0.0.1", "HostPort": str(port)}]
    assert {name: ports for name, ports in bound.items() if ports} == {"postgres": {"5432/tcp": at}}


@pytest.mark.parametrize("name", ["safekeeper-1", "proposer"])
def test_a_service_that_dies_is_started_again(
    stack: ComposeStack, ledger: Ledger, name: str
) -> None:
    """kill -9 from outside, without the engine, as by the out-of-memory killer."""
    if os.geteuid() != 0:
        pytest.skip("only root can kill a container's process behind the engine's back")
    service = stack.services[name]
    before = service.pid
    os.kill(before, signal.SIGKILL)
    wait_until(lambda: service.pid not in (0, before), TIMEOUT, f"{name} to be started again")
    assert_complete(ledger)
    service.wait_well()


def test_down_and_up_again_loses_nothing(stack: ComposeStack, ledger: Ledger) -> None:
    codes = stack.down()
    assert codes == dict.fromkeys(stack.services, 0)
    stack.up()
    assert_complete(ledger)
