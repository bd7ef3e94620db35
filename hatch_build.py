"""Compiles the modules of the path of a commit, where there is a C compiler.

Each is a Python module, compiled under a name of its own, `..._compiled`, beside it. Where that
cannot be done, the installation goes on without: the Python modules do the same. The compiled files
of an editable installation are in the source tree, and `make` renews them. Each ends with the
digest of its sources, by which `storage/compiled.py` knows one that is of others, or cut off.
"""

from __future__ import annotations

import runpy
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PACKAGE = "quorum_wal"
DIRECTIVES = {
    "language_level": 3,
    # The types are in the .pxd files; Python's own would make every int a Python object.
    "annotation_typing": False,
    "boundscheck": False,
    "wraparound": False,
    "initializedcheck": False,
    "freethreading_compatible": False,
}


class CompileHook(BuildHookInterface):  # type: ignore[type-arg]
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel":
            return
        try:
            built = compile_modules(Path(self.root), self.config["modules"])
        except Exception as error:  # whatever the compiler, or its absence, says
            self.app.display_warning(f"nothing is compiled, all runs interpreted: {error}")
            return
        build_data["artifacts"] += [f"/{path}" for path in built]
        build_data["pure_python"] = False
        build_data["infer_tag"] = True


def compile_modules(root: Path, modules: list[str]) -> list[str]:
    """The paths of what was compiled, in the tree at `root`. Raises what the compiler raises."""
    from Cython.Build import cythonize
    from setuptools import Distribution, Extension
    from setuptools.command.build_ext import build_ext

    with tempfile.TemporaryDirectory() as folder:
        extensions = cythonize(
            [
                Extension(
                    f"{PACKAGE}/{source}".removesuffix(".py").replace("/", ".") + "_compiled",
                    [f"{PACKAGE}/{source}"],
                    extra_compile_args=["-O2", "-g0"],
                )
                for source in modules
            ],
            compiler_directives=DIRECTIVES,
            build_dir=folder,
            quiet=True,
            force=True,
        )
        command = build_ext(Distribution({"ext_modules": extensions}))
        command.build_lib = str(root)
        command.build_temp = folder
        command.parallel = True
        command.ensure_finalized()
        command.run()
        libraries = [Path(path) for path in command.get_outputs()]
    # Not imported: the tree need not be on the path of who builds.
    digest = runpy.run_path(str(root / PACKAGE / "storage/compiled.py"))["sources_digest"](
        root / PACKAGE
    )
    for library in libraries:
        with library.open("ab") as file:  # a loader looks at nothing behind what its headers name
            file.write(digest)
    return [str(path.relative_to(root)) for path in libraries]
