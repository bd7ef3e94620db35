"""The Debian package as `make deb` builds it on this machine, and the same as a newer version."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from container_engine import PREFERRED
from container_images import ROOT, Base

from quorum_wal.pg_server.errors import Unavailable
from quorum_wal.pg_server.program import run_program

PYTHON = Path("/usr/bin/python3")
PYTHON_VERSION = "3.11"  # of the machines on which the package is tried
BUILD_TIMEOUT = 600.0  # seconds
VERSION = "1.0"
NEWER_VERSION = "1.1"


@dataclass(frozen=True, slots=True)
class DebianPackages:
    package: Path
    newer: Path


def build_packages(folder: Path, base: Base) -> DebianPackages:
    """By the one command. Raises Unavailable, ProgramFailed."""
    refuse_another_python()
    options = f"--no-index --find-links {base.wheels}" if base.wheels is not None else ""
    run_program(
        [*PREFERRED, "make", "-C", ROOT, "deb", f"DEB_FOLDER={folder}", f"VERSION={VERSION}"],
        # Neither small nor optimized: the content counts, not its speed.
        env={"PIP_OPTIONS": options, "COMPRESSION": "none", "CFLAGS": "-O0"},
        timeout=BUILD_TIMEOUT,
    )
    (package,) = folder.glob(f"quorum-wal_{VERSION}_*.deb")
    return DebianPackages(package, repacked(package, folder))


def refuse_another_python() -> None:
    """Raises Unavailable, if the package would need a Python that Debian 12 does not have."""
    question = "import ensurepip, sys; print('%d.%d' % sys.version_info[:2])"
    try:
        done = subprocess.run([PYTHON, "-c", question], capture_output=True, text=True)
        found = done.stdout.strip() or done.stderr.strip()
    except OSError as error:
        found = str(error)
    if found != PYTHON_VERSION:
        raise Unavailable(
            f"{PYTHON} is not Python {PYTHON_VERSION} with ensurepip: {found}",
            hint="on Debian 12: apt install python3-venv",
        )


def repacked(package: Path, folder: Path) -> Path:
    """The same files with NEWER_VERSION: only the member with the version is replaced."""
    member = "control.tar"
    metadata = folder / "metadata"
    newer = folder / package.name.replace(VERSION, NEWER_VERSION)
    shutil.copy(package, newer)
    run_program(["dpkg-deb", "--control", package, metadata])
    control = metadata / "control"
    text = control.read_text()
    control.write_text(text.replace(f"Version: {VERSION}\n", f"Version: {NEWER_VERSION}\n"))
    run_program(["tar", "-C", metadata, "-cf", folder / member, "."])
    run_program(["ar", "r", newer, folder / member])
    return newer
