"""Runs `sk` as a user does, and checks the form of its errors."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from typing import Any

from quorum_wal.pg_fixtures.processes import run_sk

TIMEOUT = 120.0

Done = subprocess.CompletedProcess[str]


def sk(*arguments: object, env: Mapping[str, str] | None = None, stdin: str = "") -> Done:
    """Run it to its end."""
    return run_sk(*arguments, env=env, stdin=stdin, timeout=TIMEOUT)


def sk_json(*arguments: object) -> Any:
    """The output with --json, whatever the exit code."""
    done = sk(*arguments, "--json")
    assert done.stdout, done.stderr
    return json.loads(done.stdout)


def assert_refused(done: Done, exit_code: int, sentence: str, hint: str = "") -> None:
    """One error line, one hint if `hint` is given, this exit code, and no traceback."""
    assert "Traceback" not in done.stderr, done.stderr
    assert done.returncode == exit_code, done.stderr
    (error,) = [line for line in done.stderr.splitlines() if line.startswith("sk: error: ")]
    assert sentence in error
    hints = [line for line in done.stderr.splitlines() if line.startswith("hint: ")]
    assert len(hints) == (1 if hint else 0), done.stderr
    assert not hint or hint in hints[0]


def assert_wrong_usage(done: Done, sentence: str) -> None:
    """Exit code 2, and the usage text of click."""
    assert "Traceback" not in done.stderr, done.stderr
    assert done.returncode == 2, done.stderr
    assert sentence in " ".join(done.stderr.split())
