"""`DataDirectory`: creates, copies and configures the folder of a Postgres server.

It only changes files and starts no server. The settings of a test are in a file of their own, which
postgresql.conf includes. So ALTER SYSTEM (postgresql.auto.conf) overrides them, as on a real
server, and a base backup contains them.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

from quorum_wal.pg_fixtures.errors import FixtureError
from quorum_wal.pg_server.account import Account, server_account
from quorum_wal.pg_server.binaries import PostgresBinaries
from quorum_wal.pg_server.postmaster_file import PostmasterFile, read_postmaster_file
from quorum_wal.pg_server.program import run_program

Setting = str | int | float | bool

SETTINGS_FILE = "pg_fixtures.conf"
SUPERUSER = "postgres"
# Shared memory in the data folder: segments in /dev/shm would remain after a crash.
FIRST_SETTINGS = {"dynamic_shared_memory_type": "mmap"}
WAL_SEG_SIZE = 16 << 20  # Postgres's default
COPY_TIMEOUT = 120.0  # seconds


class DataDirectory:
    """A data folder, which may not exist yet."""

    def __init__(self, path: Path, binaries: PostgresBinaries) -> None:
        self.path = path
        self.binaries = binaries
        self.account: Account | None = server_account()

    @property
    def initialized(self) -> bool:
        """It was filled by initdb or a base backup."""
        return (self.path / "PG_VERSION").is_file()

    def initdb(self, *options: str, wal_seg_size: int = WAL_SEG_SIZE) -> None:
        """A new database cluster with a new system identifier; all local users are trusted.

        Raises ProgramFailed.
        """
        self.create_empty()
        run_program(
            [
                self.binaries.program("initdb"),
                f"--pgdata={self.path}",
                f"--username={SUPERUSER}",
                "--auth=trust",
                "--encoding=UTF8",
                "--locale=C",  # English messages: programs parse some of them
                "--no-sync",  # of initdb's own files; the server syncs what it writes
                f"--wal-segsize={wal_seg_size >> 20}",
                *options,
            ],
            account=self.account,
        )
        self.write_settings(FIRST_SETTINGS)

    def copy_from(self, template: Path) -> None:
        """Copies a stopped server's data folder, including its system identifier."""
        if self.path.exists():
            raise FixtureError(f"{self.path} exists already")
        self.path.parent.mkdir(parents=True, exist_ok=True)
        # cp keeps the owner, shutil.copytree does not; --reflink avoids copying where possible
        program: list[str | Path] = ["cp", "--archive", "--reflink=auto", template, self.path]
        subprocess.run(program, check=True, timeout=COPY_TIMEOUT)

    def create_empty(self) -> None:
        """Creates an empty folder owned by the server's account. The folder may exist if empty."""
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        if any(self.path.iterdir()):
            raise FixtureError(f"{self.path} is not empty")
        if self.account is not None:
            os.chown(self.path, self.account.uid, self.account.gid)

    def settings(self) -> dict[str, str]:
        """The settings of the test, as written by write_settings()."""
        try:
            text = (self.path / SETTINGS_FILE).read_text()
        except FileNotFoundError:
            return {}
        found = re.findall(r"^(\S+) = '(.*)'$", text, re.MULTILINE)
        return {name: value.replace("''", "'") for name, value in found}

    def write_settings(self, settings: dict[str, str]) -> None:
        """Replaces the settings of the test. The server reads them at the next start or reload."""
        lines = [
            f"{name} = '{value.replace(chr(39), chr(39) * 2)}'\n"
            for name, value in settings.items()
        ]
        self.write(SETTINGS_FILE, "".join(lines))
        include = f"include_if_exists = '{SETTINGS_FILE}'\n"
        configuration = (self.path / "postgresql.conf").read_text()
        if include not in configuration:
            self.write("postgresql.conf", configuration + include)

    def write(self, name: str, text: str) -> None:
        """Replaces a file in the folder atomically. The owner is that of the folder."""
        temporary = self.path / f"{name}.new"
        temporary.write_text(text)
        owner = self.path.stat()
        os.chown(temporary, owner.st_uid, owner.st_gid)
        temporary.replace(self.path / name)

    def postmaster_file(self) -> PostmasterFile | None:
        """The running server's postmaster.pid; None if there is no complete file."""
        return read_postmaster_file(self.path)


def setting_text(value: Setting) -> str:
    """Formats a value for postgresql.conf."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value)
