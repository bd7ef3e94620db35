"""The process that kills a hung service; `hang_guard.py` runs it as a script.

    python -I -S hang_killer.py SECONDS     standard input: the pipe that the service writes to

It imports little, to start fast: the module signal would double its time. `hang_guard.py` starts it
with SIGTERM and SIGINT blocked, so that it ends after the service, not before.

Law: it counts seconds one by one, so a pause of the whole machine counts as one second.
"""

import os
import select
import sys

BEAT_SECONDS = 1.0
SIGKILL = 9  # signal(7)


def watch(beats: int, service: int, silence_seconds_max: float) -> None:
    """Returns when the service has ended, or was silent for too long."""
    silence_seconds = 0.0
    while silence_seconds < silence_seconds_max:
        if select.select([beats], [], [], BEAT_SECONDS)[0]:
            if not os.read(beats, 4096):
                return
            silence_seconds = 0.0
        else:
            silence_seconds += BEAT_SECONDS
    if os.getppid() == service:  # otherwise it has ended, and another process may have its number
        os.kill(service, SIGKILL)
        print(
            f"process {service} sent no heartbeat for {silence_seconds:g} s (--hang-timeout): "
            "killed, so that its clients connect elsewhere",
            file=sys.stderr,
        )


if __name__ == "__main__":
    watch(0, os.getppid(), float(sys.argv[1]))
