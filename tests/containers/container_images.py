"""The images under test: ours from the Dockerfile, and a stock Postgres, both on one base image.

If the engine reaches a registry, the base is the Dockerfile's default, and packages come from their
index during the build, as on a user's machine. Otherwise the base is a minimal Debian from
mmdebstrap, and Python packages are downloaded before the build.
"""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import sys
import tarfile
import tomllib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import docker
from container_engine import PREFERRED
from docker.errors import DockerException, ImageNotFound
from docker.utils.build import exclude_paths

from quorum_wal.pg_fixtures.errors import FixtureError
from quorum_wal.pg_server.errors import Unavailable
from quorum_wal.pg_server.program import run_program

ROOT = Path(__file__).parents[2]
POSTGRES_CONTEXT = Path(__file__).parent / "postgres"
SYSTEMD_CONTEXT = Path(__file__).parent / "systemd"

REPOSITORY = "quorum-wal-test"
PUBLIC_BASE = "python:3.12-slim-bookworm"
OWN_BASE = f"{REPOSITORY}:bookworm"
OWN_BASE_SUITE = "bookworm"
OWN_BASE_PYTHON = "3.11"
#: Of all images. Layers of their own took three times as much processor time.
OWN_BASE_PACKAGES = "python3,python3-venv,adduser,dbus,systemd,systemd-sysv"
#: Before systemd takes the number, which is that of the account in the official image of Postgres.
OWN_BASE_GROUP = 'chroot "$1" groupadd --gid 999 postgres'
VERSION = "2"
NEWER_VERSION = "3"
BUILD_TIMEOUT = 600.0  # seconds

HINT = "as root: apt install mmdebstrap; or let the engine reach a registry"


@dataclass(frozen=True, slots=True)
class Base:
    """An image to build on; `wheels` is None where pip inside a build reaches an index."""

    image: str
    wheels: Path | None


@dataclass(frozen=True, slots=True)
class Engine:
    """A client of the engine, and the base of its images."""

    client: docker.DockerClient
    base: Base


@dataclass(frozen=True, slots=True)
class Images:
    """By name; `newer` is the same program, labelled with NEWER_VERSION."""

    sk: str
    newer: str
    postgres: str


def find_base(client: docker.DockerClient, folder: Path, *, may_pull: bool) -> Base:
    """The base image, built in `folder` if needed. Raises Unavailable, ProgramFailed."""
    if may_pull and has_or_pulls(client, PUBLIC_BASE):
        return Base(PUBLIC_BASE, None)
    with ThreadPoolExecutor() as pool:
        wheels = pool.submit(download_wheels, folder)
        if not has(client, OWN_BASE):
            import_debian(client, folder)
        return Base(OWN_BASE, wheels.result())


def has(client: docker.DockerClient, image: str) -> bool:
    try:
        client.images.get(image)
    except ImageNotFound:
        return False
    return True


def has_or_pulls(client: docker.DockerClient, image: str) -> bool:
    try:
        return has(client, image) or bool(client.images.pull(image))
    except DockerException:
        return False


def import_debian(client: docker.DockerClient, folder: Path) -> None:
    """mmdebstrap's smallest Debian with apt and OWN_BASE_PACKAGES, as the image OWN_BASE.

    It has the lists of packages, so that each image need not download them again.
    """
    if os.geteuid() != 0 or shutil.which("mmdebstrap") is None:
        raise Unavailable(
            f"{PUBLIC_BASE} cannot be pulled, and no base image can be made here", hint=HINT
        )
    archive = folder / "debian.tar"
    run_program(
        [
            *(*PREFERRED, "mmdebstrap", "--quiet", "--variant=apt", "--skip=cleanup/apt/lists"),
            # The content of an image need not survive a power failure.
            *("--dpkgopt=force-unsafe-io", f"--essential-hook={OWN_BASE_GROUP}"),
            *(f"--include={OWN_BASE_PACKAGES}", OWN_BASE_SUITE, archive),
        ],
        env={"TMPDIR": str(folder)},
        timeout=BUILD_TIMEOUT,
    )
    client.api.import_image_from_file(str(archive), *OWN_BASE.split(":"))
    archive.unlink()


def download_wheels(folder: Path) -> Path:
    """Download what pip needs to build and install this project with the base's Python."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    needed = [*project["build-system"]["requires"], *project["project"]["dependencies"]]
    digest = hashlib.sha256("\n".join(needed).encode()).hexdigest()
    wheels = folder / f"wheels-{digest[:12]}"
    if not wheels.exists():
        partial = wheels.with_suffix(".partial")
        run_program(
            [
                *(*PREFERRED, sys.executable, "-m", "pip", "download", "--quiet"),
                *("--dest", partial),
                *("--only-binary", ":all:", "--python-version", OWN_BASE_PYTHON),
                *needed,
            ],
            timeout=BUILD_TIMEOUT,
        )
        partial.rename(wheels)
    return wheels


def build_sk(engine: Engine, version: str) -> str:
    """Build the Dockerfile; return the image's name. Raises FixtureError with its output."""
    arguments = {"BASE_IMAGE": engine.base.image, "VERSION": version}
    files = [(ROOT / name, name) for name in exclude_paths(str(ROOT), dockerignore())]
    files.append((ROOT / "Dockerfile", "Dockerfile"))
    if engine.base.wheels is not None:
        arguments["PIP_OPTIONS"] = "--no-index --find-links /wheels"
        files += [(path, f"wheels/{path.name}") for path in engine.base.wheels.iterdir()]
    return build(engine.client, f"sk-{version}", files, arguments)


def dockerignore() -> list[str]:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def build_postgres(engine: Engine) -> str:
    """Build postgres/Dockerfile; return the image's name. Raises FixtureError."""
    files = [(path, path.name) for path in POSTGRES_CONTEXT.iterdir()]
    return build(engine.client, "postgres", files, {"BASE_IMAGE": engine.base.image})


def build_systemd(engine: Engine, postgres: str, packages: list[Path]) -> str:
    """Build systemd/Dockerfile on the image `postgres`. Raises FixtureError."""
    files = [(path, path.name) for path in (*SYSTEMD_CONTEXT.iterdir(), *packages)]
    return build(engine.client, "systemd", files, {"POSTGRES_IMAGE": postgres})


def build(
    client: docker.DockerClient,
    tag: str,
    files: list[tuple[Path, str]],
    arguments: dict[str, str],
) -> str:
    context = io.BytesIO()
    with tarfile.open(fileobj=context, mode="w") as archive:
        for path, name in sorted(files, key=lambda file: file[1]):
            if path.is_file() or path.is_symlink():
                archive.add(path, name)
    context.seek(0)
    output: list[str] = []
    for step in client.api.build(
        fileobj=context,
        custom_context=True,
        tag=f"{REPOSITORY}:{tag}",
        buildargs=arguments,
        network_mode="host",
        rm=True,
        forcerm=True,
        decode=True,
        timeout=int(BUILD_TIMEOUT),
    ):
        output.append(step.get("stream") or step.get("error") or "")
        if "error" in step:
            raise FixtureError(f"could not build {tag}:\n{''.join(output[-40:])}")
    return f"{REPOSITORY}:{tag}"
