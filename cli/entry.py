"""What the console script `sk` calls: the whole command, or a shorter way to the same end.

Postgres calls `sk archive fetch` once for each segment of a recovery, and waits for it. When the
segment has been made ready in advance (`backup/wal_prefetch.py`), all that is to be done is to
rename it; to import and parse the command line would take several times as long.
"""

from __future__ import annotations

import sys


def main() -> None:
    if sys.argv[1:3] == ["archive", "fetch"]:
        from backup.wal_prefetch import take_prefetched

        if take_prefetched(sys.argv[3:]):
            return
    from cli.main import main as run

    run()


if __name__ == "__main__":
    main()
