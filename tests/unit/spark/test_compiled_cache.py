"""The folder of compiled loops, and the lock under which processes compile."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from quorum_wal.walrecords.compiled_cache import choose_cache_folder, own_folder

#: enters the lock of numba, says so, and waits for a line; then leaves it
HOLDER = """
import sys
from numba.core.compiler_lock import global_compiler_lock
from quorum_wal.walrecords.compiled_cache import share_compilation
share_compilation()
with global_compiler_lock, global_compiler_lock:
    print("entered", flush=True)
    sys.stdin.readline()
print("left", flush=True)
"""
#: a loop that is compiled and stored
COMPILER = """
from loop import loop
print(loop(7), sum(loop.stats.cache_misses.values()))
"""
LOOP = """
from numba import njit
from quorum_wal.walrecords.compiled_cache import share_compilation
share_compilation()
@njit(cache=True)
def loop(n):
    total = 0
    for i in range(n):
        total += i
    return total
"""


@pytest.fixture(autouse=True)
def user_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("NUMBA_CACHE_DIR", "")
    return tmp_path / "cache" / "quorum-wal"


def test_numba_chooses_if_the_package_is_writable(tmp_path: Path) -> None:
    choose_cache_folder(tmp_path)
    assert os.environ["NUMBA_CACHE_DIR"] == ""


def test_a_folder_of_the_user_otherwise(user_cache: Path, tmp_path: Path) -> None:
    choose_cache_folder(tmp_path / "package.zip")
    assert os.environ["NUMBA_CACHE_DIR"] == str(user_cache / "numba")
    assert (user_cache / "numba").stat().st_mode & 0o777 == 0o700


def test_a_choice_of_the_user_stays(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", "/chosen")
    choose_cache_folder(tmp_path / "package.zip")
    assert os.environ["NUMBA_CACHE_DIR"] == "/chosen"


def test_without_a_home_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert own_folder("numba") == tmp_path / f"quorum-wal-{os.getuid()}" / "numba"


@pytest.mark.parametrize("kind", ["a folder for all", "a link"])
def test_a_folder_in_which_others_may_write_is_not_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str
) -> None:
    """Its files would run in our process."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folder = tmp_path / f"quorum-wal-{os.getuid()}"
    target = tmp_path / "target"
    target.mkdir()
    target.chmod(0o777)
    if kind == "a link":
        folder.symlink_to(target)
    else:
        target.rename(folder)
    assert own_folder("numba") is None


def test_one_process_at_a_time_compiles() -> None:
    command = [sys.executable, "-c", HOLDER]
    with (
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        ) as first,
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        ) as second,
    ):
        both = {first, second}
        assert all(each.stdin and each.stdout for each in both)
        holder = next(each for each in both if entered_alone(each, both))
        (other,) = both - {holder}
        assert other.poll() is None
        holder.communicate("\n", timeout=60)
        output, _ = other.communicate("\n", timeout=60)
        assert output == "entered\nleft\n"


def entered_alone(process: subprocess.Popen[str], both: set[subprocess.Popen[str]]) -> bool:
    """Whether this process has the lock."""
    import select

    ready, _, _ = select.select([each.stdout for each in both], [], [], 60)
    assert len(ready) == 1, "both processes have the lock, or none"
    if ready[0] is not process.stdout:
        return False
    assert process.stdout is not None
    assert process.stdout.readline() == "entered\n"
    return True


def test_the_second_process_loads_what_the_first_compiled(tmp_path: Path) -> None:
    (tmp_path / "loop.py").write_text(LOOP)
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "NUMBA_CACHE_DIR": str(tmp_path / "compiled")}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", COMPILER], env=environment, stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    outputs = [process.communicate(timeout=120)[0].splitlines() for process in processes]
    assert [output[-1].split()[0] for output in outputs] == ["21", "21"]
    assert sorted(output[-1].split()[1] for output in outputs) == ["0", "1"]
    notices = [line for output in outputs for line in output if "numba compiles" in line]
    assert len(notices) == 1
