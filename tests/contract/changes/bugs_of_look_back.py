"""Planted bugs of the look back for the beginnings of transactions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import pytest

from quorum_wal.spark.changes.change_reader import _ChangeReader
from quorum_wal.spark.changes.transaction_summary import TransactionSummary
from quorum_wal.spark.errors import WalInputError


def unreadable_wal_taken_for_the_beginning(
    monkeypatch: pytest.MonkeyPatch, swallowed: type[WalInputError]
) -> None:
    """WAL that cannot be read is taken for the beginning of all WAL."""
    real = _ChangeReader._backwards

    def backwards(
        reader: _ChangeReader, lsn: int
    ) -> Iterator[tuple[int, list[TransactionSummary]]]:
        with suppress(swallowed):
            yield from real(reader, lsn)

    monkeypatch.setattr(_ChangeReader, "_backwards", backwards)
