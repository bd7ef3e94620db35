"""docs/first-day.md, word by word: its commands in one shell, in their order; each must succeed.

What the shell prints is docs/first-day-transcript.md. SK_ARTEFACTS=FOLDER keeps that of this run.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from quorum_wal.pg_fixtures.process_table import ends_within
from quorum_wal.pg_fixtures.processes import ServiceProcess
from quorum_wal.pg_server.account import give, server_account
from quorum_wal.pg_server.binaries import PostgresBinaries
from quorum_wal.pg_server.postmaster_file import read_postmaster_file

DOCS = Path(__file__).parents[2] / "docs"
PAGE, TRANSCRIPT = DOCS / "first-day.md", DOCS / "first-day-transcript.md"
TIMEOUT, STOP_TIMEOUT = 600.0, 60.0
INDENT, HOME = "    ", "/home/dba"
#: The test has sk installed already, and the path of Postgres.
SKIPPED = ("python3 -m venv", "pip install", "export PATH=")
#: At the end each safekeeper is in `sk status`, and the rows exist again.
EXPECTED = (
    "OK: commits proceed, 3 of 3 safekeepers",
    "DEGRADED: commits proceed with 2",
    "done: members 1, 2, 4",
    " 1000",
)


def commands_of(page: str) -> list[str]:
    """The lines of its blocks of commands."""
    return [line[len(INDENT) :] for line in page.splitlines() if line.startswith(INDENT)]


@pytest.fixture
def home(open_path: Path) -> Iterator[Path]:
    """A folder of the account that runs Postgres."""
    home = open_path / "home"
    home.mkdir()
    give(home, server_account())
    yield home
    # pg_ctl gives the server its own session, which outlives the shell.
    for data_dir in home.glob("first-day/pg*/"):
        server = read_postmaster_file(data_dir)
        if server is not None:
            os.kill(server.pid, signal.SIGQUIT)
            assert ends_within(server.pid, STOP_TIMEOUT)


def test_every_command_of_the_first_day_works(
    home: Path, tmp_path: Path, pg_binaries: PostgresBinaries
) -> None:
    account = server_account()
    commands = [line for line in commands_of(PAGE.read_text()) if not line.startswith(SKIPPED)]
    script = tmp_path / "first-day.sh"
    script.write_text("\n".join(commands) + "\n")
    programs = (str(Path(sys.executable).parent), str(pg_binaries.bin_dir), os.environ["PATH"])
    shell = ServiceProcess(
        ["bash", "-e", "-v", script],
        log_path=tmp_path / "transcript",
        name="the first day",
        cwd=home,
        account=account,
        env={
            "PATH": os.pathsep.join(programs),
            "HOME": str(home),
            "USER": account.name if account is not None else os.environ["USER"],
            "QUORUM_WAL_INTERPRETED": "",
        },
    )
    with shell:
        exit_code = shell.wait(TIMEOUT)
    printed = shell.log_text()
    artefacts = os.environ.get("SK_ARTEFACTS")
    if artefacts:
        plain = printed.replace(str(home), HOME).replace(str(script), "bash")
        Path(artefacts, TRANSCRIPT.name).write_text(transcript(commands, plain))
    assert exit_code == 0, shell.log_tail()
    for sentence in EXPECTED:
        assert sentence in printed
    assert "Traceback" not in printed


def transcript(commands: list[str], printed: str) -> str:
    """The output in Markdown, with a `$` before each command."""
    lines, left = [], list(commands)
    for line in printed.splitlines():
        if left and line == left[0]:
            lines.append(f"{INDENT}$ {left.pop(0)}")
        else:
            lines.append(f"{INDENT}{line}".rstrip())
    return f"{HEADER}\n" + "\n".join(lines) + "\n"


HEADER = """\
# The first day: what the commands print

The transcript of a run of [first-day.md](first-day.md) by its test; `$` marks what was typed.
"""


def test_the_transcript_is_of_these_commands() -> None:
    typed = [
        line.removeprefix(f"{INDENT}$ ")
        for line in TRANSCRIPT.read_text().splitlines()
        if line.startswith(f"{INDENT}$ ")
    ]
    page = [line for line in commands_of(PAGE.read_text()) if not line.startswith(SKIPPED)]
    assert typed == page, "renew it: SK_ARTEFACTS=docs pytest tests/integration/test_first_day.py"
