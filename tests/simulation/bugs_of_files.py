"""Planted bugs of the files that write, read and send: missing syncs, wrong order, missing fields.

`tests/unit/safekeeper/test_power_loss.py` must detect each of POWER_LOSS_PLANTS, and the simulator,
run on files, each of FILE_PLANTS.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from msgspec import structs

import quorum_wal.consensus.codec
import quorum_wal.consensus.wire
from quorum_wal.consensus.messages import AppendResponse
from quorum_wal.consensus.term_history import TermHistory
from quorum_wal.safekeeper.steady_path import SteadyPath
from quorum_wal.safekeeper.timeline import Timeline
from quorum_wal.safekeeper.wal_store import WalStore
from quorum_wal.storage import durable

from .planting import Patch, Plant

POWER_LOSS_PLANTS: list[Plant] = []
FILE_PLANTS: list[Plant] = []


def plant(bug: Plant) -> Plant:
    POWER_LOSS_PLANTS.append(bug)
    return bug


def plant_in_files(bug: Plant) -> Plant:
    FILE_PLANTS.append(bug)
    return bug


def nothing(*_: Any, **__: Any) -> None:
    """Replaces a sync."""


def without(patch: Patch, owner: Any, method: str, call: str) -> None:
    """`owner.method` does not use `durable.call`, nor do the functions that it calls."""
    real_method = getattr(owner, method)

    def lazy(*args: Any, **options: Any) -> Any:
        before = getattr(durable, call)
        setattr(durable, call, nothing)
        try:
            return real_method(*args, **options)
        finally:
            setattr(durable, call, before)

    patch(owner, method, lazy)


@plant_in_files
@plant
def zeroed_tail_not_synced(patch: Patch) -> None:
    without(patch, WalStore, "_zero_tail", "sync_data")


@plant_in_files
@plant
def folder_not_synced_after_a_truncation(patch: Patch) -> None:
    without(patch, WalStore, "truncate", "sync_directory")


@plant_in_files
@plant
def tail_not_zeroed(patch: Patch) -> None:
    patch(WalStore, "_zero_tail", nothing)


@plant_in_files
@plant
def flush_without_a_sync(patch: Patch) -> None:
    without(patch, WalStore, "flush", "sync_data")


@plant_in_files
@plant
def full_segment_not_flushed(patch: Patch) -> None:
    patch(WalStore, "close", WalStore.abandon)


@plant
def what_was_found_is_not_synced(patch: Patch) -> None:
    without(patch, WalStore, "recover", "sync_file")


@plant
def names_that_were_found_are_not_synced(patch: Patch) -> None:
    without(patch, WalStore, "recover", "make_directory")


@plant
def prefix_not_synced(patch: Patch) -> None:
    without(patch, WalStore, "_write_prefix", "sync_data")


@plant_in_files
@plant
def name_of_a_file_not_synced(patch: Patch) -> None:
    without(patch, durable, "publish_file", "sync_directory")


@plant_in_files
@plant
def control_file_not_synced(patch: Patch) -> None:
    def replace_file(path: Path, data: bytes) -> None:
        temporary = path.with_name(path.name + ".tmp")
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        durable.write_all(fd, data, 0, temporary)
        os.close(fd)
        durable.publish_file(temporary, path)

    patch(durable, "replace_file", replace_file)


@plant
def control_file_written_in_place(patch: Patch) -> None:
    def replace_file(path: Path, data: bytes) -> None:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        durable.write_all(fd, data, 0, path)
        os.fsync(fd)
        os.close(fd)
        durable.sync_directory(path.parent)

    patch(durable, "replace_file", replace_file)


@plant
def segments_removed_before_the_control_file_says_so(patch: Patch) -> None:
    advance = Timeline.advance_local_start

    def late(self: Timeline, lsn: int) -> None:
        self.store.remove_below(lsn)
        advance(self, lsn)

    patch(Timeline, "advance_local_start", late)


# ---- bugs that only whole runs show


@plant_in_files
def flush_lsn_and_durable_lsn_swapped_on_the_wire(patch: Patch) -> None:
    decode = quorum_wal.consensus.codec._decode_append_response

    def swapped(view: memoryview) -> AppendResponse:
        answer = decode(view)
        return structs.replace(answer, flush_lsn=answer.durable_lsn, durable_lsn=answer.flush_lsn)

    patch(quorum_wal.consensus.codec, "_decode_append_response", swapped)


@plant_in_files
def histories_lose_their_last_entry_on_the_wire(patch: Patch) -> None:
    encode = quorum_wal.consensus.wire.encode_term_history

    def shorter(history: TermHistory) -> bytes:
        return encode(TermHistory(history.entries[:-1] or history.entries))

    patch(quorum_wal.consensus.codec, "encode_term_history", shorter)


@plant_in_files
def later_segments_survive_a_truncation(patch: Patch) -> None:
    cut = WalStore._cut

    def partly(self: WalStore, end_lsn: int, dirty_end_lsn: int) -> None:
        names = self._names
        self._names = list  # type: ignore[method-assign, assignment]
        cut(self, end_lsn, dirty_end_lsn)
        self._names = names  # type: ignore[method-assign]

    patch(WalStore, "_cut", partly)


@plant_in_files
def steady_path_without_a_flush(patch: Patch) -> None:
    patch(SteadyPath, "_flush", nothing)
