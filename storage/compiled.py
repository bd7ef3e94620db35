"""Which modules run compiled: those of the path of a commit, where a C compiler was there.

`safekeeper.steady_path` is Python; the installation compiles the same source, with the C types of
its .pxd file, as `safekeeper.steady_path_compiled` (`hatch_build.py`). Both do the same, which
tests demand; without a compiler everything works all the same, and costs a commit more.
"""

from __future__ import annotations

import os
from importlib import import_module
from types import ModuleType

#: In the environment: not to use what was compiled.
INTERPRETED = "QUORUM_WAL_INTERPRETED"


def compiled(name: str) -> ModuleType:
    """The module as it was compiled; the Python module where it was not, or is not wanted."""
    if not os.environ.get(INTERPRETED):
        try:
            return import_module(f"{name}_compiled")
        except ModuleNotFoundError:
            pass  # there was no compiler; what the commands print at their start says so
    return import_module(name)


def how_it_runs(name: str) -> str:
    """ "compiled" or "interpreted"."""
    return "compiled" if compiled(name).__name__ != name else "interpreted"
