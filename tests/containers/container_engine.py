"""The container engine of the tests: a running one, or one of their own.

An engine that answers at DOCKER_HOST, or else at the default socket, is used as it is. Otherwise
root starts one in a folder of its own, and stops it and removes everything that it created.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import docker
from docker.errors import APIError, DockerException
from firewall import FirewallBefore
from testcontainers.core.labels import LABEL_SESSION_ID, SESSION_ID

from quorum_wal.pg_fixtures.processes import ServiceProcess
from quorum_wal.pg_fixtures.waiting import wait_until
from quorum_wal.pg_server.errors import Unavailable
from quorum_wal.pg_server.program import run_program
from tests.block_groups import spread_folders_of

HOST_VARIABLE = "DOCKER_HOST"
UNIX = "unix://"
DEFAULT_HOST = f"{UNIX}/var/run/docker.sock"
#: Before a program that prepares the ring, or runs its containers. It waits for them alone, one
#: after another, and would get a small share of the processors beside the other processes of the
#: run, which need not wait for it. Without the right to it, it has no effect.
PREFERRED = ("nice", "-n", "-10")
PROGRAMS = ("dockerd", "containerd", "runc", "iptables")
HINT = "start an engine or name one in DOCKER_HOST; or as root: apt install docker.io iptables"

START_TIMEOUT = 30.0  # seconds
STOP_TIMEOUT = 60.0

# For objects that testcontainers does not label itself.
LABELS = {LABEL_SESSION_ID: SESSION_ID}


def answering_host() -> str | None:
    """The address of a running engine. Raises Unavailable if the named one does not answer."""
    named = os.environ.get(HOST_VARIABLE)
    host = named or DEFAULT_HOST
    if answers(host):
        return host
    if named:
        raise Unavailable(f"no container engine answers at {named}", hint=HINT)
    return None


def answers(host: str) -> bool:
    if host.startswith(UNIX):
        with socket.socket(socket.AF_UNIX) as probe:  # the library leaves a failed one open
            if probe.connect_ex(host.removeprefix(UNIX)) != 0:
                return False
    try:
        client = docker.DockerClient(base_url=host, timeout=5)
    except DockerException:
        return False
    client.close()
    return True


@contextmanager
def own_engine(root: Path) -> Iterator[str]:
    """Run an engine below `root`; yield its address. Raises Unavailable, FixtureError."""
    if os.geteuid() != 0:
        raise Unavailable("no container engine answers, and only root can start one", hint=HINT)
    path = f"{os.environ['PATH']}:/usr/sbin:/sbin"
    missing = [program for program in PROGRAMS if shutil.which(program, path=path) is None]
    if missing:
        raise Unavailable(f"no container engine answers, and there is no {missing[0]}", hint=HINT)
    host = f"{UNIX}{root}/docker.sock"
    before = FirewallBefore()
    layers = root / "data/overlay2"  # of the default storage driver
    layers.mkdir(parents=True, exist_ok=True)
    for parent in (root, layers):
        spread_folders_of(parent)
    engine = ServiceProcess(
        [
            *(*PREFERRED, "dockerd", "--host", host),
            *("--data-root", root / "data"),
            *("--exec-root", root / "exec"),
            *("--pidfile", root / "dockerd.pid"),
            "--bridge=none",  # every test has its own network
            "--shutdown-timeout=5",
            "--log-level=warn",
        ],
        name="dockerd",
        log_path=root / "dockerd.log",
        # Its helpers run for milliseconds, a third of them to collect garbage.
        env={"PATH": path, "GOGC": "400"},
        death_signal=signal.SIGTERM,  # so that its containers end with it
    )
    engine.start()
    try:
        engine.wait_until(lambda: answers(host), START_TIMEOUT, "it to answer")
        yield host
    finally:
        try:
            engine.terminate(STOP_TIMEOUT)
        finally:
            engine.kill()
            unmount_below(root)
            before.restore()


def unmount_below(root: Path) -> None:
    """An engine leaves the mount of a network namespace, which blocks the removal of its folder."""
    mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    for mount in reversed(mounts):
        if Path(mount).is_relative_to(root):
            run_program(["umount", "--lazy", mount])


def remove_leftovers(client: docker.DockerClient, *, of_all_sessions: bool) -> None:
    """Remove the containers, networks and volumes of this session, or of all sessions.

    Images remain, for the next run.
    """
    label = LABEL_SESSION_ID if of_all_sessions else f"{LABEL_SESSION_ID}={SESSION_ID}"
    mine = {"label": label}
    for container in client.containers.list(all=True, filters=mine):
        container.remove(force=True, v=True)
    for network in client.networks.list(filters=mine):
        network.remove()
    for volume in client.volumes.list(filters=mine):
        # A removed container may hold its volume a moment longer.
        wait_until(lambda volume=volume: removed(volume), STOP_TIMEOUT, f"{volume.name} to be free")


def removed(volume: docker.models.volumes.Volume) -> bool:
    try:
        volume.remove()
    except APIError as error:
        if error.status_code != 409:
            raise
        return False
    return True
