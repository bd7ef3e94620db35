"""The process beside a service that kills it when it hangs; run by `hang_guard.py`, as a script.

    python -I -S hang_killer.py SECONDS     standard input: the pipe that the service writes to

It imports next to nothing, so that it costs next to nothing. Law: seconds are counted one by one:
so the time for which a machine stood still as a whole counts as one.
"""

import os
import select
import signal
import sys

BEAT_SECONDS = 1.0


def watch(beats: int, service: int, silence_seconds_max: float) -> None:
    """Until the service has ended, or was silent for too long."""
    silence_seconds = 0.0
    while silence_seconds < silence_seconds_max:
        if select.select([beats], [], [], BEAT_SECONDS)[0]:
            if not os.read(beats, 4096):
                return
            silence_seconds = 0.0
        else:
            silence_seconds += BEAT_SECONDS
    if os.getppid() == service:  # else it has just ended, and its number may be another's
        os.kill(service, signal.SIGKILL)
        print(
            f"process {service} gave no sign of life for {silence_seconds:g} s (--hang-timeout): "
            "killed, so that its clients go elsewhere",
            file=sys.stderr,
        )


if __name__ == "__main__":
    for number in (signal.SIGTERM, signal.SIGINT):  # it ends with the service, not before
        signal.signal(number, signal.SIG_IGN)
    watch(0, os.getppid(), float(sys.argv[1]))
