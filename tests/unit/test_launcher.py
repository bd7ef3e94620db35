"""A program that must have no network has none, under any account."""

from __future__ import annotations

import os
import signal
import sys

import pytest

from quorum_wal.pg_server.account import Account, server_account
from quorum_wal.pg_server.program import can_leave_network, run_program

NETWORK = ["readlink", "/proc/self/ns/net"]


def test_with_the_host_s_network() -> None:
    assert run_program(NETWORK).stdout.strip() == os.readlink("/proc/self/ns/net")


@pytest.mark.parametrize("account", [None, server_account()])
def test_without_a_network(account: Account | None) -> None:
    assert can_leave_network(account)
    found = run_program(["cat", "/proc/net/dev"], account=account, has_network=False).stdout
    assert [line.split(":")[0].strip() for line in found.splitlines()[2:]] == ["lo"]


IGNORE_AND_START = """
import signal, subprocess, sys
from quorum_wal.pg_server.program import launcher_argv
signal.signal(signal.SIGQUIT, signal.SIG_IGN)  # as a shell does for its background jobs
subprocess.run(launcher_argv(["cat", "/proc/self/status"], None, signal.SIGQUIT), check=True)
"""


def test_the_program_does_not_ignore_its_death_signal() -> None:
    status = run_program([sys.executable, "-c", IGNORE_AND_START]).stdout
    fields = dict(line.split(":", 1) for line in status.splitlines())
    assert not int(fields["SigIgn"], 16) >> (signal.SIGQUIT - 1) & 1


BECOME_AND_LEAVE = """
import os, sys
from quorum_wal.pg_server import launcher
uid, gid = map(int, sys.argv[1:])
os.setgroups([])
os.setresgid(gid, gid, gid)
os.setresuid(uid, uid, uid)
launcher.prctl(PR_SET_DUMPABLE := 4, 1)  # as it is after exec
launcher.leave_network()
print(os.readlink("/proc/self/ns/net"), os.getuid(), os.getgid())
"""


def test_an_ordinary_account_leaves_it_too() -> None:
    """In a user namespace, in which it is who it was."""
    account = server_account()
    assert account is not None, "the tests run as root"
    identity = [str(account.uid), str(account.gid)]
    done = run_program([sys.executable, "-c", BECOME_AND_LEAVE, *identity])
    network, *found = done.stdout.split()
    assert network != os.readlink("/proc/self/ns/net")
    assert found == identity
