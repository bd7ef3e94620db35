"""`ForkServers`: processes that have imported `sk`, and fork the `sk` processes of the tests.

To import its modules is most of what a short `sk` process costs, 0.3 s of a processor; a fork takes
0.01 s. What comes of it is a process as any other: it has its own process id, session, files,
environment and command line, runs `cli.main.main()`, can be killed, and is a zombie until it is
asked for. Its parent is the server, not the process that uses the server.

    us ── {"program", "env", "cwd", "death_signal"} and four files ──> server   <── {"pid": n}
    us ── {"poll": n} ───────────────────────────────────────────────> server   <── {"status": n}

One message of a SOCK_SEQPACKET socket is one request in JSON; the answer follows before the next
request. The files are the three standard streams and a network namespace: that of the thread that
asks, because the server remains in the one of the thread that asked first.

Law: nothing outlives the one who started it. The server ends when the other end of its socket is
closed, however its user ends; the kernel then sends the death signal to each process it has forked.

A forked process ends as soon as the interpreter has waited for its threads and called what atexit
has registered. To free all objects one by one would copy each page that it shares with the server,
which takes 0.05 s.

Not every program can be forked. A variable that acts when a process starts, such as LD_PRELOAD,
would have no effect: then the program is executed (see `ForkServers.find`). The resident memory of
a forked process includes the pages that it shares with the server; it is that of an executed one.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from quorum_wal.pg_fixtures.errors import FixtureError
from quorum_wal.pg_fixtures.process_table import ends_within
from quorum_wal.pg_server.errors import DeadlineExceeded
from quorum_wal.pg_server.launcher import CLONE_NEWNET, PR_SET_PDEATHSIG, check, libc, prctl

REQUEST_BYTES_MAX = 1 << 17
#: Room for the command line of a forked process: it lies where the server's own arguments were.
COMMAND_LINE_BYTES_MAX = 1 << 14
#: What an interpreter, the C library or the loader reads once, when a process starts.
START_VARIABLES = ("LD_", "LANG", "LC_", "MALLOC_", "PYTHON", "TZ")
#: `nsenter --net=PATH PROGRAM ...`, see nsenter(1).
NSENTER, NETWORK_OPTION = "nsenter", "--net="
#: What most commands need.
MODULES = (
    "quorum_wal.cluster.page.proposer_page",
    "quorum_wal.cluster.page.safekeeper_page",
    "quorum_wal.telemetry.logs",
    "quorum_wal.telemetry.status_pages",
    "quorum_wal.walproposer.metrics",
    "quorum_wal.walproposer.qsync.primary_session",
    *(
        f"quorum_wal.cli.{name}"
        for name in (
            "safekeeper", "user", "attach", "status", "check", "timeline", "member", "elect",
            "promote", "rejoin", "qsync", "archive", "archive_contents", "archive_fetch",
            "archive_prune", "archive_verify", "backup", "restore", "generations",
        )
    ),
)  # fmt: skip
#: What those of the pageserver, and a restore of a cut, need beside them: compiled loops, and ten
#: times the memory.
PAGE_MODULES = (
    "quorum_wal.pageserver.cuts.virtual_backups",
    "quorum_wal.pageserver.service",
    *(
        f"quorum_wal.cli.{name}"
        for name in (
            "pageserver_run", "pageserver_status", "pageserver_deletion", "branch_create",
            "branch_list", "page_check", "page_get", "page_history", "page_repair",
            "table_restore",
        )
    ),
)  # fmt: skip
PAGE_COMMANDS = ("pageserver", "branch", "page", "restore", "table")


class ForkedProcess:
    """What is used of `subprocess.Popen`: `pid`, `poll()`, `returncode`, `wait()`."""

    def __init__(self, server: ForkServer, pid: int) -> None:
        self._server = server
        self._lock = threading.Lock()
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """The exit code, -N when signal N ended it, None before the end."""
        with self._lock:
            if self.returncode is None:
                self.returncode = self._server.exit_code(self.pid)
            return self.returncode

    def wait(self, timeout: float) -> int:
        """The exit code. Raises DeadlineExceeded, and leaves it running."""
        if not ends_within(self.pid, timeout):
            raise DeadlineExceeded(f"waited {timeout:g} s for the end of process {self.pid}")
        exit_code = self.poll()
        assert exit_code is not None, "it has ended"
        return exit_code


class ForkServers:
    """One for most commands, one for those of the pageserver, and those that `add` has made."""

    def __init__(self, prefix: Sequence[str]) -> None:
        """`prefix` begins the command lines that they stand for, and ends with a module."""
        self._prefix = tuple(prefix)
        self._start_environment = start_environment(os.environ)
        self._pages = ForkServer(prefix[-1], (*MODULES, *PAGE_MODULES))
        self._servers = {self._prefix: ForkServer(prefix[-1], MODULES)}

    def add(self, prefix: Sequence[str], *, of_pages: bool) -> None:
        """Another program that begins with the modules of `sk`, found from the working folder."""
        modules = (*MODULES, *PAGE_MODULES) if of_pages else MODULES
        self._servers[tuple(prefix)] = ForkServer(prefix[-1], modules)

    def find(self, program: Sequence[str], env: Mapping[str, str]) -> ForkServer | None:
        """The one to start the program; None when only an executed process would be the same."""
        _, program = without_network(program)
        prefix = tuple(program[: len(self._prefix)])
        if (
            prefix not in self._servers
            or sum(len(os.fsencode(word)) + 1 for word in program) >= COMMAND_LINE_BYTES_MAX
            or start_environment(env) != self._start_environment
        ):
            return None
        command = program[len(prefix) :][:1]
        if prefix == self._prefix and command and command[0] in PAGE_COMMANDS:
            return self._pages
        return self._servers[prefix]

    def close(self) -> None:
        """End them, and so all that they have forked."""
        for server in (self._pages, *self._servers.values()):
            server.close()


class ForkServer:
    """Started when it is first asked for a process."""

    def __init__(self, program: str, modules: Sequence[str]) -> None:
        """A forked process calls main() of the module `program`. All are imported before."""
        self._modules = (program, *modules)
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def close(self) -> None:
        """End the server, and so all that it has forked."""
        if self._socket is not None and self._process is not None:
            self._socket.close()
            self._process.wait()
            self._socket = None

    def start(
        self,
        program: Sequence[str],
        files: tuple[int, int, int],
        env: Mapping[str, str],
        cwd: Path | None = None,
        death_signal: signal.Signals = signal.SIGKILL,
    ) -> ForkedProcess:
        """A process that leads a session, with these files as its standard streams."""
        network_path, program = without_network(program)
        request = {
            "program": program,
            "env": dict(env),
            "cwd": str(cwd or Path.cwd()),
            "death_signal": int(death_signal),
        }
        with open(network_path, "rb") as network:
            answer = self._ask(request, (*files, network.fileno()))
        return ForkedProcess(self, answer["pid"])

    def exit_code(self, pid: int) -> int | None:
        """As in `subprocess`; None while the process runs. After its end this may be asked once."""
        status = self._ask({"poll": pid})["status"]
        return None if status is None else os.waitstatus_to_exitcode(status)

    def _ask(self, request: dict[str, Any], files: Sequence[int] = ()) -> dict[str, Any]:
        with self._lock:
            if self._socket is None:
                self._socket = self._connect()
            socket.send_fds(self._socket, [json.dumps(request).encode()], files)
            answer = self._socket.recv(REQUEST_BYTES_MAX)
            if not answer:
                raise FixtureError("the server that forks the sk processes has ended")
            return dict(json.loads(answer))

    def _connect(self) -> socket.socket:
        room = " " * COMMAND_LINE_BYTES_MAX
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [*(sys.executable, "-m", __name__), str(theirs.fileno()), *self._modules, room],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # Ctrl-C at a terminal is for the tests
            )
        return ours


def without_network(program: Sequence[str]) -> tuple[str, list[str]]:
    """The path of the network namespace that an executed program would be in, and the program."""
    begin, *rest = program
    if begin == NSENTER and rest[:1] and rest[0].startswith(NETWORK_OPTION):
        return rest[0].removeprefix(NETWORK_OPTION), rest[1:]
    return "/proc/thread-self/ns/net", list(program)


def start_environment(env: Mapping[str, str]) -> dict[str, str]:
    """What an interpreter reads once, when it starts."""
    return {name: value for name, value in env.items() if name.startswith(START_VARIABLES)}


# ---- in the server


def serve(channel: socket.socket) -> dict[str, Any] | None:
    """Returns in each forked process, with what it is to be; in the server, at its end, None."""
    while True:
        message, files, _, _ = socket.recv_fds(channel, REQUEST_BYTES_MAX, 4)
        if not message:
            return None
        request = json.loads(message)
        if "poll" in request:
            pid, status = os.waitpid(request["poll"], os.WNOHANG)
            answer(channel, {"status": status if pid else None})
        elif os.fork() == 0:
            become(request, files, channel)
            return dict(request)
        for file in files:
            os.close(file)


def answer(channel: socket.socket, content: dict[str, Any]) -> None:
    channel.send(json.dumps(content).encode())


def become(request: dict[str, Any], files: Sequence[int], channel: socket.socket) -> None:
    """What is left of the server: what it has imported.

    Answers as soon as the process leads its session: from then on a signal to its group arrives.
    """
    server_pid = os.getppid()
    os.setsid()
    prctl(PR_SET_PDEATHSIG, request["death_signal"])
    if os.getppid() != server_pid:
        os._exit(1)
    answer(channel, {"pid": os.getpid()})
    *streams, network = files
    for target, file in enumerate(streams):
        os.dup2(file, target)
    if not os.path.samefile(network, "/proc/self/ns/net"):  # to enter needs root
        check(libc.setns(network, CLONE_NEWNET), "setns")
    os.closerange(3, max(files) + 1)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    write_command_line(request["program"])
    sys.argv = request["program"][2:]


def write_command_line(program: Sequence[str]) -> None:
    """For /proc/<pid>/cmdline and ps(1): over the server's own arguments, see proc(5)."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    begin, end = int(fields[45]), int(fields[46])  # arg_start and arg_end, the 48th and 49th
    words = b"".join(os.fsencode(word) + b"\0" for word in program)
    assert len(words) < end - begin, "the caller has checked the length"
    ctypes.memset(begin, 0, end - begin)
    ctypes.memmove(begin, words, len(words))


def end_at_once(exit_code: int) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)


def main() -> None:
    exit_codes: list[int] = []
    # The first that is registered is called last.
    atexit.register(lambda: end_at_once(exit_codes[0]) if exit_codes else None)
    channel, program = socket.socket(fileno=int(sys.argv[1])), import_module(sys.argv[2])
    for module in sys.argv[3:-1]:
        import_module(module)
    gc.collect()
    gc.freeze()  # no collection writes to the pages that are shared
    request = serve(channel)
    if request is not None:
        channel.detach()
        try:
            program.main()
        except SystemExit as end:
            if isinstance(end.code, int):  # else the interpreter prints what it is
                exit_codes.append(end.code)
            raise
        exit_codes.append(0)


if __name__ == "__main__":
    main()
