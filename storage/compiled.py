"""Loads the compiled modules of the commit path, if the installation found a C compiler.

`safekeeper.steady_path` is Python. The installation compiles the same source, with the C types of
its .pxd file, as `safekeeper.steady_path_compiled` (`hatch_build.py`). Tests check that both behave
the same. Without a compiler everything works, but a commit takes more time.

Law: a compiled file is loaded only if it ends with the digest of the present sources. A truncated
file has no such digest, and neither has one of older sources. Loading a truncated file could end
the process. The installation imports this module alone: it uses only the standard library.
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

#: Environment variable that disables the compiled modules.
INTERPRETED = "QUORUM_WAL_INTERPRETED"
#: All compiled sources, relative to the folder of the packages.
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
    """The compiled module; the Python module if there is none, or INTERPRETED is set."""
    module = None if os.environ.get(INTERPRETED) else _load(name)
    return import_module(name) if module is None else module


def how_it_runs(name: str) -> str:
    """Returns "compiled" or "interpreted"."""
    return "compiled" if compiled(name).__name__ != name else "interpreted"


def sources_digest(root: Path) -> bytes | None:
    """The digest at the end of a compiled file; None if a source is missing."""
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
    """None if the module was not compiled, which commands report at their start, or if the file
    is unusable, which is logged here, once."""
    try:
        spec = find_spec(f"{name}_compiled")
        if spec is None or spec.origin is None:
            return None
        _check_sources(Path(spec.origin))
        return import_module(f"{name}_compiled")
    except (ImportError, ValueError, OSError) as error:
        _log.warning("%s runs interpreted; install the package again: %s", name, error)
        return None


def _check_sources(library: Path) -> None:
    digest = sources_digest(Path(__file__).parent.parent)
    if digest is not None and not library.read_bytes().endswith(digest):
        raise ImportError(f"{library} is truncated, or was compiled from other sources")
