"""max_prepared_transactions: how many transactions can be prepared at a time. The default 0 allows
none. A change needs a restart. Source: Postgres `access/transam/twophase.c`."""

from __future__ import annotations

from contextlib import closing

from quorum_wal.walproposer.config import QsyncConfig
from quorum_wal.walproposer.connection import converting_errors
from quorum_wal.walproposer.errors import Refusal
from quorum_wal.walproposer.primary.primary_address import PrimaryAddress

SETTING = "max_prepared_transactions"
HINT = f"ALTER SYSTEM SET {SETTING} = 100; then restart the primary, and its standbys first."


def limbo_max(config: QsyncConfig, address: PrimaryAddress) -> int:
    """How many transactions of qsync may wait. Raises WalProposerError: Refusal if none can, or not
    that many."""
    with (
        closing(address.connect()) as connection,
        converting_errors("could not inspect the primary"),
    ):
        row = connection.execute(f"SELECT current_setting('{SETTING}')::int").fetchone()
    prepared_max = int(row[0]) if row is not None else 0
    if prepared_max == 0:
        raise Refusal(f"the primary has {SETTING} = 0, qsync needs at least 1", hint=HINT)
    if config.limbo_max is None:
        return max(1, prepared_max // 2)
    if config.limbo_max > prepared_max:
        raise Refusal(
            f"--qsync-limbo-max is {config.limbo_max}, the primary has {SETTING} = {prepared_max}",
            hint=HINT,
        )
    return config.limbo_max
