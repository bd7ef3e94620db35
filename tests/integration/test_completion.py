"""Completion: bash asks `sk`, also for the commands of a group that is not loaded."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from sk_command import assert_wrong_usage, sk

BIN = Path(sys.executable).parent
#: Calls the function that TAB calls, with the words before the cursor.
SCRIPT = """
eval "$(sk completion bash)" || exit
COMP_WORDS=("$@")
COMP_CWORD=$(($# - 1))
"$(complete -p sk | sed 's/.*-F \\([^ ]*\\) .*/\\1/')" sk
printf '%s\\n' "${COMPREPLY[@]}"
"""


def completed(*words: str) -> list[str]:
    """The completions of bash for these words, the last of which is incomplete or empty."""
    done = subprocess.run(
        ["bash", "--norc", "-c", SCRIPT, "bash", *words],
        env={**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.split()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["sk", "safe"], ["safekeeper"]),
        (["sk", "safekeeper", ""], ["run"]),
        (["sk", "spark", "re"], ["report", "replay-table"]),
        (["sk", "attach", "--safe"], ["--safekeepers", "--safekeeper-conninfo"]),
        (["sk", "user", "add", "--role", "m"], ["monitor"]),
    ],
    ids=" ".join,
)
def test_bash_completes(words: list[str], expected: list[str]) -> None:
    assert completed(*words) == expected


def test_all_commands_are_offered_without_loading_any() -> None:
    script = "import sys; from quorum_wal.cli.main import main; sys.argv[0] = 'sk'\ntry: main()\n"
    script += "finally: print(*sys.modules, file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "_SK_COMPLETE": "bash_complete", "COMP_WORDS": "sk ", "COMP_CWORD": "1"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert len(done.stdout.split()) >= 25
    assert "quorum_wal.cli.lazy_group" in done.stderr.split()
    assert not {"quorum_wal.cli.safekeeper", "quorum_wal.cli.attach", "psycopg", "numpy"} & set(
        done.stderr.split()
    )


def test_no_traceback_where_the_packages_of_a_command_are_missing() -> None:
    script = (
        "import sys; sys.modules['pyspark'] = None; from quorum_wal.cli.main import main; main()"
    )
    variables = {"COMP_WORDS": "sk spark ingest --", "COMP_CWORD": "3"}
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, **variables, "_SK_COMPLETE": "bash_complete"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_gets_its_script(shell: str) -> None:
    done = sk("completion", shell)
    assert done.returncode == 0, done.stderr
    assert f"_SK_COMPLETE={shell}_complete" in done.stdout


def test_another_shell_is_refused() -> None:
    assert_wrong_usage(sk("completion", "tcsh"), "'tcsh' is not one of 'bash', 'fish', 'zsh'")
