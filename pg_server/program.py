"""`run_program`: runs a program to its end, as the account of a server if required.

Law: a program does not outlive the process that started it. The kernel ends the program when we
end, for any reason (see launcher.py). The kernel takes the *thread* that started the program as its
parent, so start it from a thread that lives as long as the program.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from quorum_wal.pg_server.account import Account
from quorum_wal.pg_server.errors import DeadlineExceeded, ProgramFailed

LAUNCHER = Path(__file__).with_name("launcher.py")


def launcher_argv(
    program: Sequence[str | Path],
    account: Account | None = None,
    death_signal: signal.Signals = signal.SIGKILL,
    *,
    has_network: bool = True,
) -> list[str]:
    """The command line that runs `program` as `account` and ends it when this process ends. Without
    `has_network` the program has no network, where the kernel allows that (see
    `can_leave_network`)."""
    identity = "-" if account is None else f"{account.uid}:{account.gid}"
    network = "-" if has_network else "none"
    launcher = [sys.executable, "-I", "-S", LAUNCHER]
    words = (*launcher, os.getpid(), int(death_signal), identity, network, *program)
    return [str(word) for word in words]


def run_program(
    program: Sequence[str | Path],
    *,
    account: Account | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float = 120.0,
    check: bool = True,
    has_network: bool = True,
) -> subprocess.CompletedProcess[str]:
    """Run `program` to its end and return its exit code and output.

    `env` is added to our own environment. Raises ProgramFailed when the program exits with an error
    (unless `check` is false), DeadlineExceeded after `timeout` seconds.
    """
    command = " ".join(map(str, program))
    try:
        done = subprocess.run(
            launcher_argv(program, account, has_network=has_network),
            env={**os.environ, **(env or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout,
        )
    except subprocess.TimeoutExpired as error:
        raise DeadlineExceeded(f"waited {timeout:g} s for the end of: {command}") from error
    if check and done.returncode != 0:
        output = (done.stdout + done.stderr).strip()
        raise ProgramFailed(f"exit code {done.returncode} from: {command}\n{output}")
    return done


def can_leave_network(account: Account | None) -> bool:
    """Whether the kernel lets a program run without a network. This runs one and compares its
    namespace."""
    here = "/proc/self/ns/net"
    done = run_program(["readlink", here], account=account, check=False, has_network=False)
    return done.returncode == 0 and done.stdout.strip() != os.readlink(here)
