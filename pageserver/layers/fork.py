"""`Fork`: a fork of a relation, identified by numbers, and the paths of its files.

    global/1262                               tablespace 1664, database 0
    base/5/16384     base/5/16384.1           tablespace 1663; the second segment of 1 GiB
    base/5/16384_vm  base/5/16384_init        other forks
    pg_tblspc/24576/PG_15_202209061/5/16390   a user's tablespace

Source: Postgres `common/relpath.c`, `storage/smgr/md.c`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum

PAGE_BYTES = 8192
#: RELSEG_SIZE of all common builds
SEGMENT_BLOCKS = 131072
SEGMENT_BYTES = SEGMENT_BLOCKS * PAGE_BYTES

GLOBAL_TABLESPACE = 1664
DEFAULT_TABLESPACE = 1663

# The numbers have 32 bits. The length limit keeps int() from rejecting thousands of digits.
_FILE = re.compile(
    r"(?:(?P<global>global)|base/(?P<base>[0-9]{1,10})"
    r"|pg_tblspc/(?P<tablespace>[0-9]{1,10})/(?P<version>PG_[0-9]+_[0-9]+)"
    r"/(?P<database>[0-9]{1,10}))"
    r"/(?P<number>[0-9]{1,10})(?:_(?P<fork>fsm|vm|init))?(?:\.(?P<segment>[0-9]{1,10}))?",
    re.ASCII,
)


class ForkKind(IntEnum):
    """ForkNumber of `common/relpath.h`."""

    MAIN = 0
    FSM = 1
    VM = 2
    INIT = 3


_SUFFIXES = {ForkKind.MAIN: "", ForkKind.FSM: "_fsm", ForkKind.VM: "_vm", ForkKind.INIT: "_init"}
_KINDS = {suffix[1:]: kind for kind, suffix in _SUFFIXES.items()}


@dataclass(frozen=True, slots=True, order=True)
class Fork:
    """Ordered as in layers. `number` is the relfilenode."""

    tablespace: int
    database: int
    number: int
    kind: ForkKind

    def path(self, version_folder: str) -> str:
        """The path of its first file, below the data directory. `version_folder` is used for
        tablespaces."""
        name = f"{self.number}{_SUFFIXES[self.kind]}"
        return f"{database_path(self.tablespace, self.database, version_folder)}/{name}"

    def file(self, version_folder: str, segment: int) -> str:
        """The path of its segment number `segment`, 1 GiB each."""
        path = self.path(version_folder)
        return f"{path}.{segment}" if segment else path

    def __str__(self) -> str:
        return f"{self.tablespace}/{self.database}/{self.number}{_SUFFIXES[self.kind]}"


def database_path(tablespace: int, database: int, version_folder: str) -> str:
    """The folder of a database in a tablespace, below the data directory."""
    if tablespace == GLOBAL_TABLESPACE:
        return "global"
    if tablespace == DEFAULT_TABLESPACE:
        return f"base/{database}"
    return f"pg_tblspc/{tablespace}/{version_folder}/{database}"


def parse_file(path: str) -> tuple[Fork, int] | None:
    """The fork and the segment number of a file below the data directory, or None if the file does
    not belong to a relation."""
    found = _FILE.fullmatch(path)
    if found is None:
        return None
    if found["global"]:
        tablespace, database = GLOBAL_TABLESPACE, 0
    elif found["base"]:
        tablespace, database = DEFAULT_TABLESPACE, int(found["base"])
    else:
        tablespace, database = int(found["tablespace"]), int(found["database"])
    kind = _KINDS[found["fork"] or ""]
    return Fork(tablespace, database, int(found["number"]), kind), int(found["segment"] or 0)
