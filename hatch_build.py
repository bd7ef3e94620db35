"""Compiles the modules on the path of a commit, if there is a C compiler.

Each is a Python module. The compiled module is written beside it, under the name `..._compiled`. If
the compilation fails, the installation continues without it, because the Python modules do the
same. An editable installation has the compiled files in the source tree, and `make` rebuilds them.
Each compiled file ends with the digest of its sources, by which `storage/compiled.py` detects a
file that is truncated or was compiled from other sources.
"""

from __future__ import annotations

import os
import runpy
import shlex
import shutil
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PACKAGE = "quorum_wal"
DIRECTIVES = {
    "language_level": 3,
    # The types are in the .pxd files; with annotations every int would be a Python object.
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
        except Exception as error:  # any error of the compiler, or none found
            self.app.display_warning(f"no module was compiled, Python runs them all: {error}")
            return
        build_data["artifacts"] += [f"/{path}" for path in built]
        build_data["pure_python"] = False
        build_data["infer_tag"] = True


def compile_modules(root: Path, modules: list[str]) -> list[str]:
    """Compiles `modules` and returns the paths of the compiled files, relative to `root`.

    Raises the errors of the compiler. Without one it does not begin to translate them to C.
    """
    compiler = os.environ.get("CC") or sysconfig.get_config_var("CC")
    if compiler and shutil.which(shlex.split(compiler)[0]) is None:
        raise FileNotFoundError(f"there is no C compiler {compiler}")
    from Cython.Build import cythonize
    from setuptools import Distribution, Extension
    from setuptools.command.build_ext import build_ext

    with tempfile.TemporaryDirectory() as folder:
        extensions = cythonize(
            [
                Extension(
                    f"{PACKAGE}/{source}".removesuffix(".py").replace("/", ".") + "_compiled",
                    [f"{PACKAGE}/{source}"],
                    # Optimized as Python itself, or as CFLAGS of the environment demand.
                    extra_compile_args=["-g0"],
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
    # Not imported, because the tree may not be on sys.path during a build.
    digest = runpy.run_path(str(root / PACKAGE / "storage/compiled.py"))["sources_digest"](
        root / PACKAGE
    )
    for library in libraries:
        with library.open("ab") as file:
            file.write(digest)  # the loader ignores bytes after those that the headers name
    return [str(path.relative_to(root)) for path in libraries]
