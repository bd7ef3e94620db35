"""`launcher.py PARENT DEATH_SIGNAL ACCOUNT NETWORK PROGRAM ...`: sets up the process, then execs.

It runs in the child, after fork and before the program, as a process of its own, because Python
code between fork and exec (`preexec_fn`) can deadlock in a program that has threads. It may import
only the standard library, because it runs by its path and isolated (`-I -S`). It takes about 15 ms;
the module signal would take 10 more, so the C library is called instead.

- DEATH_SIGNAL is the signal that the kernel sends to the program when its parent ends for any
  reason (PR_SET_PDEATHSIG). The kernel's "parent" is the *thread* that forked.
- ACCOUNT is `uid:gid` to drop root, or `-`. The program keeps one capability, to search and read
  directories that the account may not: temporary directories are 0700, and a virtual environment
  may be in root's home. The launcher does not chmod or chown anything outside the program's own
  data.
- NETWORK is `none` for a new network namespace, in which only Unix sockets work; or `-`. Where the
  kernel does not allow a namespace (most containers), the program uses the network of the host.
"""

from __future__ import annotations

import ctypes
import os
import sys

# linux/prctl.h, linux/capability.h
PR_SET_PDEATHSIG = 1
PR_SET_KEEPCAPS = 8
PR_SET_SECUREBITS = 28
PR_CAP_AMBIENT = 47
PR_CAP_AMBIENT_RAISE = 2
SECBIT_NO_SETUID_FIXUP = 1 << 2
SECBIT_KEEP_CAPS = 1 << 4
LINUX_CAPABILITY_VERSION_3 = 0x20080522
CAP_DAC_OVERRIDE = 1
CAP_DAC_READ_SEARCH = 2

# asm-generic/signal.h
SIG_DFL = None  # a null pointer
SIGPIPE = 13
SIGXFSZ = 25

# linux/sched.h
CLONE_NEWUSER = 0x10000000
CLONE_NEWNET = 0x40000000

EXIT_NOT_STARTED = 127

libc = ctypes.CDLL(None, use_errno=True)


def main(argv: list[str]) -> None:
    parent_pid, death_signal, account, network, *program = argv
    if network == "none":
        leave_network()
    if account != "-":
        uid, gid = map(int, account.split(":"))
        drop_root(uid, gid)
    # The program would inherit ignored signals through exec. Python ignores two. A shell makes its
    # background jobs ignore SIGQUIT: it would have no effect until Postgres installs its handlers.
    for number in (SIGPIPE, SIGXFSZ, int(death_signal)):
        libc.signal(number, SIG_DFL)
    # The change of identity clears it, so set it afterwards.
    prctl(PR_SET_PDEATHSIG, int(death_signal))
    if os.getppid() != int(parent_pid):
        sys.exit(EXIT_NOT_STARTED)  # the parent ended before prctl(), so no signal will come
    try:
        os.execvp(program[0], program)
    except OSError as error:
        print(f"could not execute {program[0]!r}: {error.strerror}", file=sys.stderr)
        sys.exit(EXIT_NOT_STARTED)


def leave_network() -> None:
    """Enter a new network namespace. Only root may do that directly. Another account must create a
    user namespace too, in which it keeps its own uid and gid. See user_namespaces(7)."""
    if libc.unshare(CLONE_NEWNET) != 0 and may_map_itself():
        map_itself()


def may_map_itself() -> bool:
    """Try it in a child process: some kernels create the namespace but allow no operation in it."""
    child = os.fork()
    if child == 0:
        try:
            map_itself()
        except OSError:
            os._exit(1)
        os._exit(0)
    return os.waitpid(child, 0)[1] == 0


def map_itself() -> None:
    uid, gid = os.geteuid(), os.getegid()
    if libc.unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "unshare")
    maps = {"setgroups": "deny", "gid_map": f"{gid} {gid} 1", "uid_map": f"{uid} {uid} 1"}
    for name, text in maps.items():
        with open(f"/proc/self/{name}", "wb", buffering=0) as file:
            file.write(text.encode())


def drop_root(uid: int, gid: int) -> None:
    """Become `uid:gid`, without other groups, keeping at most one capability across exec."""
    capability = searching_capability()
    # access(2), which Postgres uses to find its programs, respects the capability only with
    # SECBIT_NO_SETUID_FIXUP.
    if not try_prctl(PR_SET_SECUREBITS, SECBIT_NO_SETUID_FIXUP | SECBIT_KEEP_CAPS):
        prctl(PR_SET_KEEPCAPS, 1)
    os.setgroups([])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    # Permit exactly the ambient set. With more, exec would count as privileged and would clear the
    # death signal and LD_PRELOAD.
    set_capabilities(0 if capability is None else 1 << capability)
    if capability is not None:
        prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, capability)


def searching_capability() -> int | None:
    """The weakest of our capabilities that opens directories. A container's root has only the
    second."""
    permitted = permitted_capabilities()
    for capability in (CAP_DAC_READ_SEARCH, CAP_DAC_OVERRIDE):
        if permitted >> capability & 1:
            return capability
    return None


def permitted_capabilities() -> int:
    with open("/proc/self/status", encoding="ascii") as status:
        for line in status:
            name, _, value = line.partition(":")
            if name == "CapPrm":
                return int(value, 16)
    return 0


def set_capabilities(mask: int) -> None:
    """capset(2): effective, permitted and inheritable := mask (capabilities 0 to 31)."""
    header = (ctypes.c_uint32 * 2)(LINUX_CAPABILITY_VERSION_3, 0)
    data = (ctypes.c_uint32 * 6)(mask, mask, mask, 0, 0, 0)
    check(libc.capset(header, data), "capset")


def prctl(option: int, argument: int, argument2: int = 0) -> None:
    check(0 if try_prctl(option, argument, argument2) else -1, f"prctl({option})")


def try_prctl(option: int, argument: int, argument2: int = 0) -> bool:
    arguments = [ctypes.c_ulong(value) for value in (argument, argument2, 0, 0)]
    return bool(libc.prctl(option, *arguments) == 0)


def check(result: int, call: str) -> None:
    if result != 0:
        error = ctypes.get_errno()
        sys.exit(f"{call} failed: {os.strerror(error)}")


if __name__ == "__main__":
    main(sys.argv[1:])
