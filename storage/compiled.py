"""Which modules run compiled: those of the path of a commit, where a C compiler was there.

`safekeeper.steady_path` is Python; the installation compiles the same source, with the C types of
its .pxd file, as `safekeeper.steady_path_compiled` (`hatch_build.py`). Both do the same, which
tests demand; without a compiler everything works all the same, and costs a commit more.

Law: a compiled file is loaded only when it ends with the digest of the sources that are here. One
that was cut off does not, nor one that is older than a change of the law; loading the former could
end the process. Its installation imports this module alone: the standard library, no more.
"""

from __future__ import annotations

import logging
import os
from functools import cache
from hashlib import sha256
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

#: In the environment: not to use what was compiled.
INTERPRETED = "QUORUM_WAL_INTERPRETED"
#: All that is compiled, from the folder of the packages.
SOURCES = (
    "safekeeper/steady_path.py",
    "safekeeper/steady_path_compiled.pxd",
    "walproposer/stream/steady_leader.py",
    "walproposer/stream/steady_leader_compiled.pxd",
    "walproposer/stream/steady_loop.py",
    "walproposer/stream/steady_loop_compiled.pxd",
    "consensus/append_calls.pxd",
    "pgwire/copy_calls.pxd",
    "storage/big_endian.pxd",
    "storage/durable_calls.pxd",
)

_log = logging.getLogger(__name__)


def compiled(name: str) -> ModuleType:
    """The module as it was compiled; the Python module where it was not, or is not wanted."""
    module = None if os.environ.get(INTERPRETED) else _load(name)
    return import_module(name) if module is None else module


def how_it_runs(name: str) -> str:
    """ "compiled" or "interpreted"."""
    return "compiled" if compiled(name).__name__ != name else "interpreted"


def sources_digest(root: Path) -> bytes | None:
    """What a compiled file ends with; None where the sources are not all there."""
    digest = sha256()
    try:
        for name in SOURCES:
            content = (root / name).read_bytes()
            digest.update(f"{name} {len(content)}\n".encode() + content)
    except FileNotFoundError:
        return None
    return digest.digest()


@cache
def _load(name: str) -> ModuleType | None:
    """None where there was no compiler, which what the commands print at their start says; and
    where the file is of no use, which is said here, once."""
    try:
        spec = find_spec(f"{name}_compiled")
        if spec is None or spec.origin is None:
            return None
        _check_sources(Path(spec.origin))
        return import_module(f"{name}_compiled")
    except (ImportError, ValueError, OSError) as error:
        _log.warning("%s runs interpreted, install it again: %s", name, error)
        return None


def _check_sources(library: Path) -> None:
    digest = sources_digest(Path(__file__).parent.parent)
    if digest is not None and not library.read_bytes().endswith(digest):
        raise ImportError(f"{library} is cut off, or compiled of other sources than are here")
